"""LocalGMMLRanker: learning to rank by distances to learned ideal documents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from ..linear import MahalanobisMetric
from ..metrics import mean_ndcg, ndcg_by_query
from ..utils import validation as checks
from ..utils._bases import BaseEstimator
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import computed, find_client, limit_threads
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ._anchor_model import (
    RANK_BUDGET,
    AnchorModel,
    QueryWeights,
    build_model,
    learn_local_metrics,
)
from ._documents import (
    Measure,
    Normalizer,
    Queries,
    column_scale,
    fit_normalizer,
    group_rows,
    several_grades,
    sort_queries,
)
from ._linear import N_FOLDS, LinearPart, fit_linear, make_blocks, sum_blocks
from ._local_gmml_training import (
    LocalPart,
    choose_weight,
    cross_fit,
    fit_query_weights,
    start_beside,
    train,
)
from ._views import N_BASIS, Missing, fit_missing

# Held out to choose the epoch where there is no linear part, and no validation queries are given.
_HELD_OUT = 0.2
_MIN_QUERIES = 10  # with fewer, none is held out
_MIN_HELD_OUT = 2
# Documents may be of any scale up to 2 to this power.
_MOST_EXPONENT = 950
# Rows that are scored at a time, in whole queries.
_CHUNK = 2_000
# Local metrics, and the choice of the linear part, are learned from queries with so many cells.
_MAX_CELLS = 1_250_000
# Epochs without a lower loss after which training ends, beside a linear part.
_PATIENCE = 5
# Rank budget of the local metrics that are beside a linear part, of each fold.
_RANK_BUDGET = 16


class LocalGMMLRanker(EstimatorMixin, BaseEstimator):
    r"""Rank documents by a linear part and by distances to learned ideal documents.

    The linear part comes first: least squares on differences of documents of the same query, in
    closed form, and a listwise loss from there, on several views of the features. What does well on
    queries that are held out counts. Local metrics learn what is left: a document is better if it
    is near an "ideal candidate document" and far from an anti-ideal one, each with a metric in
    closed form (GMML) from a group of queries whose relevant documents are alike:

    .. math:: f(p) = c^T v(p) + w \Big( \log \sum_r \Phi_r e^{-\rho_r \|p - p_r\|^2_{M_r}}
              - \log \sum_r \Psi_r e^{-\sigma_r \|p - a_r\|^2_{N_r}} \Big)

    with views v, ideal documents p, their metrics M, and anti-ideal documents a, their metrics N.
    The weight w is chosen on queries held out, and may be zero. Read more in the
    :ref:`user guide <ranking>`.

    Parameters
    ----------
    n_metrics : int, default=2
        The number of local metrics, each with an ideal document, and of as many anti-ideal ones.
    kernel : {"gaussian", "damped"}, default="gaussian"
        How distances become a score: as above, or as a sum of distances damped by their
        exponential, equation 4.12 of the thesis [1]_, which is not monotone in the distance and
        kept for comparison.
    loss : {"lambda", "warp"}, default="lambda"
        What the local metrics minimise. "lambda" is a pairwise logistic loss with pairs weighted
        by what a swap would change in NDCG; "warp" draws violators of a margin and weights them by
        their estimated rank.
    normalize : {"query", "column", "both"} or None, default="query"
        What the local metrics see. "query" replaces each feature by its z-score or its rank among
        the documents of the query, whichever correlates more with the relevance, and leaves out
        features that do not correlate with it. "column" divides each feature by its norm over the
        training documents, "both" does both, None leaves it alone.
    linear : bool, default=True
        Whether there is a linear part.
    learn_anchors : bool, default=True
        Whether the ideal documents are learned; otherwise they stay at the document of their
        group that ranks it best.
    learn_metrics : bool, default=False
        Whether the local metrics are learned further, beyond their closed form.
    query_weights : {"shared", "per-query", "neighbours"}, default="shared"
        "shared" has one weight per ideal document. "per-query" refines them for each training
        query, which helps when it is asked again; "neighbours" also gives an unseen query the
        mean weights of the training queries whose documents are most like its own.
    reg : float, default=0.01
        How strongly the local metrics are drawn towards the identity, in units of the mean
        squared difference of a feature.
    gains : {"exponential", "linear"}, default="exponential"
        What a grade is worth in NDCG: ``2**grade - 1`` or the grade itself.
    cutoff : int or None, default=10
        The number of ranks that count in NDCG, None for all.
    margin : float, default=1.0
        zeta of the "warp" loss: by how much a better document shall be ahead.
    initial_weight : float, default=1.0
        Phi at the start.
    max_epochs : int, default=60
        Passes over the training queries at most.
    early_stopping : bool, default=True
        Stop when the loss on held-out queries has not fallen for 5 epochs, 10 if `linear` is
        false, and keep the best epoch. The queries are `X_val` if given to `fit`, else a part of
        the training queries: each quarter once, or a fifth if `linear` is false. With fewer than
        10 queries none is held out.
    n_jobs : int, default=None
        Workers, as in joblib. Under joblib's "dask" backend, or with dask arrays and an active
        client, the cluster works, with whole queries per task.
    random_state : int, RandomState instance or None, default=None
        Seeds groups, held-out queries, batches and violators.
    verbose : int, default=0
        1 shows a progress bar on a terminal, and how many queries are left out of training.

    Attributes
    ----------
    contributions_ : dict
        What each part contributes. "linear", "local" and "sum": NDCG of queries held out. "weight"
        is w. "views", "reg" and "loss" are those of the best linear ranker, and "members" has all
        that were tried as dicts, with their NDCG and their share. Empty if `linear` is false.
    coef_ : ndarray of shape (n_columns, n_linear_features)
        The coefficients of the linear part: z-score, rank, value, hinges of z-scores, hinges of
        values; zeros if `linear` is false. Features with missing cells have an indicator, which
        is on the right.
    support_ : ndarray of shape (n_linear_features,), dtype=bool
        The features that the local metrics use.
    anchors_ : ndarray of shape (n_anchors, n_normalized_features)
        The ideal documents, then the anti-ideal ones, as normalised features; of one fold after
        the other.
    metrics_ : list of MahalanobisMetric
        Their metrics, a scaled identity plus low rank unless `learn_metrics`.
    weights_ : ndarray of shape (n_anchors,)
        Phi, shared by all queries.
    widths_ : ndarray of shape (n_anchors,)
        rho.
    query_weights_ : dict
        Phi of each training query; empty if `query_weights` is "shared".
    history_ : dict of str to list
        Per epoch of the local metrics: "loss", if queries were held out their "validation_loss" and
        their "ndcg" with the linear part, "seconds" since the start of training, and the "fold".
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    skdml.metrics.mean_ndcg : The measure that `score` returns.
    GMMLTransformer : One metric for the whole space, in closed form.

    Notes
    -----
    Only the order of the scores within a query has a meaning. Documents of equal score keep the
    order of the input in all measures of :mod:`skdml.metrics`.

    Missing cells (NaN) are filled with the median of their query, and a feature that had some in
    `fit` has an indicator of them.

    With many documents, the choice of the linear part and the local metrics are learned from as
    many queries as have 1.25 million cells; the coefficients of least squares from all.

    References
    ----------
    .. [1] Su, Y., PhD thesis on distributed distance learning, chapter 4, which extends
       Y. Su, I. King, M. Lyu. "Learning to Rank Using Localized Geometric Mean Metrics",
       SIGIR 2017.

    Examples
    --------
    >>> from skdml import LocalGMMLRanker
    >>> from skdml.datasets import make_ranking
    >>> X, y, qid = make_ranking(n_queries=150, n_documents=20, n_features=10, n_centers=1,
    ...                          random_state=0)
    >>> train, test = qid < 100, qid >= 100
    >>> ranker = LocalGMMLRanker(random_state=0).fit(X[train], y[train], qid=qid[train])
    >>> ranker.score(X[test], y[test], qid=qid[test]) > 0.7
    True
    """

    _parameter_constraints: dict = {
        "n_metrics": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions({"gaussian", "damped"})],
        "loss": [StrOptions({"lambda", "warp"})],
        "normalize": [StrOptions({"query", "column", "both"}), None],
        "linear": ["boolean"],
        "learn_anchors": ["boolean"],
        "learn_metrics": ["boolean"],
        "query_weights": [StrOptions({"shared", "per-query", "neighbours"})],
        "reg": [Interval(Real, 0, None, closed="left")],
        "gains": [StrOptions({"exponential", "linear"})],
        "cutoff": [Interval(Integral, 1, None, closed="left"), None],
        "margin": [Interval(Real, 0, None, closed="neither")],
        "initial_weight": [Interval(Real, 0, None, closed="neither")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    contributions_: dict[str, Any]
    coef_: NDArray
    support_: NDArray
    anchors_: NDArray
    metrics_: list[MahalanobisMetric]
    weights_: NDArray
    widths_: NDArray
    query_weights_: dict[Any, NDArray]
    history_: dict[str, list[float]]
    _linear: LinearPart | None
    _models: list[AnchorModel]
    _local_weight: float
    _missing: Missing
    _normalizer: Normalizer
    _documents: NDArray | None
    _weights: list[QueryWeights]

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self,
            *,
            qid: Request = None,
            sample_weight: Request = None,
            X_val: Request = None,
            y_val: Request = None,
            qid_val: Request = None,
        ) -> Self: ...
        def set_predict_request(self, *, qid: Request = None, query: Request = None) -> Self: ...
        def set_score_request(
            self, *, qid: Request = None, sample_weight: Request = None
        ) -> Self: ...

    def __init__(
        self,
        n_metrics: int = 2,
        kernel: str = "gaussian",
        loss: str = "lambda",
        normalize: str | None = "query",
        linear: bool = True,
        learn_anchors: bool = True,
        learn_metrics: bool = False,
        query_weights: str = "shared",
        reg: float = 0.01,
        gains: str = "exponential",
        cutoff: int | None = 10,
        margin: float = 1.0,
        initial_weight: float = 1.0,
        max_epochs: int = 60,
        early_stopping: bool = True,
        n_jobs: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.n_metrics = n_metrics
        self.kernel = kernel
        self.loss = loss
        self.normalize = normalize
        self.linear = linear
        self.learn_anchors = learn_anchors
        self.learn_metrics = learn_metrics
        self.query_weights = query_weights
        self.reg = reg
        self.gains = gains
        self.cutoff = cutoff
        self.margin = margin
        self.initial_weight = initial_weight
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        qid_val: ArrayLike | None = None,
    ) -> Self:
        """Learn to rank from graded documents.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_documents, n_features)
            The documents; cells may be missing (NaN). Sparse ones are made dense. A dask array is
            gathered: its chunks may split a query.
        y : array-like of shape (n_documents,)
            Their relevance, 0 or above; the grades need not be integers.
        qid : array-like of shape (n_documents,), default=None
            The query of each document, numbers or strings. The documents of a query need not be
            adjacent. None means that there is one query.
        sample_weight : array-like of shape (n_documents,), default=None
            How much each query counts, >= 0: the same for all documents of a query. A query of
            weight zero is as if it were not there. Without `qid` there is one query, and a weight
            is how often a document is in it, a whole number.
        X_val, y_val, qid_val : array-like, default=None
            Documents of other queries, for `early_stopping` and the weight of the local metrics.

        Returns
        -------
        self : LocalGMMLRanker
            The fitted estimator.
        """
        client = find_client(None, X)
        X = computed(X)
        given_X, given_y = X, y
        X, y, queries = self._check_documents(X, y, qid, reset=True)
        if qid is None:
            rows = _repeat_documents(X, y, sample_weight)
            X, y, sample_weight = X[rows], y[rows], None
            queries = group_rows(None, len(X), "qid")
        queries, weights = _check_weights(sample_weight, queries)
        self._missing = fit_missing(X)
        X = self._fill(X, queries)
        given = None
        if X_val is not None:
            given = self._check_documents(X_val, y_val, qid_val, suffix="_val")
            given = self._fill(given[0], given[2], "X_val"), *given[1:]
        elif y_val is not None or qid_val is not None:
            raise ValueError("y_val or qid_val was given without X_val: pass all of them.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        kept = np.flatnonzero(several_grades(y[queries.order], queries.starts))
        if len(kept) == 0:
            raise ValueError(
                "y: no query has documents of different relevance, so there is no order to learn."
            )
        sample = _draw_sample(queries.take(kept), X.shape[1], rng) if self.linear else kept
        if self.linear:
            sample = kept[sample]
        measure = Measure(self.gains, self.cutoff)
        drawn = queries.take(sample)
        normalizer, ranked = fit_normalizer(
            X, y, drawn, self.normalize, has_unit=self.kernel != "damped", measure=measure
        )
        if weights is not None:
            ranked = replace(ranked, weights=weights[sample] / weights[sample].mean())
        used = normalizer.used
        self.support_ = np.full(X.shape[1], True) if used is None else np.any(used, axis=0)
        self._normalizer = normalizer
        # Without qid, there is one query, and documents to be scored belong to it.
        self._documents = X.copy() if qid is None else None
        validation = None if given is None else _sort_validation(normalizer, measure, *given)
        n_trainings = N_FOLDS if self.linear and validation is None else 1
        with (
            FitProgress(
                self,
                total=self.max_epochs * n_trainings,
                X=given_X,
                y=given_y,
                description="epoch",
                qid=qid,
            ) as progress,
            limit_threads(1),  # the matrices are small
        ):
            if len(kept) < len(queries.ids):
                progress.note(
                    f"{len(queries.ids) - len(kept)} of {len(queries.ids)} queries have a single "
                    "grade of relevance and are left out of training."
                )
            self._linear = None
            self.coef_ = np.zeros((N_BASIS, X.shape[1]))
            if self.linear:
                all_sums = None
                if len(sample) < len(kept):
                    own = None if weights is None else weights[kept]
                    blocks = make_blocks(X, y, queries.take(kept), own, measure)
                    workers = {"n_jobs": self.n_jobs, "client": client}
                    all_sums = partial(sum_blocks, blocks, workers)
                self._linear = fit_linear(X[drawn.order], ranked, all_sums)
                self.coef_ = self._linear.coefficients
                ranked = replace(ranked, offsets=self._linear.held_out[ranked.origin])
            local = self._fit_local(ranked, validation, given, rng, progress, client)
            self.history_ = local.history
            self.__dict__.update(_attributes(local.models, local.weight))
            self.contributions_ = self._describe(local)
            if self._linear is not None:  # what only the fit needs
                empty = np.empty(0)
                self._linear = replace(self._linear, members=[], held_out=empty, folds=empty)
            if self.query_weights != "shared":
                # Without qid, the one query of predict is that of fit.
                ids = [None] if qid is None else drawn.ids.tolist()
                self._refine(ranked, ids, rng)
            if self.query_weights == "neighbours":
                centres = np.array([X[drawn.rows(q)].mean(axis=0) for q in range(len(drawn.ids))])
                scale = column_scale(X)
                self._weights = [
                    replace(one, centres=centres, scale=scale) for one in self._weights
                ]
        return self

    def _fit_local(self, ranked, validation, given, rng, progress, client):
        """Fit the local metrics, beside the linear part if there is one."""
        done: list[AnchorModel] = []

        def fit(training, held_out):
            model = self._build(training, rng, client)
            if self.linear:
                model = start_beside(model, training)
            held_out = held_out if self.early_stopping else None
            model, history = self._train(model, training, held_out, rng, progress, done)
            done.append(model)
            return model, history

        if self._linear is not None and validation is None and ranked.n_queries >= _MIN_QUERIES:
            return cross_fit(ranked, self._linear.folds, fit)
        if validation is None and not self.linear and self.early_stopping:
            ranked, validation = _hold_out(ranked, rng)
        if self._linear is not None and validation is not None:
            X, _, queries = given
            linear = self._linear.scores(X[queries.order], queries.starts)
            validation = replace(validation, offsets=linear[validation.origin])
        model, history = fit(ranked, validation)
        if not self.linear:
            return LocalPart([model], 1.0, {}, history)
        # Where nothing is held out, nobody knows whether local metrics help.
        weight, ndcg = 0.0, dict[str, float]()
        if validation is not None:
            weight, ndcg = choose_weight(model.scores(validation.features), validation)
        return LocalPart([model], weight, ndcg, history)

    def _describe(self, local):
        """Return `contributions_`."""
        if self._linear is None:
            return {}
        members = [member._asdict() for member in self._linear.members]
        best = {name: members[0][name] for name in ("views", "reg", "loss")}
        ndcg = local.ndcg or {"linear": members[0]["ndcg"], "sum": members[0]["ndcg"]}
        return {**ndcg, "weight": local.weight, **best, "members": members}

    def _refine(self, ranked, ids, rng):
        """Give training queries weights of their own."""
        ranked = replace(ranked, weights=1.0)
        options = {"margin": self.margin}
        own = [
            fit_query_weights(model, ranked, self.loss, self.max_epochs, rng, **options)
            for model in self._models
        ]
        self._weights = [
            QueryWeights(model.weights, dict(zip(ids, weights, strict=True)))
            for model, weights in zip(self._models, own, strict=True)
        ]
        phi = [m.phi_of(weights) for m, weights in zip(self._models, own, strict=True)]
        self.query_weights_ = dict(zip(ids, np.hstack(phi), strict=True))

    def _check_documents(self, X, y, qid, reset=False, suffix=""):
        hint = " Pass the relevance of each document."
        checks.check_given(y, type(self).__name__, hint, f"y{suffix}")
        least = 2 if reset else 1  # one document has no order
        X = self._check_rows(X, f"X{suffix}", reset=reset, ensure_min_samples=least)
        y = checks.check_grades(y, f"y{suffix}", len(X))
        return X, y, group_rows(qid, len(X), f"qid{suffix}")

    def _check_rows(self, X, name="X", **options):
        options = {"ensure_all_finite": "allow-nan", **options}
        return checks.as_dense(validate_rows(self, X, name, **options), name)

    def _fill(self, X, queries, name="X"):
        """Return documents without missing cells."""
        X = self._missing.fill(X, queries)
        checks.check_scale(X, name, exponent=_MOST_EXPONENT)
        return X

    def _build(self, training, rng, client):
        """Learn the local metrics; the "damped" kernel has no anti-ideal documents."""
        budget = _RANK_BUDGET if self.linear else RANK_BUDGET
        try:
            found = learn_local_metrics(
                training,
                self.n_metrics,
                self.reg,
                rng,
                self.kernel != "damped",
                budget,
                n_jobs=self.n_jobs,
                client=client,
            )
        except LinAlgError:
            raise ValueError(
                f"reg={self.reg} is too small to learn local metrics from these documents: "
                "some features do not vary among relevant ones. Raise reg."
            ) from None
        model = build_model(self.kernel, found, self.n_metrics, self.learn_metrics)
        start = self.initial_weight
        return replace(
            model,
            weights=np.full_like(
                model.weights, start if self.kernel == "damped" else np.log(start)
            ),
        )

    def _train(self, model, training, validation, rng, progress, done):
        learned = ["anchors"] if self.learn_anchors else []
        learned += ["factors"] if self.learn_metrics else []
        learned += ["widths"] if self.kernel == "gaussian" else []
        if not (self.kernel == "damped" and self.query_weights == "per-query"):
            learned.append("weights")  # the thesis has none that queries share
        if not learned:
            return model, {"loss": [], "seconds": []}

        def attributes(model):
            return _attributes([*done, model], 1.0)

        options = {"rng": rng, "progress": progress, "attributes": attributes}
        return train(
            model,
            training,
            validation,
            tuple(learned),
            self.loss,
            self.max_epochs,
            patience=_PATIENCE if self.linear else 10,
            margin=self.margin,
            **options,
        )

    def predict(
        self,
        X: MatrixLike,
        qid: ArrayLike | str | None = None,
        query: MatrixLike | None = None,
    ) -> NDArray:
        """Score documents; the higher, the more relevant to their query.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        qid : array-like of shape (n_documents,) or "single", default=None
            The query of each document; "single" says that all are of one query. It may be left out
            if `fit` had no qid either, and the documents are then seen beside those of `fit`, or
            with a `query` of one row.
        query : array-like of shape (1, n_features) or (n_documents, n_features), default=None
            The query itself as a document, one for all or one for each document: query by
            example. It then takes the place of the ideal documents and of the linear part, and
            the local metrics count as much as their ideal documents are near to it.

        Returns
        -------
        scores : ndarray of shape (n_documents,)
            Only their order within a query has a meaning.
        """
        X, queries, known, examples = self._check_asked(X, qid, query)
        scores = np.empty(len(X))
        with limit_threads(1):
            for chunk in queries.chunks(_CHUNK):
                scores[chunk.order] = self._score_chunk(X, chunk, known, examples)
        return _without_rounding_errors(scores)

    def explain(self, X: MatrixLike, qid: ArrayLike | str | None = None) -> Bunch:
        """Say what each feature and each ideal document adds to the scores of documents.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        qid : array-like of shape (n_documents,) or "single", default=None
            As in `predict`.

        Returns
        -------
        explanation : Bunch
            `features`, of shape (n_documents, n_features): what each feature adds through the
            linear part, less its mean in the query. `documents`, of shape (n_documents,
            n_anchors): what each of the `anchors_` adds, negative for a document near an
            anti-ideal one. The two, summed up, are the `scores`.
        """
        X, queries, known, _ = self._check_asked(X, qid, None)
        features = np.zeros((len(X), self.n_features_in_))
        documents = np.zeros((len(X), len(self.anchors_)))
        with limit_threads(1):
            for chunk in queries.chunks(_CHUNK):
                rows = chunk.order
                if self._linear is not None:
                    found = self._linear.by_feature(X[rows], chunk.starts, known)
                    features[rows] = self._missing.join(found)
                documents[rows] = self._explain_chunk(X, chunk, known)
        scores = features.sum(axis=1) + documents.sum(axis=1)
        return Bunch(features=features, documents=documents, scores=scores)

    def _check_asked(self, X, qid, query):
        """Return documents without missing cells, their queries, those of fit, and examples."""
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        examples = self._check_examples(query, len(X))
        known = None
        if isinstance(qid, str):
            if qid != "single":
                raise ValueError(f"qid must be an array or 'single', got {qid!r}.")
            qid = None
        elif qid is None and self._documents is not None:
            known = self._documents
        elif qid is None and (query is None or np.shape(query)[0] != 1):
            raise ValueError(
                f"{type(self).__name__} was fitted with qid, so that predict, score and explain "
                "need the query of each document: pass qid=, or qid='single' if all documents are "
                "of one query. After a grid search, whose predict takes no qid, call "
                "search.best_estimator_.predict(X, qid=qid)."
            )
        queries = group_rows(qid, len(X))
        if qid is None:  # not a query that has a name
            queries = replace(queries, ids=np.array([None], dtype=object))
        return self._fill(X, queries if known is None else None), queries, known, examples

    def _check_examples(self, query, n_rows):
        if query is None:
            return None
        options = {"accept_sparse": "csr", "dtype": np.float64, "ensure_2d": False}
        query = checks.check_named_array(query, "query", **options)
        query = checks.as_dense(query, "query")
        one, each = (1, self.n_features_in_), (n_rows, self.n_features_in_)
        if query.shape not in (one, each):
            raise ValueError(
                f"query has shape {query.shape}, expected {one} or {each}: one row for all "
                "documents or one for each."
            )
        return np.broadcast_to(query, each)

    def _score_chunk(self, X, chunk, known, examples):
        """Return the scores of whole queries, in the order of `chunk.order`."""
        place = self._normalizer.place
        if examples is not None:
            queries = [chunk.rows(number) for number in range(len(chunk.ids))]
            placed = [place(examples[q], X[q] if known is None else known) for q in queries]
            features, placed = self._features(X, chunk, known), np.concatenate(placed)
            return np.mean([m.scores_by_example(features, placed) for m in self._models], axis=0)
        scores = np.zeros(len(chunk.order))
        if self._linear is not None:
            scores += self._linear.scores(X[chunk.order], chunk.starts, known)
        if self._local_weight:
            features = self._features(X, chunk, known)
            weights = self._weights_of(X, chunk)
            local = [
                m.scores(features, weights=w) for m, w in zip(self._models, weights, strict=True)
            ]
            scores += self._local_weight * np.mean(local, axis=0)
        return scores

    def _features(self, X, chunk, known):
        if known is None:
            return self._normalizer.features(X, chunk)
        return self._normalizer.place(X[chunk.order], known)

    def _weights_of(self, X, chunk):
        return [one.of_rows(X, chunk, chunk.ids.tolist()) for one in self._weights]

    def _explain_chunk(self, X, chunk, known):
        """Return what each ideal document adds to scores of whole queries."""
        if not self._local_weight:
            return np.zeros((len(chunk.order), len(self.anchors_)))
        features = self._features(X, chunk, known)
        weights = self._weights_of(X, chunk)
        parts = [
            model.parts(features, model.weights if own is None else own)
            for model, own in zip(self._models, weights, strict=True)
        ]
        return np.hstack(parts) * (self._local_weight / len(parts))

    def score(
        self,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the mean NDCG of the queries that have a relevant document.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        y : array-like of shape (n_documents,)
            Their relevance, 0 or above.
        qid : array-like of shape (n_documents,) or "single", default=None
            As in `predict`.
        sample_weight : array-like of shape (n_documents,), default=None
            Weights of documents, >= 0; a query counts as the mean of its documents.

        Returns
        -------
        ndcg : float
            Between 0 and 1.
        """
        scores = self.predict(X, qid=qid)
        y = checks.check_grades(y, "y", len(scores))
        qid = None if isinstance(qid, str) else qid
        measure: dict[str, Any] = {"k": self.cutoff, "gains": self.gains}
        if sample_weight is None:
            return mean_ndcg(y, scores, qid, **measure)
        weight = checks.check_numbers(sample_weight, "sample_weight", len(scores))
        if (weight < 0).any():
            raise ValueError("sample_weight must not be negative.")
        names, ndcg = ndcg_by_query(y, scores, qid, **measure)
        codes = np.zeros(len(scores), int) if qid is None else np.searchsorted(names, qid)
        weight = np.bincount(codes, weight) / np.bincount(codes)
        counted = ~np.isnan(ndcg)
        if not weight[counted].any():
            raise ValueError(
                "sample_weight is zero for every query that has a relevant document: there is "
                "nothing to average."
            )
        return float(np.average(ndcg[counted], weights=weight[counted]))


