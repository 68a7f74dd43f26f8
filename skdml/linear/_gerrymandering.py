"""NeighborhoodGerrymandering: the metric under which sets of neighbours vote right."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from ..asymmetric._asymmetric_solver import (
    Problem,
    Training,
    check_costs,
    check_feasible,
    find_voters,
    hold_out,
    train,
)
from ..asymmetric._maps import LinearMaps, initial_map
from ..utils._fit import FitProgress, fit_method
from ..utils._sklearn import Interval
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import check_given, check_varies, encode_classes
from ._ditml import DITMLTransformer
from ._mahalanobis import MahalanobisMetric
from ._rows import RowMetricLearner

# Rows that are queries; all rows that are drawn are the database.
_MOST_QUERIES = 5000
# Database rows that a query is compared with between two searches, for few neighbours.
_N_CANDIDATES = 64


class NeighborhoodGerrymandering(RowMetricLearner):
    r"""One metric for nearest neighbours, learned from sets of neighbours and their votes.

    For every row x, the nearest set of k other rows that its class wins must be nearer, by a
    margin, than any set that another class wins. With the sum of squared distances
    :math:`S(x, h) = \sum_{z \in h} \|L x - L z\|^2` of a set h, the loss of a row of class y is

    .. math:: \min_{h \text{ that } y \text{ wins}} S(x, h)
              - \min_{h} \left[S(x, h) - \Delta(y, h)\right],

    where :math:`\Delta` is 1 for sets that another class wins or ties, else 0. Training starts from
    X as it is and from the metric of `DITMLTransformer`; rows that are held out choose among all
    steps, and X as it is where none is better. Read more in the
    :ref:`user guide <gerrymandering>`.

    Parameters
    ----------
    n_neighbors : int, default=5
        k, the number of neighbours that vote. Equal rows of a class are one row: fewer vote where
        every class has fewer distinct rows.
    n_components : int, default=None
        Rows of L, the columns of what `transform` returns; training starts from the principal
        axes of X then. None keeps all.
    C : float, default=1.0
        What the losses of all rows count beside the norm of the metric: the smaller, the more
        regularisation.
    max_iter : int, default=15
        Iterations at most: each is two passes over the queries, or more where they are few, and
        a search for their nearest rows.
    lr : float, default=0.01
        The learning rate of Adam at the beginning, in units of the root mean square of the
        entries of L. It falls to zero along a cosine, and is halved after an iteration that does
        not lower the objective.
    tol : float, default=1e-4
        Stop when the objective has not fallen by this share of it in 5 iterations.
    validation_fraction : float or None, default=0.2
        The share of the rows of each class that are not trained on. Of all iterations the metric
        is kept whose votes for these rows are best, X as it is where none is better, and
        training stops after 5 iterations without better ones. None trains on all rows and keeps
        the last metric.
    n_jobs : int, default=None
        Workers that search neighbours, as in joblib.
    random_state : int, RandomState instance or None, default=None
        Seeds the choice and the order of the rows.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric, in units in which the metric of the start is the identity.
    components_ : ndarray of shape (n_components, n_features)
        L: `transform` returns ``X @ components_.T``.
    history_ : dict of str to list
        At the start and after each iteration: "objective", exact, of the queries that are trained
        on; "validation", the share of wrong votes for held-out rows, or for all queries if none
        are held out; "seconds" since the start of training. The objective never rises.
    n_iter_ : int
        Iterations.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    GMMLTransformer : One linear metric, in closed form.
    AsymmetricMetricClassifier : The same loss with a map for queries and one for the database.
    sklearn.neighbors.NeighborhoodComponentsAnalysis : Learns a linear map by gradient ascent on
        a soft nearest-neighbour accuracy.

    Notes
    -----
    Equal rows of a class are one row with a weight. Of more than 10,000 rows, as many are drawn,
    and of more than 5,000, as many are queries.

    References
    ----------
    .. [1] S. Trivedi, D. McAllester, G. Shakhnarovich. "Discriminative metric learning by
       neighborhood gerrymandering", NIPS 2014.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import NeighborhoodGerrymandering
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), NeighborhoodGerrymandering(random_state=0),
    ...                       KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: dict = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "C": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    history_: dict[str, list[float]]
    n_iter_: int

    if TYPE_CHECKING:

        def set_fit_request(  # type: ignore[override]
            self, *, sample_weight: Request = None
        ) -> Self: ...

    def __init__(
        self,
        n_neighbors: int = 5,
        n_components: int | None = None,
        C: float = 1.0,
        max_iter: int = 15,
        lr: float = 0.01,
        tol: float = 1e-4,
        validation_fraction: float | None = 0.2,
        n_jobs: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.C = C
        self.max_iter = max_iter
        self.lr = lr
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric from class labels.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,)
            Their classes, numbers or strings.
        sample_weight : array-like of shape (n_samples,), default=None
            What the loss of each row counts, and the vote for it where it is held out; a weight
            of 0 is the same as no row. As a neighbour, a row has one vote.

        Returns
        -------
        self : NeighborhoodGerrymandering
            The fitted estimator.
        """
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        given = X
        X, codes, weights, k = self._draw_training(X, y, sample_weight)
        span = self._find_span(X, weights)
        # A unit that C and lr can rely on.
        squared = np.sum(span.coordinates**2, axis=1)
        rows = span.coordinates / np.sqrt(np.average(squared, weights=weights))
        n_components = self.n_components or span.rank
        problem = self._make_problem(rows, codes, weights, k, rng)
        starts = [initial_map("pca", rows, n_components)]
        is_judged = problem.held_out.any()
        if is_judged:
            starts += self._find_starts(starts[0], problem, weights)
        unit = np.linalg.norm(starts[0][0])

        def find_metric(maps: LinearMaps) -> MahalanobisMetric:
            L = maps.U / unit
            scale = 1.0 if self.n_components is None else 0.0
            return span.metric(L.T @ L, scale, self.n_components, X.dtype)

        def attributes(maps: LinearMaps) -> dict[str, Any]:
            return {"metric_": find_metric(maps)}

        n_steps = len(starts) * self.max_iter
        with FitProgress(self, total=n_steps, X=given, y=y) as progress:
            found: list[Training] = []
            for start in starts:
                to_beat = found[0].vote_cost if found else np.inf
                maps = LinearMaps(start, start, symmetric=True)
                lr = self.lr * np.sqrt(np.mean(start**2))
                with np.errstate(over="ignore", invalid="ignore"):  # steps too long are an error
                    found.append(
                        train(maps, problem, lr, rng, progress, attributes, to_beat=to_beat)
                    )
            check_feasible(found[0].n_infeasible, problem)
            best = min(found, key=lambda training: training.vote_cost) if is_judged else found[0]
            # The best of many is better than the input by chance alone.
            gain = found[0].history["validation"][0] - best.vote_cost
            if is_judged and gain < best.vote_error:
                best.maps = LinearMaps(starts[0], starts[0], symmetric=True)
            self.metric_ = find_metric(best.maps)
            self.history_ = best.history
            self.n_iter_ = len(best.history["objective"]) - 1
        return self

    def _draw_training(self, X, y, sample_weight):
        """Return the rows to learn from, the numbers of their classes, their weights, and k."""
        check_given(y, type(self).__name__, " Pass the class of each row of X.")
        X = self._check_rows(X)
        codes = encode_classes(y, X.shape[0])[1]
        rows, weights, k = find_voters(
            X, codes, sample_weight, self.n_neighbors, self._n_candidates()
        )
        if len(rows) < X.shape[0] or weights is not None:
            X, codes = X[rows], np.unique(codes[rows], return_inverse=True)[1]
            check_varies(X)
        rows = self._draw_rows(X, codes)
        if len(rows) < X.shape[0]:
            X, weights = X[rows], None if weights is None else weights[rows]
            check_varies(X)
        return X, np.unique(codes[rows], return_inverse=True)[1], weights, k

    def _find_starts(self, plain, problem, weights):
        """Return ITML's map of the rows that are not held out, if it is not the plain one."""
        rest = np.ones(len(problem.database), dtype=bool)
        rest[problem.own_rows[problem.held_out]] = False
        rows, codes = problem.database[rest], problem.labels[rest]
        weights = None if weights is None else weights[rest]
        learner = DITMLTransformer(tol=1e-3, n_components=self.n_components, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a start need not be exact
            try:
                A = learner.fit(rows, codes, sample_weight=weights).get_mahalanobis_matrix()
            except ValueError:  # too few rows, or equal ones
                return []
        if not learner.gamma_:
            return []
        eigenvalues, vectors = np.linalg.eigh(A)
        start = (vectors * np.sqrt(np.maximum(eigenvalues, 0))).T[::-1][: len(plain)]
        return [start * np.linalg.norm(rows @ plain.T) / np.linalg.norm(rows @ start.T)]

    def _n_candidates(self):
        return max(_N_CANDIDATES, 4 * self.n_neighbors)

    def _make_problem(self, rows, codes, weights, k, rng):
        """Return the problem whose queries are some of the rows, and whose database is all."""
        queries = np.arange(len(rows))
        if len(rows) > _MOST_QUERIES:
            queries = np.sort(rng.choice(len(rows), _MOST_QUERIES, replace=False))
        return Problem(
            rows[queries],
            codes[queries],
            rows,
            codes,
            same_rows=True,
            own_rows=queries,
            held_out=hold_out(codes[queries], self.validation_fraction, rng),
            costs=check_costs(None, int(codes.max()) + 1),
            n_neighbors=k,
            weights=None if weights is None else weights[queries],
            n_candidates=self._n_candidates(),
            **{name: getattr(self, name) for name in ("C", "max_iter", "tol", "n_jobs")},
        )
