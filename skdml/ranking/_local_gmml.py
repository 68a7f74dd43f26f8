"""LocalGMMLRanker: learning to rank by distances to learned ideal documents."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..linear import MahalanobisMetric
from ..metrics import mean_ndcg, ndcg_by_query
from ..utils import validation as checks
from ..utils._bases import BaseEstimator
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import computed, find_client, limit_threads
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ._anchor_model import AnchorModel, QueryWeights, build_model, learn_local_metrics
from ._documents import Normalizer, column_scale, fit_normalizer, group_rows, sort_queries
from ._local_gmml_training import fit_query_weights, train

# Held out to choose the epoch where no validation queries are given.
_HELD_OUT = 0.2
_MIN_HELD_OUT = 2
# Documents may be of any scale up to 2 to this power.
_MOST_EXPONENT = 950
# Rows that are scored at a time, in whole queries.
_CHUNK = 2_000


class LocalGMMLRanker(EstimatorMixin, BaseEstimator):
    r"""Rank documents by distances to learned ideal documents, each in a metric of its own.

    A document is relevant if it is near an "ideal candidate document" and far from an anti-ideal
    one. Each of these has a local metric, learned in closed form (GMML) from a group of queries
    whose relevant documents are alike. The ideal documents themselves, their weights and widths
    are then learned to put the documents of every query into the right order:

    .. math:: f(p) = \log \sum_r \Phi_r e^{-\rho_r \|p - p_r\|^2_{M_r}}
              - \log \sum_r \Psi_r e^{-\sigma_r \|p - a_r\|^2_{N_r}}

    with ideal documents p, their metrics M, and anti-ideal documents a, their metrics N. Read more
    in the :ref:`user guide <ranking>`.

    Parameters
    ----------
    n_metrics : int, default=8
        The number of local metrics, each with an ideal document, and of as many anti-ideal ones.
    kernel : {"gaussian", "damped"}, default="gaussian"
        How distances become a score: as above, or as a sum of distances damped by their
        exponential, equation 4.12 of the thesis [1]_, which is not monotone in the distance and
        kept for comparison.
    loss : {"lambda", "warp"}, default="lambda"
        "lambda" is a pairwise logistic loss with pairs weighted by what a swap would change in
        NDCG; "warp" draws violators of a margin and weights them by their estimated rank.
    normalize : {"query", "column", "both"} or None, default="query"
        "query" replaces each feature by its z-score or its rank among the documents of the
        query, whichever correlates more with the relevance, and leaves out features that do not
        correlate with it. "column" divides each feature by its norm over the training documents,
        "both" does both, None leaves it alone.
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
    max_epochs : int, default=60
        Passes over the training queries at most.
    early_stopping : bool, default=True
        Stop when the loss on held-out queries has not fallen for 10 epochs, and keep the best
        epoch. The queries are `X_val` if given to `fit`, else a fifth of the training queries. With
        fewer than 10 queries none is held out.
    n_jobs : int, default=None
        Workers that learn local metrics, as in joblib. Under joblib's "dask" backend, or with
        dask arrays and an active client, the cluster does it, whole queries per task.
    random_state : int, RandomState instance or None, default=None
        Seeds groups, held-out queries, batches and violators.
    verbose : int, default=0
        1 shows a progress bar on a terminal, and how many queries are left out of training.

    Attributes
    ----------
    support_ : ndarray of shape (`n_features_in_`,), dtype=bool
        The features that are used.
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
        Per epoch: "loss", if queries were held out their "validation_loss" and their "ndcg" at
        10, and "seconds" since the start of training.
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
        "learn_anchors": ["boolean"],
        "learn_metrics": ["boolean"],
        "query_weights": [StrOptions({"shared", "per-query", "neighbours"})],
        "reg": [Interval(Real, 0, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    support_: NDArray
    anchors_: NDArray
    metrics_: list[MahalanobisMetric]
    weights_: NDArray
    widths_: NDArray
    query_weights_: dict[Any, NDArray]
    history_: dict[str, list[float]]
    _model: AnchorModel
    _normalizer: Normalizer
    _documents: NDArray | None
    _weights: QueryWeights

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self,
            *,
            qid: Request = None,
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
        n_metrics: int = 8,
        kernel: str = "gaussian",
        loss: str = "lambda",
        normalize: str | None = "query",
        learn_anchors: bool = True,
        learn_metrics: bool = False,
        query_weights: str = "shared",
        reg: float = 0.01,
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
        self.learn_anchors = learn_anchors
        self.learn_metrics = learn_metrics
        self.query_weights = query_weights
        self.reg = reg
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        qid_val: ArrayLike | None = None,
    ) -> Self:
        """Learn to rank from graded documents.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_documents, n_features)
            The documents. Sparse ones are made dense. A dask array is gathered: its chunks may
            split a query.
        y : array-like of shape (n_documents,)
            Their relevance, 0 or above; the grades need not be integers.
        qid : array-like of shape (n_documents,), default=None
            The query of each document, numbers or strings. The documents of a query need not be
            adjacent. None means that there is one query.
        X_val, y_val, qid_val : array-like, default=None
            Documents of other queries, for `early_stopping`.

        Returns
        -------
        self : LocalGMMLRanker
            The fitted estimator.
        """
        client = find_client(None, X)
        X = computed(X)
        given_X, given_y = X, y
        X, y, queries = self._check_documents(X, y, qid, reset=True)
        given = None
        if X_val is not None:
            given = self._check_documents(X_val, y_val, qid_val, suffix="_val")
        elif y_val is not None or qid_val is not None:
            raise ValueError("y_val or qid_val was given without X_val: pass all of them.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        normalizer, ranked, kept = fit_normalizer(
            X, y, queries, self.normalize, has_unit=self.kernel != "damped"
        )
        used = normalizer.used
        self.support_ = np.full(X.shape[1], True) if used is None else np.any(used, axis=0)
        self._normalizer = normalizer
        # Without qid, there is one query, and documents to be scored belong to it.
        self._documents = X.copy() if qid is None else None
        training, validation = ranked, None
        if self.early_stopping and given is not None:
            validation = _sort_validation(normalizer, *given)
        elif self.early_stopping:
            training, validation = _hold_out(ranked, rng)
        with (
            FitProgress(
                self, total=self.max_epochs, X=given_X, y=given_y, description="epoch", qid=qid
            ) as progress,
            limit_threads(1),  # the matrices are small
        ):
            if len(kept) < len(queries.ids):
                progress.note(
                    f"{len(queries.ids) - len(kept)} of {len(queries.ids)} queries have a single "
                    "grade of relevance and are left out of training."
                )
            model = self._build(training, rng, client)
            model, self.history_ = self._train(model, training, validation, rng, progress)
            self.__dict__.update(_attributes(model))
            if self.query_weights != "shared":
                own = fit_query_weights(model, ranked, self.loss, self.max_epochs, rng)
                # Without qid, the one query of predict is that of fit.
                ids = [None] if qid is None else queries.ids[kept].tolist()
                self._weights = QueryWeights(model.weights, dict(zip(ids, own, strict=True)))
                self.query_weights_ = dict(zip(ids, model.phi_of(own), strict=True))
            if self.query_weights == "neighbours":
                centres = np.array([X[queries.rows(q)].mean(axis=0) for q in kept])
                self._weights = replace(self._weights, centres=centres, scale=column_scale(X))
        return self

    def _check_documents(self, X, y, qid, reset=False, suffix=""):
        hint = " Pass the relevance of each document."
        checks.check_given(y, type(self).__name__, hint, f"y{suffix}")
        least = 2 if reset else 1  # one document has no order
        X = self._check_rows(X, f"X{suffix}", reset=reset, ensure_min_samples=least)
        y = checks.check_grades(y, f"y{suffix}", len(X))
        return X, y, group_rows(qid, len(X), f"qid{suffix}")

    def _check_rows(self, X, name="X", **options):
        X = checks.as_dense(validate_rows(self, X, name, dtype=np.float64, **options), name)
        checks.check_scale(X, name, exponent=_MOST_EXPONENT)
        return X

    def _build(self, training, rng, client):
        """Learn the local metrics; the "damped" kernel has no anti-ideal documents."""
        params = self.n_metrics, self.reg, rng, self.kernel != "damped"
        try:
            found = learn_local_metrics(training, *params, n_jobs=self.n_jobs, client=client)
        except LinAlgError:
            raise ValueError(
                f"reg={self.reg} is too small to learn local metrics from these documents: "
                "some features do not vary among relevant ones. Raise reg."
            ) from None
        return build_model(self.kernel, found, self.n_metrics, self.learn_metrics)

    def _train(self, model, training, validation, rng, progress):
        learned = ["anchors"] if self.learn_anchors else []
        learned += ["factors"] if self.learn_metrics else []
        learned += ["widths"] if self.kernel == "gaussian" else []
        if not (self.kernel == "damped" and self.query_weights == "per-query"):
            learned.append("weights")  # the thesis has none that queries share
        if not learned:
            return model, {"loss": [], "seconds": []}
        options = {"rng": rng, "progress": progress, "attributes": _attributes}
        return train(
            model, training, validation, tuple(learned), self.loss, self.max_epochs, **options
        )

    def predict(
        self, X: MatrixLike, qid: ArrayLike | None = None, query: MatrixLike | None = None
    ) -> NDArray:
        """Score documents; the higher, the more relevant to their query.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        qid : array-like of shape (n_documents,), default=None
            The query of each document. None means that there is one query: that of `fit`, if
            `fit` had no qid either, and the documents are then seen beside those of `fit`.
        query : array-like of shape (1, n_features) or (n_documents, n_features), default=None
            The query itself as a document, one for all or one for each document: query by
            example. It then takes the place of the ideal documents, and the local metrics count
            as much as their ideal documents are near to it.

        Returns
        -------
        scores : ndarray of shape (n_documents,)
            Only their order within a query has a meaning.
        """
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        queries = group_rows(qid, len(X)).by_size()
        examples = self._check_examples(query, len(X))
        scores = np.empty(len(X))
        with limit_threads(1):
            for chunk in queries.chunks(_CHUNK):
                scores[chunk.order] = self._score_chunk(X, chunk, qid is None, examples)
        return _without_rounding_errors(scores)

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

    def _score_chunk(self, X, chunk, unnamed, examples):
        """Return the scores of whole queries, in the order of `chunk.order`."""
        place, known = self._normalizer.place, self._documents if unnamed else None
        if known is None:
            features = self._normalizer.features(X, chunk)
        else:
            features = place(X[chunk.order], known)
        if examples is not None:
            queries = [chunk.rows(number) for number in range(len(chunk.ids))]
            placed = [place(examples[q], X[q] if known is None else known) for q in queries]
            return self._model.scores_by_example(features, np.concatenate(placed))
        ids = [None] if unnamed else chunk.ids.tolist()
        weights = self._weights.of_rows(X, chunk, ids)
        return self._model.scores(features, weights=weights)

    def score(
        self,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the mean NDCG at 10 of the queries that have a relevant document.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        y : array-like of shape (n_documents,)
            Their relevance, 0 or above.
        qid : array-like of shape (n_documents,), default=None
            The query of each document. None means that there is one query.
        sample_weight : array-like of shape (n_documents,), default=None
            Weights of documents, >= 0; a query counts as the mean of its documents.

        Returns
        -------
        ndcg : float
            Between 0 and 1.
        """
        scores = self.predict(X, qid=qid)
        y = checks.check_grades(y, "y", len(scores))
        if sample_weight is None:
            return mean_ndcg(y, scores, qid)
        weight = checks.check_numbers(sample_weight, "sample_weight", len(scores))
        if (weight < 0).any():
            raise ValueError("sample_weight must not be negative.")
        names, ndcg = ndcg_by_query(y, scores, qid)
        codes = np.zeros(len(scores), int) if qid is None else np.searchsorted(names, qid)
        weight = np.bincount(codes, weight) / np.bincount(codes)
        counted = ~np.isnan(ndcg)
        if not weight[counted].any():
            raise ValueError(
                "sample_weight is zero for every query that has a relevant document: there is "
                "nothing to average."
            )
        return float(np.average(ndcg[counted], weights=weight[counted]))


def _attributes(model: AnchorModel) -> dict[str, Any]:
    return {
        "_model": model,
        "_weights": QueryWeights(model.weights),
        "query_weights_": {},
        "anchors_": model.anchors,
        "metrics_": model.metrics(),
        "weights_": model.phi_of(model.weights),
        "widths_": np.logaddexp(0, model.widths),
    }


def _hold_out(ranked, rng):
    """Return the queries to train on, and those to choose the epoch by, or None."""
    n_held_out = int(_HELD_OUT * ranked.n_queries)
    if n_held_out < _MIN_HELD_OUT:
        return ranked, None
    shuffled = rng.permutation(ranked.n_queries)
    held_out, rest = shuffled[:n_held_out], shuffled[n_held_out:]
    return ranked.take(np.sort(rest)), ranked.take(np.sort(held_out))


def _sort_validation(normalizer, X, y, queries):
    """Return the validation queries that a user gave."""
    validation, _ = sort_queries(normalizer.features(X, queries), y[queries.order], queries)
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
