"""Type checkers see the package as it is: right scripts pass `mypy --strict`, typos do not."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skdml

PACKAGE = Path(skdml.__file__).parent

RIGHT = """
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import skdml
from skdml import (
    AsymmetricMetricClassifier,
    DeepMetricEmbedder,
    LFDA,
    LMNN,
    MLKR,
    RCA,
    DITMLTransformer,
    GMMLTransformer,
    LocalGMMLRanker,
    NeighborhoodGerrymandering,
    SSDMLEmbedder,
    WassersteinGenerator,
)
from skdml.constraints import make_local_pairs, make_pairs, make_triplets
from skdml.datasets import make_local_clusters, make_ranking, read_idx, read_letor
from skdml.deep.losses import get_loss, loss_parameters
from skdml.linear import MahalanobisMetric
from skdml.metrics import map_at_r, mean_ndcg, precision_at_k, recall_at_k, sample_quality
from skdml.plot import (
    ConvergenceDisplay,
    EmbeddingDisplay,
    GeneratedSamplesDisplay,
    MetricMatrixDisplay,
    RankingDisplay,
    RecallCurveDisplay,
)
from skdml.semisupervised import PartiallyLabelledKFold
from skdml.transport import CloudMetric, sinkhorn_divergence, wasserstein_coreset

X, y = make_local_clusters(n_samples=200, n_features=4, random_state=0)
frame: Any = X  # a dataframe, a sparse matrix, a dask array

# One metric for the whole space
gmml = GMMLTransformer(reg=0.1, prior="covariance", n_components=2, random_state=0)
embedded: NDArray[Any] = gmml.fit(X, y).transform(X)
embedded = gmml.fit_transform(X, y)
embedded = gmml.set_output(transform="default").fit(frame, [0, 1] * 100).transform([[0.0] * 4])
metric: MahalanobisMetric = gmml.get_metric()
distance: float = metric(X[0], X[1])
distances: NDArray[Any] = gmml.pair_distance([[0, 1]], X=X)
A: NDArray[Any] = gmml.get_mahalanobis_matrix() + gmml.metric_.matrix()
names: list[str] = [str(name) for name in gmml.get_feature_names_out()]
params: dict[str, Any] = gmml.get_params()
gmml = gmml.set_params(reg=0.2).set_callbacks().set_fit_request(pairs=True, pair_labels=True)
n_features: int = gmml.n_features_in_
pairs, labels = make_pairs(y, 100, random_state=0)
ditml = DITMLTransformer(gamma=2.0, solver="newton", bound_percentiles=(10, 90), tol=1e-5)
ditml = ditml.fit(X, pairs=pairs, pair_labels=labels, bounds=(1.0, 2.0))
gap: float = ditml.duality_gap_ + ditml.kkt_residual_ + ditml.n_iter_
reason: str = ditml.stop_reason_
values: list[Any] = ditml.history_["value"]
kept: NDArray[Any] = ditml.pairs_[ditml.dual_coef_ > 0]
bounded: NDArray[Any] = ditml.bounds_ * ditml.pair_labels_
votes = NeighborhoodGerrymandering(n_neighbors=3, lr=0.02, validation_fraction=None).fit(X, y)
embedded = votes.transform(X) - X @ votes.components_.T
objective: list[float] = votes.history_["objective"]
margins = LMNN(n_neighbors=2, n_passes=1, validation_fraction=None).fit(X, y)
passes: int = margins.n_passes_ + margins.n_iter_
kernel = MLKR(n_components=2, tol=1e-3).fit(X, X[:, 0])
errors: list[float] = kernel.history_["loss"]
whitened: NDArray[Any] = RCA(shrinkage=0.1).fit(X, chunks=y).transform(X)
ratios: NDArray[Any] = LFDA(2, embedding_type="plain").fit(X, y).eigenvalues_

