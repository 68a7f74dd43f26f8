"""Search with vectors of pretrained networks: adapters, linear metrics and baselines.

Pictures of birds (CUB-200-2011, MobileNetV2) and questions to a bank (banking77, MiniLM): maps are
learned on the first half of the classes; recall@1 and MAP@R are those of a search by cosine among
all rows of the second half. Pairs of sentences with a grade (STS benchmark, MiniLM): learned on the
training pairs; Spearman's correlation of cosine and grade over the test pairs.
"""

import time

import numpy as np
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, normalize

from benchmarks.data import load_embeddings, load_graded_pairs
from benchmarks.harness import PALETTE, Column, Report, Target, progress
from skdml import DeepMetricEmbedder, DITMLTransformer, GMMLTransformer
from skdml.metrics import map_at_r, recall_at_k
from skdml.utils._torch import seeded_torch

REPEATS = 1
SETS = {"banking77": "text_banking77_minilm", "cub200": "cub200_mnv2"}
GRADED = "stsb"
PLAIN, LINEAR, SHORT = "as they come", ("GMML", "DITML"), "GMML, a quarter"
WHITENED, DISCRIMINANT = "PCA whitening", "discriminant analysis"
ADAPTERS = {"adapter": {}, "adapter, 512 hidden": {"module__hidden": 512}}
PEER = "pytorch-metric-learning"
N_WHITENED, N_SEEDS = 128, 3
TOLERATED = 0.002
LOWEST_MAP = {"banking77": 0.50, "cub200": 0.16}
MOST_SECONDS = 60


def add_arguments(parser):
    parser.add_argument("--parts", default=",".join([*SETS, GRADED]), help="sets, comma separated")


def load(name, quick):
    """Return rows and classes to learn from, and those of the unseen classes."""
    X, y = load_embeddings(SETS[name])
    is_seen = y < (y.max() + 1) // 2
    parts = []
    for mask in (is_seen, ~is_seen):
        rows, classes = X[mask], y[mask]
        if quick:
            few = np.flatnonzero(classes < classes.min() + 12)[::5]
            rows, classes = rows[few, :64], classes[few]
        parts += [rows, classes]
    return parts


class RandomHead:
    """The usual recipe: a linear head with random weights, for a fixed number of steps."""

    def __init__(self, random_state, n_components=128, n_steps=600):
        self.random_state, self.n_components, self.n_steps = random_state, n_components, n_steps

    def fit(self, X, y):
        import torch
        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner
        from pytorch_metric_learning.samplers import MPerClassSampler

        with seeded_torch(self.random_state):
            np.random.seed(self.random_state)  # noqa: NPY002, the sampler draws with it
            rows, labels = torch.from_numpy(normalize(X)), torch.from_numpy(y)
            head = torch.nn.Linear(X.shape[1], self.n_components)
            loss, miner = MultiSimilarityLoss(), MultiSimilarityMiner()
            optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
            size = 5 * min(16, len(np.unique(y)))
            sampler = MPerClassSampler(labels, 5, size, length_before_new_iter=size)
            for _ in range(self.n_steps):
                chosen = torch.tensor(list(sampler))
                embeddings = torch.nn.functional.normalize(head(rows[chosen]))
                value = loss(embeddings, labels[chosen], miner(embeddings, labels[chosen]))
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
        self.coef_ = head.weight.detach().numpy()
        self.intercept_ = head.bias.detach().numpy()
        return self

    def transform(self, X):
        return normalize(X) @ self.coef_.T + self.intercept_