def _attributes(models: list[AnchorModel], weight: float) -> dict[str, Any]:
    return {
        "_models": models,
        "_local_weight": weight,
        "_weights": [QueryWeights(model.weights) for model in models],
        "query_weights_": {},
        "anchors_": np.concatenate([model.anchors for model in models]),
        "metrics_": [metric for model in models for metric in model.metrics()],
        "weights_": np.concatenate([model.phi_of(model.weights) for model in models]),
        "widths_": np.concatenate([np.logaddexp(0, model.widths) for model in models]),
    }


def _repeat_documents(X: NDArray, y: NDArray, sample_weight: ArrayLike | None) -> NDArray:
    """Return the documents of the only query, as often as they count, in an order of their own."""
    # The same whatever the order of rows: a weight of 2 is the document twice.
    order = np.lexsort((*X.T, y))
    if sample_weight is None:
        return order
    weight = checks.check_numbers(sample_weight, "sample_weight", len(X))
    if (weight < 0).any() or (weight != np.round(weight)).any():
        raise ValueError(
            "sample_weight must be whole numbers, 0 or above, without qid: how often each document "
            "is in the only query. Pass qid for weights of queries."
        )
    if weight.sum() < 2:
        raise ValueError("sample_weight is zero for all documents, or for all but one.")
    checks.refuse_if_too_large(
        (int(min(weight.sum(), 2.0**60)), X.shape[1]),
        "sample_weight repeats documents",
        "Give smaller weights.",
    )
    return np.repeat(order, weight[order].astype(np.int64))