# Queries and database
classifier = AsymmetricMetricClassifier(n_neighbors=3, cost_matrix=[[0, 1], [1, 0]])
classifier = classifier.fit(X, y, X_query=X, y_query=y)
answers: NDArray[Any] = classifier.predict(X) == classifier.classes_[0]
shares: NDArray[Any] = classifier.predict_proba(X)
accuracy: float = classifier.score(X, y, sample_weight=np.ones(200))
both: NDArray[Any] = classifier.transform(X) - classifier.transform_database(X)
maps: NDArray[Any] = classifier.query_components_ @ classifier.database_components_.T
distances = classifier.pair_distance(X, X)

# Ranking
documents, grades, qid = make_ranking(n_queries=5, random_state=0)
ranker = LocalGMMLRanker(n_metrics=2, normalize=None).fit(documents, grades, qid=qid)
scores: NDArray[Any] = ranker.predict(documents, qid=qid, query=documents[:1])
ndcg: float = ranker.score(documents, grades, qid=qid) + mean_ndcg(grades, scores, qid, k=5)
ranker = ranker.set_fit_request(qid=True).set_score_request(qid=True).set_predict_request(qid=True)
first: MahalanobisMetric = ranker.metrics_[0]
losses: list[float] = ranker.history_["loss"]

# Networks
deep = DeepMetricEmbedder("mlp", max_epochs=2, loss__margin=0.2, module__hidden=(8,))
recall: float = deep.fit(X, y).score(X, y)
embedded = deep.transform(X)
distances = deep.pair_distance(pairs, X=X)
weights: Any = deep.module_.state_dict()
chosen: str | CloudMetric = deep.metric_
deep = deep.set_params(module__hidden=(16,), lr=0.01)
few = SSDMLEmbedder(n_components=2, recipe="paper", loss__angle=45, random_state=0).fit(X, y)
recall = few.score(X, y)
found: NDArray[Any] = few.propagated_labels_[few.propagated_confidence_ > 0.5]
linear: NDArray[Any] = few.components_ @ few.transform(X).T
for train, test in PartiallyLabelledKFold(3).split(X, y):
    few.fit(X[train], y[train])
loss: Any = get_loss("triplet", margin=0.1)
known: Any = loss_parameters("triplet")

# New rows
generator = WassersteinGenerator(latent_dim=4, lr="auto", max_iter=10).fit(X)
rows: NDArray[Any] = generator.sample(10, random_state=np.random.RandomState(0))
score: float = generator.score(X)
curve: list[Any] = generator.history_["wasserstein"]
sent: float = generator.traffic_["update"]

# Around them
one: float = recall_at_k(embedded, y) + precision_at_k(embedded, y, k=2) + map_at_r(embedded, y)
several: NDArray[Any] = recall_at_k(embedded, y, [1, 2], gallery=embedded, gallery_labels=y)
quality: Any = sample_quality(X, rows)
triplets: NDArray[np.int64] = make_triplets(y, 10)
near, kinds = make_local_pairs(X, y, 10, n_neighbors=3)
images: NDArray[Any] = read_idx("t10k-images-idx3-ubyte.gz")
texts, relevance, queries = read_letor(["S1.txt", "S2.txt"], n_features=46)
divergence: Any = sinkhorn_divergence(X, X)
core, counts = wasserstein_coreset(X, y, 0.1, random_state=0)
figure: Any = EmbeddingDisplay.from_estimator(gmml, X, y).figure_
figure = RecallCurveDisplay.from_predictions(embedded, y, k=[1, 2]).figure_
figure = ConvergenceDisplay.from_estimator(ditml, measure="value").plot().figure_
figure = MetricMatrixDisplay.from_estimator(gmml, feature_names=["a", "b", "c", "d"]).figure_
figure = RankingDisplay.from_estimator(ranker, documents, grades, qid, other=scores).figure_
figure = GeneratedSamplesDisplay.from_estimator(generator, X).figure_
version: str = skdml.__version__
lazy: skdml.GMMLTransformer = skdml.linear.GMMLTransformer()
"""

# Each line that names an error must have it, and no other line has one.
WRONG = """
import numpy as np

