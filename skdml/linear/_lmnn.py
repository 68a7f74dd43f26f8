"""LMNN: near rows of the same class are drawn near, and rows of other classes kept away."""

from __future__ import annotations

import functools
from numbers import Integral, Real
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from ..asymmetric._asymmetric_solver import hold_out
from ..utils._fit import FitProgress, fit_method
from ..utils._neighbors import vote_hits
from ..utils._sklearn import Interval
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import check_given, check_row_labels, check_varies, encode_for_pairs
from ._lmnn_solver import train_passes
from ._mahalanobis import MahalanobisMetric
from ._rows import RowMetricLearner, merge_weighted, principal_axes


class LMNN(RowMetricLearner):
    r"""Large margin nearest neighbours: one metric for nearest neighbours, from class labels.

    Each row i has target neighbours j, the nearest rows of its class. They are drawn near, and
    rows l of other classes are to be farther away than they are, by a margin:

    .. math:: \mu \sum_{ij} d_{ij} + (1 - \mu) \sum_{ijl} [1 + d_{ij} - d_{il}]_+,
              \qquad d_{ij} = \|L x_i - L x_j\|^2.

    The targets are found again under the learned metric, in several passes; rows that are held
    out choose the number of passes, which may be none. Read more in the
    :ref:`user guide <lmnn>`.

    Parameters
    ----------
    n_neighbors : int, default=3
        Target neighbours of a row; fewer where its class has fewer.
    n_components : int, default=None
        Rows of L, the columns of what `transform` returns; training starts from the principal
        axes of X then. None keeps all.
    n_passes : int, default=3
        How often, at most, targets are found and L is trained. 1 is the problem of the paper.
    regularization : float, default=0.5
        What distances of targets count, :math:`\mu`, beside the margins.
    max_iter : int, default=100
        Steps of L-BFGS in a pass, at most.
    tol : float, default=1e-3
        A pass ends when a step lowers the loss by less than this share of it, on average.
    validation_fraction : float or None, default=0.2
        The share of the rows of each class that are held out first. The number of passes is that
        with the best votes for them, and all rows are trained on so often. None makes all passes.
    random_state : int, RandomState instance or None, default=None
        Seeds the choice of rows.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric; the margin is 1 in its squared distances.
    components_ : ndarray of shape (n_components, n_features)
        L: `transform` returns ``X @ components_.T``.
    validation_scores_ : ndarray of shape (n_passes + 1,)
        The share of right votes for held-out rows, before the first pass and after each. Only
        where rows are held out.
    n_passes_ : int
        Passes that were made with all rows. After 0, `transform` gives X but for a factor.
    history_ : dict of str to list
        At the start and after each search for impostors of the last training: "objective",
        exact; "pass", from 1; "seconds" since the start of the pass.
    n_iter_ : int
        Steps of the last training.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    NeighborhoodGerrymandering : From sets of neighbours and their votes.
    LFDA : In closed form, also from near rows of the same class.

    Notes
    -----
    Equal rows of a class are one row with a weight. Of more than 10,000 rows, as many are drawn.
    The loss has all impostors up to some 4,000
    rows, and the nearest thousands of each row beyond.

    References
    ----------
    .. [1] K. Q. Weinberger, L. K. Saul. "Distance metric learning for large margin nearest
       neighbor classification", JMLR 2009.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import LMNN
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LMNN(random_state=0), KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: dict = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_passes": [Interval(Integral, 1, None, closed="left")],
        "regularization": [Interval(Real, 0, 1, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    validation_scores_: NDArray
    n_passes_: int
    history_: dict[str, list[float]]
    n_iter_: int

    if TYPE_CHECKING:

        def set_fit_request(  # type: ignore[override]
            self, *, sample_weight: Request = None
        ) -> Self: ...

    def __init__(
        self,
        n_neighbors: int = 3,
        n_components: int | None = None,
        n_passes: int = 3,
        regularization: float = 0.5,
        max_iter: int = 100,
        tol: float = 1e-3,
        validation_fraction: float | None = 0.2,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.n_passes = n_passes
        self.regularization = regularization
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
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
            How often each row counts; a weight of 0 is the same as no row.

        Returns
        -------
        self : LMNN
            The fitted estimator.
        """
        check_given(y, type(self).__name__, " Pass the class of each row of X.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        given, X = X, self._check_rows(X)
        codes = encode_for_pairs(check_row_labels(y, X.shape[0]))
        X, codes, weights = merge_weighted(X, codes, sample_weight)
        if not _can_learn(codes):
            raise ValueError(
                "X and y leave nothing to learn from: two classes are needed, and one of them must "
                "have two different rows that count."
            )
        drawn = self._draw_rows(X, codes)
        if len(drawn) < X.shape[0]:
            X, weights = X[drawn], weights[drawn]
            check_varies(X)
            codes = np.unique(codes[drawn], return_inverse=True)[1]
        weights = weights / weights.mean()
        span = self._find_span(X, weights)
        unit = np.sqrt(np.average(np.sum(span.coordinates**2, axis=1), weights=weights))
        rows = span.coordinates / unit
        start = principal_axes(rows, self.n_components, weights)
        held_out = hold_out(codes, self.validation_fraction, rng)
        rest = ~held_out
        is_judged = held_out.any() and _can_learn(codes[rest])

        def find_metric(L: NDArray, scale: float) -> MahalanobisMetric:
            A, scale = L.T @ L / unit**2, (scale / unit) ** 2
            return span.metric(A, scale, self.n_components, X.dtype)

        n_steps = self.n_passes * (2 if is_judged else 1)
        with FitProgress(self, total=n_steps, X=given, y=y, description="pass") as progress:
            make_passes = functools.partial(
                train_passes,
                n_neighbors=min(self.n_neighbors, int(np.bincount(codes).max()) - 1),
                pull=self.regularization,
                max_iter=self.max_iter,
                tol=self.tol,
                progress=progress,
                attributes=lambda L: {"metric_": find_metric(L, 1.0)},
            )
            n_passes, found = self.n_passes, None
            if is_judged:
                found = make_passes(rows[rest], codes[rest], start, n_passes, weights=weights[rest])
                self.validation_scores_ = np.array(
                    [_vote_score(rows @ L.T, codes, held_out, weights) for L in found.maps]
                )
                n_passes = int(self.validation_scores_.argmax())
            if found is None or n_passes:
                found = make_passes(rows, codes, start, n_passes, weights=weights)
            self.n_passes_ = min(n_passes, len(found.maps) - 1)
            # Outside the span, the metric is that of the start.
            scale = float(np.linalg.norm(found.maps[0], axis=1).max())
            self.metric_ = find_metric(found.maps[self.n_passes_], scale)
            self.history_, self.n_iter_ = found.history, found.n_iter
        return self


def _can_learn(codes):
    """Tell whether there are two classes, one of them with two rows."""
    counts = np.bincount(codes)
    return np.count_nonzero(counts) > 1 and counts.max() > 1


def _vote_score(Z, codes, held_out, weights):
    """Return the share of right votes for held-out rows by the others."""
    rest = ~held_out
    hits = vote_hits(Z[held_out], codes[held_out], Z[rest], codes[rest])
    return float(np.average(hits.mean(axis=1), weights=weights[held_out]))