def make_methods(n_features, n_rows):
    """Return functions of a seed by name, and the number of seeds; None leaves vectors alone."""
    learner = {"metric": "cosine", "select": "classes"}
    n_white = min(N_WHITENED, n_features, n_rows)

    def whiten(seed):
        return make_pipeline(Normalizer(), PCA(n_white, whiten=True, random_state=seed))

    def discriminate(seed):
        discriminant = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
        return make_pipeline(Normalizer(), discriminant)

    short = {**learner, "n_components": n_features // 4}
    methods = {
        PLAIN: (None, 1),
        WHITENED: (whiten, 1),
        DISCRIMINANT: (discriminate, 1),
        "GMML": (lambda seed: GMMLTransformer(random_state=seed, **learner), 1),
        SHORT: (lambda seed: GMMLTransformer(random_state=seed, **short), 1),
        PEER: (RandomHead, N_SEEDS),
    }
    for name, params in ADAPTERS.items():
        methods[name] = (
            lambda seed, params=params: DeepMetricEmbedder("adapter", random_state=seed, **params),
            N_SEEDS,
        )
    # The slowest is the last.
    methods["DITML"] = (lambda seed: DITMLTransformer(random_state=seed, **learner), 1)
    return methods


def run_set(name, quick):
    """Return a row for each method, the mean over its seeds."""
    X, y, X_unseen, y_unseen = load(name, quick)
    rows = []
    for method, (make, n_seeds) in make_methods(X.shape[1], len(X)).items():
        figures = []
        for seed in range(1 if quick else n_seeds):
            Z, seconds = X_unseen, np.nan
            if make is not None:
                start = time.process_time()
                fitted = make(seed).fit(X, y)
                seconds = time.process_time() - start
                Z = fitted.transform(X_unseen)
            recall = recall_at_k(Z, y_unseen, k=1, metric="cosine")
            figures.append((recall, map_at_r(Z, y_unseen, metric="cosine"), seconds))
            text = "recall@1 {:.4f}, MAP@R {:.4f}, {:.1f} s".format(*figures[-1])
            progress(f"{name}: {method}, seed {seed}: {text}")
        recalls, maps, seconds = np.transpose(figures)
        rows.append(
            {
                "part": name,
                "method": method,
                "row": f"{name}, {method}",
                "shape": f"{X.shape[0]} x {X.shape[1]}",
                "columns": Z.shape[1],
                "recall": recalls.mean(),
                "map": maps.mean(),
                "seconds": None if make is None else seconds.max(),
                "spread": np.ptp(recalls) if len(recalls) > 1 else None,
            }
        )
    by_method = {row["method"]: row for row in rows}
    for row in rows:
        for key in ("recall", "map"):
            row[f"{key}_gain"] = row[key] - by_method[PLAIN][key]
    by_method[SHORT]["kept"] = by_method[SHORT]["recall"] / by_method["GMML"]["recall"]
    return rows


def run_graded(quick):
    """Return rows of the vectors and of adapters, learned from graded pairs."""
    X, pairs, grades, split = load_graded_pairs()
    is_train, is_test = split == "train", split == "test"
    if quick:
        is_train &= np.cumsum(is_train) <= 200
    rows = []
    for method, params in {PLAIN: None, **ADAPTERS}.items():
        figures = []
        for seed in range(1 if quick or params is None else N_SEEDS):
            progress(f"{GRADED}: {method}, seed {seed}")
            Z, seconds = normalize(X), np.nan
            if params is not None:
                model = DeepMetricEmbedder("adapter", random_state=seed, **params)
                start = time.process_time()
                model.fit(X, pairs=pairs[is_train], pair_similarity=grades[is_train])
                seconds = time.process_time() - start
                Z = model.transform(X)
            left, right = Z[pairs[is_test]].transpose(1, 0, 2)
            cosines = (left * right).sum(axis=1)
            figures.append((spearmanr(cosines, grades[is_test]).statistic, seconds))
        correlations, seconds = np.transpose(figures)
        rows.append(
            {
                "part": GRADED,
                "method": method,
                "row": f"{GRADED}, {method}",
                "shape": f"{is_train.sum()} pairs",
                "columns": Z.shape[1],
                "correlation": correlations.mean(),
                "seconds": None if params is None else seconds.max(),
                "spread": np.ptp(correlations) if len(correlations) > 1 else None,
            }
        )
    return rows


def find_targets(rows):
    """Return the targets on the sets that have rows."""
    targets = []
    best = next(iter(ADAPTERS))
    for name in SETS:
        found = {row["method"]: row for row in rows if row["part"] == name}
        if not found:
            continue
        for key, text in (("recall", "recall@1"), ("map", "MAP@R")):
            value, plain = found[best][key], found[PLAIN][key]
            if name == "banking77":
                text = f"adapter's {text}, {name}, that of the vectors:"
                targets.append(Target.at_least(text, plain, value))
            else:
                rival = max(plain, found["GMML"][key], found[DISCRIMINANT][key])
                text = f"adapter's {text}, {name}, that of vectors, GMML and discriminant: above"
                targets.append(Target(text, rival, value, value > rival))
        text = f"adapter's MAP@R, {name}:"
        targets.append(Target.at_least(text, LOWEST_MAP[name], found[best]["map"]))
        for method in LINEAR:
            for key, text in (("recall_gain", "recall@1"), ("map_gain", "MAP@R")):
                text = f"gain of {method} over the vectors, {text}, {name}:"
                targets.append(Target.at_least(text, -TOLERATED, found[method][key]))
        if name == "cub200":
            text = f"share of GMML's recall@1 that a quarter of the columns keeps, {name}:"
            targets.append(Target.at_least(text, 0.99, found[SHORT]["kept"]))
    graded = {row["method"]: row["correlation"] for row in rows if row["part"] == GRADED}
    if graded:
        text = f"adapter's correlation, {GRADED}, that of the vectors: above"
        value = graded[best]
        targets.append(Target(text, graded[PLAIN], value, value > graded[PLAIN]))
    seconds = [row["seconds"] for row in rows if row["method"] in ADAPTERS]
    text = "seconds of the slowest fit of an adapter, one core:"
    return [*targets, Target.at_most(text, MOST_SECONDS, max(seconds, default=None))]


def plot(report, figure):
    """Draw both measures of every method, a panel for each set of classes."""
    rows_of_classes = [row for row in report.rows if row["part"] in SETS]
    names = list(dict.fromkeys(row["part"] for row in rows_of_classes)) or [GRADED]
    figure.set_size_inches(2.4 + 4.2 * len(names), 4.6)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        rows = [row for row in report.rows if row["part"] == name]
        for key, text, colour in (("recall", "recall@1", 0), ("map", "MAP@R", 1)):
            values = [row.get(key, row.get("correlation")) for row in rows]
            axes.axvline(values[0], color=PALETTE[colour], linestyle=":", linewidth=1)
            axes.scatter(values, range(len(rows)), s=45, color=PALETTE[colour], label=text)
            for place, value in enumerate(values):
                near = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center"}
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.annotate(f"{value:.3f}", (value, place), fontsize="small", bbox=ground, **near)
        axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.7)
        axes.margins(x=0.15)
        axes.set_title(f"{name}, unseen classes", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def run(options):
    runners = {name: lambda name=name: run_set(name, options.quick) for name in SETS}
    runners[GRADED] = lambda: run_graded(options.quick)
    rows = options.run_parts("adapter", runners)
    return Report(
        name="adapter",
        title="search with vectors of pretrained networks, among unseen classes",
        columns=[
            Column("row", "set, method"),
            Column("shape", "trained on"),
            Column("columns", "columns"),
            Column("recall", "recall@1", ".4f"),
            Column("map", "MAP@R", ".4f"),
            Column("recall_gain", "gain, recall@1", "+.4f"),
            Column("map_gain", "gain, MAP@R", "+.4f"),
            Column("correlation", "correlation", ".4f"),
            Column("spread", "spread", ".4f"),
            Column("kept", "of GMML's recall@1", ".4f"),
            Column("seconds", "seconds of the fit", ".1f"),
        ],
        rows=rows,
        targets=find_targets(rows),
        notes=[
            "Cosine similarity; every query searches among all other rows of the unseen classes. "
            "Gains are over the vectors as they come. PCA (128 columns) and discriminant analysis "
            "(shrinkage by Ledoit and Wolf) get rows of unit length; GMML and DITML have "
            'metric="cosine" and select="classes"; adapters have their defaults. '
            "pytorch-metric-learning is the usual recipe: a linear head of 128 columns with random "
            "weights, multi-similarity loss and miner, Adam at 0.001, 600 batches of 16 x 5, no "
            "classes held out.",
            "Adapters and the head are means of three seeds; spread is the largest less the "
            "smallest recall@1 (or correlation) of them. Seconds are processor time with one "
            "thread, of the slowest seed.",
        ],
        plot=plot,
    )