import skdml
from skdml import GMMLTransformer, LocalGMMLRanker, SSDMLEmbedder, WassersteinGenerator
from skdml.metrics import recall_at_k

X, y = np.zeros((4, 2)), [0, 0, 1, 1]
model = GMMLTransformer().fit(X, y)
model.transfrom(X)  # attr-defined
model.metrc_  # attr-defined
model.transform(X).shap  # attr-defined
model.transform()  # call-arg
model.transform(None)  # arg-type
model.fit(X, y, pair=None)  # call-arg
model.predict(X)  # attr-defined
GMMLTransformer(rge=0.1)  # call-arg
GMMLTransformer(reg="much")  # arg-type
GMMLTransformer().fit(X, y).set_params(reg=1).get_metrics()  # attr-defined
model.fit_transform(X, y).transform  # attr-defined
skdml.GMMLTransformr  # attr-defined
skdml.metrics.recal_at_k  # attr-defined
skdml.DITMLTransformer(max_iters=3)  # call-arg
skdml.AsymmetricMetricClassifier().fit(X, y).predict_probas(X)  # attr-defined
LocalGMMLRanker().fit(X, y, qids=y)  # call-arg
LocalGMMLRanker().fit(X, y).transform(X)  # attr-defined
skdml.DeepMetricEmbedder().fit(X, y).embedding_  # attr-defined
skdml.DeepMetricEmbedder(n_components="all")  # arg-type
SSDMLEmbedder().fit(X, y).propagated_label_  # attr-defined
WassersteinGenerator().fit(X).samples(3)  # attr-defined
WassersteinGenerator().sample(n_sample=3)  # call-arg
recall_at_k(X, y, 1).mean()  # attr-defined
"""

# torch's types take most of the time, and no estimator inherits from torch.
SETTINGS = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
"""


def test_mypy_strict_passes_what_is_right_and_nothing_else(tmp_path):
    pytest.importorskip("mypy")
    for name, text in (("right.py", RIGHT), ("wrong.py", WRONG), ("mypy.ini", SETTINGS)):
        (tmp_path / name).write_text(text)
    environment = dict(os.environ)
    if PACKAGE.parent.name != "site-packages":  # where mypy looks by itself
        environment["MYPYPATH"] = str(PACKAGE.parent)
    arguments = ["--config-file=mypy.ini", "--cache-dir=cache", "right.py", "wrong.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", output, re.MULTILINE)
    expected = [
        ("wrong", str(number), line.partition("# ")[2])
        for number, line in enumerate(WRONG.splitlines(), start=1)
        if "# " in line
    ]
    assert sorted(found) == sorted(expected), output
    assert len(found) == output.count(" error: "), output


def public_functions(tree):
    """Yield the functions of a module and the methods of its classes that have public names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not re.match("_(?!_)", node.name):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_public_functions_have_types(path):
    for function in public_functions(ast.parse(path.read_text(encoding="utf-8"))):
        given = function.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        untyped = [
            argument.arg
            for argument in arguments
            if argument and not argument.annotation and argument.arg not in ("self", "cls")
        ]
        place = f"{path}:{function.lineno}: {function.name}"
        assert not untyped, f"{place}: {untyped} have no type"
        assert function.returns is not None, f"{place} has no type of what it returns"


@pytest.mark.parametrize("module", ["constraints", "datasets", "metrics", "plot", "transport"])
def test_signatures_in_help_fit_a_screen(module):
    module = importlib.import_module(f"skdml.{module}")
    for name in getattr(module, "__all__", dir(module)):
        value = getattr(module, name)
        methods = [value]
        if inspect.isclass(value):
            methods = [getattr(value, method) for method in vars(value) if method[0] != "_"]
        for function in filter(callable, methods):
            signature = str(inspect.signature(function))
            assert "numpy." not in signature, f"{function.__qualname__}{signature}"
            assert len(signature) < 6 * 80, f"{function.__qualname__}{signature}"