def _check_weights(
    sample_weight: ArrayLike | None, queries: Queries
) -> tuple[Queries, NDArray | None]:
    """Return the queries that count and their weights, None where all are the same."""
    if sample_weight is None:
        return queries, None
    weight = checks.check_numbers(sample_weight, "sample_weight", len(queries.order))
    if (weight < 0).any():
        raise ValueError("sample_weight must not be negative.")
    weight = weight[queries.order]
    first = weight[queries.starts[:-1]]
    differs = np.flatnonzero(weight != np.repeat(first, queries.sizes))
    if len(differs):
        name = queries.ids[queries.codes()[differs[0]]]
        raise ValueError(
            f"sample_weight differs among the documents of query {name}: a weight is that of a "
            "query, the same for all of its documents."
        )
    counted = np.flatnonzero(first)
    if not len(counted):
        raise ValueError("sample_weight is zero for every query: there is nothing to learn from.")
    weights = first[counted]
    return queries.take(counted), None if (weights == weights[0]).all() else weights


def _draw_sample(queries: Queries, n_features: int, rng: Any) -> NDArray:
    """Return queries in random order, as many as have a limited number of cells."""
    shuffled = rng.permutation(len(queries.ids))
    n_cells = np.cumsum(queries.sizes[shuffled]) * n_features
    return shuffled[: max(1, int(np.searchsorted(n_cells, _MAX_CELLS, side="right")))]


def _hold_out(ranked, rng):
    """Return the queries to train on, and those to choose the epoch by, or None."""
    n_held_out = int(_HELD_OUT * ranked.n_queries)
    if n_held_out < _MIN_HELD_OUT:
        return ranked, None
    shuffled = rng.permutation(ranked.n_queries)
    held_out, rest = shuffled[:n_held_out], shuffled[n_held_out:]
    return ranked.take(np.sort(rest)), ranked.take(np.sort(held_out))


def _sort_validation(normalizer, measure, X, y, queries):
    """Return the validation queries that a user gave."""
    features = normalizer.features(X, queries)
    validation, _ = sort_queries(features, y[queries.order], queries, measure)
    if validation.n_queries == 0:
        raise ValueError(
            "y_val: no query has documents of different relevance, so early_stopping has "
            "nothing to go by."
        )
    return validation


def _without_rounding_errors(scores):
    """Return the scores on a grid: equal documents tie, wherever a matrix product had them.

    The grid is relative to the score, from 1 upwards: one outlier does not coarsen the others.
    """
    grid = np.exp2(np.ceil(np.log2(np.maximum(np.abs(scores), 1.0))) - 36)
    return np.round(scores / grid) * grid
