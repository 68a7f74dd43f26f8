"""LocalGMMLRanker: learning to rank by distances to learned ideal documents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state

from ..linear import MahalanobisMetric
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import computed, find_client, limit_threads
from ..utils._sklearn import Interval, StrOptions
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ._anchor_model import (
    RANK_BUDGET,
    AnchorModel,
    QueryWeights,
    build_model,
    learn_local_metrics,
)
from ._document_ranker import DocumentRanker
from ._documents import (
    Measure,
    check_documents,
    check_query_weights,
    draw_training,
    fit_missing,
    gather_documents,
    group_rows,
    hold_out,
    repeat_documents,
    scan_documents,
    sort_queries,
    stays_on_workers,
)
from ._linear import fit_linear
from ._linear_refinement import make_blocks, refine
from ._local_gmml_training import LocalPart, choose_weight, fit_query_weights, start_beside, train
from ._views import N_BASIS, column_scale, fit_normalizer, sort_validation

_MIN_QUERIES = 10  # with fewer, none is held out
# Epochs without a lower loss after which training ends, beside a linear part.
_PATIENCE = 5
# Rank budget of the local metrics that are beside a linear part.
_RANK_BUDGET = 16


class LocalGMMLRanker(DocumentRanker):
    r"""Rank documents by a linear part and by distances to learned ideal documents.

    The linear part comes first: least squares on differences of documents of the same query, in
    closed form, and a listwise loss, on views of the features and products of two of them. What
    does well on queries that are held out counts. Local metrics learn what is left: a document is
    better if it is near an "ideal candidate document" and far from an anti-ideal one, each with a
    metric in closed form (GMML) from a group of queries whose relevant documents are alike:

    .. math:: f(p) = c^T v(p) + w \left( \log \sum_r \Phi_r e^{-\rho_r \|p - p_r\|^2_{M_r}}
              - \log \sum_r \Psi_r e^{-\sigma_r \|p - a_r\|^2_{N_r}} \right)

    with views v, ideal documents p, their metrics M, and anti-ideal documents a, their metrics N.
    The weight w is chosen on queries held out, and is zero unless local metrics are clearly
    better than none. Read more in the :ref:`user guide <ranking>`.

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
        What the local metrics see. "query" replaces each feature by its z-score among the
        documents of the query, and leaves out features that do not correlate with the relevance;
        without linear part, or if that has ranks, by its rank where that correlates more. "column"
        divides each feature by its norm over the training documents, "both" does both, None leaves
        it alone.
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
        the training queries: a quarter, or a fifth if `linear` is false. With fewer than 10
        queries none is held out.
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
        The coefficients of the linear part: z-score, rank, value, hinges of z-scores; zeros if
        `linear` is false. Features with missing cells have an indicator, which is on the right.
    interactions_ : ndarray of shape (2 * n_linear_features, 2 * n_linear_features)
        The coefficients of products of z-scores (first) and values (then) of two features,
        symmetric; zeros where there are none.
    support_ : ndarray of shape (n_linear_features,), dtype=bool
        The features that the local metrics use.
    anchors_ : ndarray of shape (n_anchors, n_normalized_features)
        The ideal documents, then the anti-ideal ones, as normalised features.
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
        their "ndcg" with the linear part, and the "seconds" since the start of training.
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
    many queries as have 1.25 million cells; the linear part is then refined by all.

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
    interactions_: NDArray
    support_: NDArray
    metrics_: list[MahalanobisMetric]
    weights_: NDArray
    widths_: NDArray
    query_weights_: dict[Any, NDArray]
    history_: dict[str, list[float]]

    if TYPE_CHECKING:  # scikit-learn makes it from the signature, for metadata routing

        def set_fit_request(
            self,
            *,
            qid: Request = None,
            sample_weight: Request = None,
            X_val: Request = None,
            y_val: Request = None,
            qid_val: Request = None,
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
            The documents; cells may be missing (NaN). Sparse ones are made dense. Of a dask
            array with more than 1.25 million cells, queries drawn at random are gathered, and the
            workers see the rest; a smaller one is gathered. Its chunks may split a query.
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
        is_large = qid is not None and self.linear and stays_on_workers(X)
        given_X, given_y = X if is_large else computed(X), y
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        open_documents = self._open_large if is_large else self._open
        opened = open_documents(given_X, y, qid, sample_weight, rng)
        X, y, drawn, weights = opened.sample
        measure, n_kept = Measure(self.gains, self.cutoff), len(opened.everything[2].ids)
        given = None
        if X_val is not None:
            given = check_documents(self, X_val, y_val, qid_val, suffix="_val")
            given = self._missing.fill(given[0], given[2], "X_val"), *given[1:]
        elif y_val is not None or qid_val is not None:
            raise ValueError("y_val or qid_val was given without X_val: pass all of them.")
        # Without qid, there is one query, and documents to be scored belong to it.
        self._documents = X.copy() if qid is None else None
        validation = None
        with (
            FitProgress(
                self,
                total=self.max_epochs,
                X=given_X,
                y=given_y,
                description="epoch",
                qid=qid,
            ) as progress,
            limit_threads(1),  # the matrices are small
        ):
            if n_kept < opened.n_queries:
                progress.note(
                    f"{opened.n_queries - n_kept} of {opened.n_queries} queries have a single "
                    "grade of relevance and are left out of training."
                )
            self._linear = None
            self.coef_ = np.zeros((N_BASIS, X.shape[1]))
            self.interactions_ = np.zeros((2 * X.shape[1], 2 * X.shape[1]))
            own: dict[str, Any] = {}  # of the queries
            if weights is not None:
                own["weights"] = weights / weights.mean()
            if self.linear:
                rows = drawn.order
                ranked, _ = sort_queries(np.empty((len(rows), 0)), y[rows], drawn, measure)
                self._linear = fit_linear(X[rows], replace(ranked, **own), self.n_jobs)
                if len(drawn.ids) < n_kept:
                    all_X, all_y, kept, counted = opened.everything
                    blocks = make_blocks(all_X, all_y, kept, counted, measure, self._missing)
                    workers = {"n_jobs": self.n_jobs, "client": client}
                    self._linear = refine(self._linear, blocks, len(drawn.ids), **workers)
                self.coef_ = self._linear.coefficients
                if self._linear.interactions is not None:
                    self.interactions_ = self._linear.interactions
                own["offsets"] = self._linear.held_out[ranked.origin]
            self._normalizer, ranked = fit_normalizer(
                X,
                y,
                drawn,
                self.normalize,
                has_unit=self.kernel != "damped",
                # sorted features make scoring slow: only where the linear part has them, too
                ranks=not self.linear or bool(self.coef_[1].any()),
                measure=measure,
            )
            ranked = replace(ranked, **own)
            used = self._normalizer.used
            self.support_ = np.full(X.shape[1], True) if used is None else np.any(used, axis=0)
            if given is not None:
                validation = sort_validation(self._normalizer, measure, *given)
            local = self._fit_local(ranked, validation, given, rng, progress, client)
            self.history_ = local.history
            self.__dict__.update(_attributes(local.model, local.weight))
            self.contributions_ = {}
            if self._linear is not None:
                self.contributions_ = local.contributions(self._linear.members)
                empty = np.empty(0)  # what only the fit needs
                self._linear = replace(self._linear, members=[], held_out=empty, folds=empty)
            if self.query_weights != "shared":
                # Without qid, the one query of predict is that of fit.
                ids = [None] if qid is None else drawn.ids.tolist()
                self._refine(ranked, ids, rng)
            if self.query_weights == "neighbours":
                centres = np.array([X[drawn.rows(q)].mean(axis=0) for q in range(len(drawn.ids))])
                self._weights = replace(self._weights, centres=centres, scale=column_scale(X))
        return self

    def _open(self, X, y, qid, sample_weight, rng):
        """Check documents in memory, and draw the queries that are learned from."""
        X, y, queries = check_documents(self, X, y, qid, reset=True)
        if qid is None:
            rows = repeat_documents(X, y, sample_weight)
            X, y, sample_weight = X[rows], y[rows], None
            queries = group_rows(None, len(X), "qid")
        queries, weights = check_query_weights(sample_weight, queries)
        self._missing = fit_missing(X)
        X = self._missing.fill(X, queries)
        return draw_training(X, y, queries, weights, X.shape[1] if self.linear else 0, rng)

    def _open_large(self, X, y, qid, sample_weight, rng):
        """Do the same for a dask array, of which the drawn queries are gathered."""
        y, queries, columns = scan_documents(self, X, y, qid)
        queries, weights = check_query_weights(sample_weight, queries)
        opened = draw_training(X, y, queries, weights, X.shape[1] + len(columns), rng)
        _, _, drawn, weights = opened.sample
        rows, self._missing = gather_documents(self, X, drawn.order, columns)
        y, drawn = y[drawn.order], drawn.in_order()
        return opened._replace(sample=(self._missing.fill(rows, drawn), y, drawn, weights))

    def _fit_local(self, ranked, validation, given, rng, progress, client):
        """Fit the local metrics, beside the linear part if there is one."""
        if self._linear is None:
            if validation is None and self.early_stopping:
                ranked, validation = hold_out(ranked, rng)
        elif validation is not None:
            X, _, queries = given
            linear = self._linear.scores(X[queries.order], queries.starts)
            validation = replace(validation, offsets=linear[validation.origin])
        elif ranked.n_queries >= _MIN_QUERIES:
            # the first fold: the offsets are those of a ranker that has not seen the query
            first = self._linear.folds[1]
            numbers = np.arange(ranked.n_queries)
            ranked, validation = ranked.take(numbers[first:]), ranked.take(numbers[:first])
        model = self._build(ranked, rng, client)
        if self.linear:
            model = start_beside(model, ranked)
        watched = validation if self.early_stopping else None
        model, history = self._train(model, ranked, watched, rng, progress)
        if not self.linear:
            return LocalPart(model, 1.0, {}, history)
        # Where nothing is held out, nobody knows whether local metrics help.
        weight, ndcg = 0.0, dict[str, float]()
        if validation is not None:
            weight, ndcg = choose_weight(model.scores(validation.features), validation)
        return LocalPart(model, weight, ndcg, history)

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
        start = self.initial_weight if self.kernel == "damped" else np.log(self.initial_weight)
        return replace(model, weights=np.full_like(model.weights, start))

    def _train(self, model, training, validation, rng, progress):
        learned = ["anchors"] if self.learn_anchors else []
        learned += ["factors"] if self.learn_metrics else []
        learned += ["widths"] if self.kernel == "gaussian" else []
        if not (self.kernel == "damped" and self.query_weights == "per-query"):
            learned.append("weights")  # the thesis has none that queries share
        if not learned:
            return model, {"loss": [], "seconds": []}
        options: dict[str, Any] = {"patience": _PATIENCE if self.linear else 10}
        options |= {"attributes": partial(_attributes, weight=1.0), "progress": progress}
        options |= {"margin": self.margin, "rng": rng}
        data = model, training, validation, tuple(learned), self.loss, self.max_epochs
        return train(*data, **options)

    def _refine(self, ranked, ids, rng):
        """Give training queries weights of their own."""
        ranked, model = replace(ranked, weights=1.0), self._model
        options = {"margin": self.margin}
        own = fit_query_weights(model, ranked, self.loss, self.max_epochs, rng, **options)
        self._weights = QueryWeights(model.weights, dict(zip(ids, own, strict=True)))
        self.query_weights_ = dict(zip(ids, model.phi_of(own), strict=True))


def _attributes(model: AnchorModel, weight: float) -> dict[str, Any]:
    return {
        "_model": model,
        "_local_weight": weight,
        "_weights": QueryWeights(model.weights),
        "query_weights_": {},
        "anchors_": model.anchors,
        "metrics_": model.metrics(),
        "weights_": model.phi_of(model.weights),
        "widths_": np.logaddexp(0, model.widths),
    }
