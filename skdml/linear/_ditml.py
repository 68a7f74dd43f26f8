"""DITMLTransformer: information-theoretic metric learning, exact and at any dimension."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from ..utils._differences import PairDifferences
from ..utils._fit import FitProgress, Progress, fit_method
from ..utils._parallel import limit_threads
from ..utils._prior import check_prior
from ..utils._sklearn import Interval, StrOptions
from ..utils._supervision import weighted_median
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import naming
from ._base import LinearMetricLearner
from ._logdet import LogDetProblem
from ._newton import follow_gamma, solve_newton
from ._projections import solve_parallel, solve_sequential
from ._selection import TrainingPairs
from ._span import Span
from ._stream import PairStream, kept_multipliers

SOLVERS = {
    "newton": solve_newton,
    "parallel": solve_parallel,
    "sequential": solve_sequential,
}
# Random pairs of rows whose squared distances give the percentiles.
_BOUND_SAMPLE = 5000
# Up to this many pairs, `parallel` keeps its path to report the divergence to the optimum.
_MOST_RECORDED = 20_000
# Local pairs times squared dimensions: what a pass over the pairs costs.
_MOST_NUMBERS = 1_000_000_000
# With gamma=inf and bounds that cannot be met, the dual grows without end.
_UNBOUNDED = 1e8


class DITMLTransformer(LinearMetricLearner):
    r"""Information-theoretic metric learning (ITML), solved exactly at any dimension.

    Finds the metric nearest to a prior, in the sense of the LogDet divergence, under which
    similar pairs are nearer than a bound u and dissimilar pairs farther than a bound l; bounds
    that cannot be met are relaxed at a price of `gamma`. The dual of the problem is smooth and
    concave, and is solved to optimality: `duality_gap_` certifies it. Read more in the
    :ref:`user guide <ditml>`.

    Parameters
    ----------
    gamma : float or "auto", default="auto"
        Price of relaxing a bound. Small values stay near the prior, large values follow the
        pairs; inf allows no relaxation at all, and is an error where no metric meets the bounds.
        "auto" follows the metric from the prior to strong ones and takes what is best on rows
        that are held out, or the prior itself where nothing is better.
    pairs : {"auto", "local", "random"}, default="auto"
        Which pairs to draw from `y`: rows with their nearest rows of the same class and of
        others, found again under the learned metric in a few rounds, or any rows. "auto" is
        "local", but for ``select="classes"``, where random pairs do better. Not used when `fit` is
        given pairs.
    select : {"samples", "classes"}, default="samples"
        What is held out by "auto": a third of the rows, for use on the same classes, or a third
        of the classes, for search among classes that are not in `y`. Given pairs are held out as
        pairs.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" scales rows to unit length before and after the map: for vectors that come from
        a network, whose columns should not be scaled.
    n_constraints : int, default=None
        About how many pairs to draw from `y`. None takes up to ten per row, fewer in many
        dimensions; at least 1,000, or 20 per row where that is less.
    bound_percentiles : tuple of two floats or "median", default=(5, 95)
        Percentiles of the squared distances of random pairs of rows under the prior, used as u
        and l. "median" gives every pair its own bound: the median of the pairs, or its own
        distance where that asks for more.
    prior : {"identity", "covariance"} or array-like, default="identity"
        The metric to stay near: Euclidean distance, the distance whitened by the covariance of
        the rows, or a positive definite matrix of shape (n_features, n_features).
    solver : {"newton", "parallel", "sequential"}, default="newton"
        "newton" takes Newton steps on the dual, with the Hessian where that is small, otherwise
        by conjugate gradients, and needs the fewest rounds; "parallel" projects onto all pairs at
        once and takes a safe step; "sequential" projects onto one pair after the other, as the
        original ITML does. All reach the same metric.
    n_components : int, default=None
        The number of columns that `transform` returns: the directions along which the training
        rows vary most under the learned metric. None keeps all.
    max_iter : int, default=1000
        Most Newton steps, rounds or sweeps.
    tol : float, default=1e-6
        Stops when the KKT residual, the largest relative violation of the optimality
        conditions, is below.
    n_jobs : int, default=None
        Workers for the sums over pairs and features, as in joblib. Under joblib's "dask"
        backend, or with dask arrays and an active client, the cluster does the work.
    random_state : int, RandomState instance or None, default=None
        Seeds the drawing of pairs and of the sample for the bounds.
    verbose : int, default=0
        1 shows a progress bar on a terminal.
    warm_start : bool, default=False
        Whether `fit` starts from the multipliers of the last fit, for pairs of the same rows: it
        reaches the same metric, in fewer steps where pairs and `gamma` changed little.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric.
    gamma_ : float
        The gamma of the metric; 0 where the prior was best.
    path_ : dict of str to list
        With "auto": "round" of the pairs (0 is the prior), "gamma" and "score" of all candidates:
        the mean accuracy of 1 and 5 nearest neighbours of held-out rows, the mean of recall@1 and
        MAP@R of held-out classes, the ROC AUC of held-out pairs.
    dual_coef_ : ndarray of shape (n_pairs,)
        Multipliers of the pairs in `pairs_`; 0 for pairs that play no part.
    pairs_ : ndarray of shape (n_pairs, 2)
        The pairs that were used, as row indices; after `partial_fit` counted through all batches.
    pair_labels_ : ndarray of shape (n_pairs,)
        Their labels, +1 or -1.
    bounds_ : ndarray of shape (n_pairs,)
        Their bounds on squared distances.
    kkt_residual_ : float
        Largest relative violation of the optimality conditions.
    duality_gap_ : float
        The objective is at most this far above its optimum. Infinite for ``gamma=inf`` where a
        bound is violated at all.
    n_iter_ : int
        Newton steps, rounds or sweeps; 1 at least.
    stop_reason_ : str
        Why the solver stopped, in words.
    history_ : dict of str to list
        Per round: "value" of the dual, "kkt_residual", "seconds", with the solver "parallel" the
        "divergence" (Bregman divergence of the optimum to the round's metric), and on a cluster
        the "bytes" that were sent.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    GMMLTransformer : A metric from the same pairs in closed form, without bounds.

    Notes
    -----
    With fewer rows than features, the work is done in the span of the rows: memory is
    O(n_rows × n_features) and no n_features × n_features matrix is made.

    References
    ----------
    .. [1] Davis, J. V., Kulis, B., Jain, P., Sra, S. and Dhillon, I. S., "Information-theoretic
       metric learning", ICML 2007.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import DITMLTransformer
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), DITMLTransformer(random_state=0),
    ...                       KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    >>> model[1].duality_gap_ < 1e-4
    True
    """

    _parameter_constraints: dict = {
        **LinearMetricLearner._parameter_constraints,
        "gamma": [Interval(Real, 0, None, closed="right"), StrOptions({"auto"})],
        "bound_percentiles": [tuple, list, StrOptions({"median"})],
        "solver": [StrOptions(set(SOLVERS))],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "warm_start": ["boolean"],
    }

    _chosen = "gamma"
    _late = (
        "metric_", "dual_coef_", "kkt_residual_", "duality_gap_", "n_iter_", "stop_reason_",
        "history_",
    )  # fmt: skip
    _candidates = tuple(10.0 ** (e / 2) for e in range(-6, 3))
    _most_rank = 1000

    gamma_: float
    dual_coef_: NDArray
    pairs_: NDArray
    pair_labels_: NDArray
    bounds_: NDArray
    kkt_residual_: float
    duality_gap_: float
    n_iter_: int
    stop_reason_: str
    history_: dict[str, list[Any]]

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self,
            *,
            pairs: Request = None,
            pair_labels: Request = None,
            sample_weight: Request = None,
            pair_weight: Request = None,
            pair_similarity: Request = None,
            triplets: Request = None,
            bounds: Request = None,
        ) -> Self: ...

    def __init__(
        self,
        gamma: float | str = "auto",
        pairs: str = "auto",
        select: str = "samples",
        metric: str = "euclidean",
        n_constraints: int | None = None,
        bound_percentiles: str | Sequence[float] = (5, 95),
        prior: str | ArrayLike = "identity",
        solver: str = "newton",
        n_components: int | None = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
        n_jobs: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
        warm_start: bool = False,
    ) -> None:
        self.gamma = gamma
        self.pairs = pairs
        self.select = select
        self.metric = metric
        self.n_constraints = n_constraints
        self.bound_percentiles = bound_percentiles
        self.prior = prior
        self.solver = solver
        self.n_components = n_components
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        pair_similarity: ArrayLike | None = None,
        triplets: ArrayLike | None = None,
        bounds: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric from class labels or from pairs.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,), default=None
            Class labels, from which pairs are drawn. Ignored when `pairs` is given.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into X.
        pair_labels : array-like of shape (n_pairs,), default=None
            +1 for similar pairs, -1 for dissimilar ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows: a pair has the product of those of its two rows. A weight of 2 is
            the row twice, 0 is no row. Equal rows of a class always count as one row with the sum
            of their weights.
        pair_weight : array-like of shape (n_pairs,) or (n_triplets,), default=None
            Weights of `pairs` or `triplets`: 2 is the pair twice, 0 is no pair.
        pair_similarity : array-like of shape (n_pairs,), default=None
            How similar the pairs are, any numbers, in place of `pair_labels`: a pair above the mean
            is similar, one below dissimilar, and its weight is the distance to the mean, in units
            of the mean distance.
        triplets : array-like of shape (n_triplets, 3), default=None
            Row indices into X, in place of `pairs`: anchor, near row, far row. The anchor and the
            near row are a similar pair, the anchor and the far row a dissimilar one.
        bounds : array-like of two numbers (u, l), default=None
            Bounds on squared distances: similar pairs at most u, dissimilar pairs at least l.
            None takes them from `bound_percentiles`.

        Returns
        -------
        self : DITMLTransformer
            The fitted estimator.
        """
        percentiles = _check_percentiles(self.bound_percentiles)
        if bounds is not None:
            bounds = _check_bounds(bounds)
        supervision = self._supervise(
            X, y, pairs, pair_labels, sample_weight, pair_weight, pair_similarity, triplets
        )
        rng = check_random_state(self.random_state)
        before = None
        if vars(self).pop("_stream", None) is None and hasattr(self, "dual_coef_"):
            before = self.pairs_, self.pair_labels_, self.dual_coef_
        with FitProgress(self, X=X, y=y) as progress:
            training = self._prepare(supervision)
            span, scale = training.span, 1 / training.outside

            def make_metric(A):
                is_cosine = self.metric == "cosine"
                return span.metric(A, scale, self.n_components, supervision.X.dtype, is_cosine)

            with limit_threads(1 if span.rank < 1000 else None):
                root = None  # of the identity
                if not (isinstance(self.prior, str) and self.prior == "identity"):
                    root = training.prior_factor.T
                if bounds is None and percentiles != "median":
                    bounds = _sample_bounds(training, root, percentiles, rng)

                learn = functools.partial(
                    _learn, bounds=bounds, root=root, prior_inverse=training.prior_inverse
                )
                training, gamma = self._find_pairs(training, learn, rng)
                self.gamma_ = 0.0 if gamma is None else float(gamma)
                with training:
                    training, self.bounds_ = _find_bounds(training, root, bounds)
                    with training:
                        start = None
                        if self.warm_start and before is not None and self.gamma_:
                            start = kept_multipliers(before, training.pairs, training.labels)
                        A = self._solve(
                            training.differences, training.signed, self.bounds_,
                            training.prior_inverse, make_metric, progress, SOLVERS[self.solver],
                            start,
                        )  # fmt: skip
                self.pairs_, self.pair_labels_ = training.pairs, training.labels
                del training  # the prior is as large as A
                self.metric_ = make_metric(A)
        return self

    def _n_pairs(self, n_rows, rank):
        return min(20 * n_rows, max(1000, min(10 * n_rows, _MOST_NUMBERS // rank**2)))

    @fit_method
    def partial_fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        pairs: ArrayLike | None = None,
        pair_labels: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        bounds: ArrayLike | None = None,
    ) -> Self:
        """Learn from more pairs; equal to one `fit` to the pairs of all calls, with their bounds.

        The pairs of earlier calls stay, with their multipliers. The problem is solved when the
        metric is used, by Newton steps from these. After `fit`, the first call begins anew. The
        bounds are those of the first call, and ``gamma="auto"`` is chosen by its pairs.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows of this batch.
        y : array-like of shape (n_samples,), default=None
            Class labels, from which pairs among these rows are drawn: near ones under the metric
            so far, or random ones.
        pairs : array-like of shape (n_pairs, 2), default=None
            Row indices into this X.
        pair_labels, sample_weight, pair_weight : array-like, default=None
            As in `fit`. Batches after the first may have pairs of one kind.
        bounds : array-like of two numbers (u, l), default=None
            As in `fit`, for the first call. None takes them from `bound_percentiles` of its rows.

        Returns
        -------
        self : DITMLTransformer
            The fitted estimator.
        """
        stream, weights = vars(self).get("_stream"), (sample_weight, pair_weight)
        given = self._check_batch(X, y, pairs, pair_labels, *weights, stream is None)
        if stream is None:
            stream = self._begin_stream(given, bounds)
        elif bounds is not None and not np.array_equal(_check_bounds(bounds), stream.bounds):
            raise ValueError(f"bounds are those of the first call of partial_fit, {stream.bounds}.")
        stream = stream.join(given.X, given.pairs, given.signed)
        self._stream = stream
        self.pairs_, self.bounds_ = stream.pairs, stream.limits()
        self.pair_labels_ = np.sign(stream.signed).astype(np.int64)
        for name in self._late:
            vars(self).pop(name, None)
        return self

    def _finish(self):
        """Solve the problem of all batches, from the multipliers of the last solution."""
        stream, n_features = self._stream, self.n_features_in_
        prior = check_prior(self.prior, n_features)
        inverse = np.eye(n_features) if isinstance(prior, str) else np.linalg.inv(prior)
        span = Span(np.empty((0, n_features)), n_features, None, np.zeros(n_features))

        def make_metric(A):
            return span.metric(A, 1.0, None, stream.dtype)

        with limit_threads(1 if n_features < 1000 else None):
            A = self._solve(
                stream.pair_differences(), stream.signed, stream.limits(), inverse, make_metric,
                Progress(), solve_newton, stream.multipliers,
            )  # fmt: skip
        self._stream = replace(stream, multipliers=self.dual_coef_)
        self.metric_ = make_metric(A)

    def _begin_stream(self, given, bounds):
        """Return a stream without pairs, with bounds; sets `gamma_`."""
        percentiles = _check_percentiles(self.bound_percentiles)
        if bounds is None and percentiles == "median":
            raise ValueError(
                "bound_percentiles='median' needs all pairs at once: give partial_fit two "
                "percentiles, or bounds."
            )
        training = self._prepare(given)
        root = training.prior_factor.T
        if bounds is None:
            rng = check_random_state(self.random_state)
            bounds = np.array(_sample_bounds(training, root, percentiles, rng))
        else:
            bounds = _check_bounds(bounds)
        learn = functools.partial(
            _learn, bounds=bounds, root=root, prior_inverse=training.prior_inverse
        )
        self.gamma_ = float(self._choose_for_batch(training, learn))
        return PairStream.begin(bounds, given.X.shape[1], given.X.dtype)

    def _solve(
        self, differences, signed, bounds, prior_inverse, make_metric, progress, solve, start
    ):
        """Set the attributes of the solution, and return the metric in coordinates of the span."""
        moved = [differences.bytes_moved]
        gamma = self.gamma_ or 1.0

        def after_round(point):
            moved.append(differences.bytes_moved)
            if np.isinf(gamma) and point.value > _UNBOUNDED:
                raise ValueError(_INFEASIBLE)
            return progress.step(
                lambda: {"metric_": make_metric(point.metric)},
                kkt=f"{point.kkt_residual:.1e}",
                dual=f"{point.value:.6g}",
            )

        result = solve(
            _make_problem(differences, signed, bounds, gamma, prior_inverse),
            max_iter=self.max_iter if self.gamma_ else 0,
            tol=self.tol,
            before_round=progress.begin,
            callback=after_round,
            divergence=solve is solve_parallel and len(bounds) <= _MOST_RECORDED,
            start=start,
        )
        point = result.point
        if moved[-1]:
            result.history["bytes"] = np.diff(moved).tolist()
        self.kkt_residual_, self.duality_gap_ = point.kkt_residual, point.duality_gap
        self.stop_reason_ = result.stop_reason
        if not self.gamma_:  # the prior, which is the optimum without pairs
            self.kkt_residual_ = self.duality_gap_ = 0.0
            self.stop_reason_ = "the prior was best on what was held out"
        elif not result.converged:
            if np.isinf(gamma):
                raise ValueError(f"{_INFEASIBLE} (KKT residual {point.kkt_residual:.2g})")
            warnings.warn(
                f"solver {self.solver!r} stopped at a KKT residual of {point.kkt_residual:.2g}, "
                f"above tol={self.tol}: {result.stop_reason}. The duality gap is "
                f"{point.duality_gap:.2g}. Raise max_iter or tol, lower gamma, or use "
                "solver='newton'.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.dual_coef_ = point.multipliers
        self.n_iter_ = max(1, result.n_iter)
        self.history_ = result.history
        return point.metric


def _learn(rows, places, signed, gammas, start, bounds, root, prior_inverse):
    """Yield the factor of the metric for each gamma."""
    part = PairDifferences(rows, places)
    kept, limits = _pair_bounds(part.squared_norms(root), signed, bounds)
    part = PairDifferences(rows, places[kept])
    problem = _make_problem(part, signed[kept], limits, 1.0, prior_inverse)
    return follow_gamma(problem, gammas, start)


_INFEASIBLE = (
    "gamma=inf allows no relaxation, and no metric was found that meets all bounds: use a finite "
    "gamma, wider bounds or fewer pairs."
)


def _find_bounds(
    training: TrainingPairs, root: NDArray | None, bounds: Any
) -> tuple[TrainingPairs, NDArray]:
    """Return the pairs that differ at all, and the bound of each; `root` is that of the prior."""
    keep, limits = _pair_bounds(training.differences.squared_norms(root), training.signed, bounds)
    if keep.all():
        return training, limits
    n_dropped = np.sum(~keep & (training.signed != 0))
    if training.codes is None and n_dropped:
        warnings.warn(f"{n_dropped} of {len(keep)} pairs have zero difference and were dropped.")
    return training.with_pairs(training.places[keep], training.signed[keep]), limits


def _make_problem(differences, signed, bounds, gamma, prior_inverse):
    weights = np.abs(signed)
    return LogDetProblem(
        differences, np.sign(signed), bounds, gamma, prior_inverse,
        None if (weights == 1).all() else weights,
    )  # fmt: skip


def _pair_bounds(distances, signed, bounds):
    """Return which pairs differ at all, and the bounds of these; None are those by the median."""
    keep = (distances > 1e-14 * distances.max(initial=0)) & (signed != 0)
    distances, signed = distances[keep], signed[keep]
    is_similar = signed > 0
    for kind, has_any in (("similar", is_similar.any()), ("dissimilar", (~is_similar).any())):
        if not has_any:
            raise ValueError(
                f"no {kind} pair with a difference is left: X has equal rows in all of them."
            )
    if bounds is None:
        middle = weighted_median(distances, np.abs(signed))
        bounds = np.minimum(distances, middle), np.maximum(distances, middle)
    return keep, np.where(is_similar, *bounds)


def _sample_bounds(training, root, percentiles, rng):
    """Return percentiles of the squared distances of random pairs of rows under the prior."""
    n_rows, weights = len(training.span.coordinates), training.span.weights
    if weights is None:
        first = rng.randint(n_rows, size=_BOUND_SAMPLE)
        second = (first + rng.randint(1, n_rows, size=_BOUND_SAMPLE)) % n_rows
    else:  # rows paired with themselves are left out below
        shares = weights / weights.sum()
        first, second = rng.choice(n_rows, size=(2, _BOUND_SAMPLE), p=shares)
    with training.differences_of(np.column_stack([first, second])) as differences:
        seen = differences.squared_norms(root)
    seen = seen[seen > 1e-14 * seen.max()]
    if not len(seen):
        raise ValueError("no pair with a difference is left: X has equal rows in all of them.")
    upper, lower = np.percentile(seen, percentiles)
    if upper >= lower:
        raise ValueError(
            f"bound_percentiles={percentiles} give the same distance, {upper:.3g}, for both "
            "bounds: take percentiles further apart."
        )
    return upper, lower


def _check_percentiles(percentiles):
    if isinstance(percentiles, str):
        return percentiles
    ordered = len(percentiles) == 2 and all(isinstance(p, Real) for p in percentiles)
    if not ordered or not 0 <= percentiles[0] < percentiles[1] <= 100:
        raise ValueError(
            "bound_percentiles must be two percentiles (low, high) with 0 <= low < high <= 100, or "
            f"'median', got {percentiles!r}."
        )
    return percentiles


def _check_bounds(bounds):
    with naming("bounds"):
        values = np.asarray(bounds, dtype=float)
    values = values.ravel() if values.size == 2 else values
    if values.shape != (2,) or not np.isfinite(values).all() or not 0 < values[0] < values[1]:
        raise ValueError(
            "bounds must be (u, l) with 0 < u < l: similar pairs have a squared distance of at "
            f"most u, dissimilar pairs of at least l; got {bounds!r}."
        )
    return values
