"""MLKR: the metric under which near rows predict a number best."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import RegressorTags, check_random_state, column_or_1d

from ..utils._fit import FitProgress, fit_method
from ..utils._sklearn import Interval
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ..utils.validation import as_array, check_given, check_numbers, check_varies, naming
from ._base import _MOST_ROWS
from ._mahalanobis import MahalanobisMetric
from ._mlkr_solver import loss_and_gradient, scaled_start, train
from ._rows import RowMetricLearner, merge_weighted, principal_axes


class MLKR(RowMetricLearner):
    r"""Metric learning for kernel regression: the metric for targets that are numbers.

    A target is predicted as the mean of those of the other rows, weighted by a Gaussian kernel
    of the learned distance. The metric minimises the error of these predictions,

    .. math:: \sum_i (\hat y_i - y_i)^2, \qquad
              \hat y_i = \frac{\sum_{j \ne i} k_{ij} y_j}{\sum_{j \ne i} k_{ij}}, \qquad
              k_{ij} = \exp(-\|L x_i - L x_j\|^2).

    Read more in the :ref:`user guide <mlkr>`.

    Parameters
    ----------
    n_components : int, default=None
        Rows of L, the columns of what `transform` returns; training starts from the principal
        axes of X then. None keeps all.
    max_iter : int, default=500
        Steps of L-BFGS at most.
    tol : float, default=1e-6
        Stop when a step lowers the error by less than this share of it.
    random_state : int, RandomState instance or None, default=None
        Seeds the choice of rows.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric; the kernel is ``exp(-d**2)`` of its distances d.
    components_ : ndarray of shape (n_components, n_features)
        L: `transform` returns ``X @ components_.T``.
    history_ : dict of str to list
        At the start and after each step: "loss", the mean squared error of leave-one-out
        predictions in units of the variance of y; "seconds" since the start of training.
    n_iter_ : int
        Steps.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    LMNN : For targets that are classes.

    Notes
    -----
    Of more than 10,000 rows, as many are drawn: a step goes through all pairs of rows. Equal rows
    with equal targets are one row with a weight, which is left out as a whole.

    References
    ----------
    .. [1] K. Q. Weinberger, G. Tesauro. "Metric learning for kernel regression", AISTATS 2007.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import MLKR
    >>> X, y = make_friedman1(400, random_state=0)  # five columns of ten say nothing
    >>> model = make_pipeline(StandardScaler(), MLKR(random_state=0), KNeighborsRegressor())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.8
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
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
        n_components: int | None = None,
        max_iter: int = 500,
        tol: float = 1e-6,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags = RegressorTags()  # y is a number, though this is a transformer
        return tags

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric from targets that are numbers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts; a weight of 0 is the same as no row.

        Returns
        -------
        self : MLKR
            The fitted estimator.
        """
        check_given(y, type(self).__name__, " Pass the target of each row of X, a number.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        given, X = X, self._check_rows(X)
        X, values, weights = merge_weighted(X, check_targets(y, X.shape[0]), sample_weight)
        if np.ptp(values) == 0:
            raise ValueError("y is the same number for all rows that count.")
        if X.shape[0] > _MOST_ROWS:
            drawn = np.sort(rng.permutation(X.shape[0])[:_MOST_ROWS])
            X, values, weights = X[drawn], values[drawn], weights[drawn]
            check_varies(X)
        weights = weights / weights.mean()
        values = values - np.average(values, weights=weights)
        values /= np.sqrt(weights @ values**2) or 1.0
        span = self._find_span(X, weights)
        unit = np.sqrt(np.average(np.sum(span.coordinates**2, axis=1), weights=weights))
        rows = span.coordinates / unit
        axes = principal_axes(rows, self.n_components, weights)
        start = scaled_start(axes, rows, values, rng, weights)
        # Outside the span, the metric is that of the start.
        outside = float(np.linalg.norm(start, axis=1).max()) / unit

        def find_metric(L: NDArray) -> MahalanobisMetric:
            return span.metric(L.T @ L / unit**2, outside**2, self.n_components, X.dtype)

        with FitProgress(self, total=self.max_iter, X=given, y=y) as progress:
            progress.begin()
            n_left = [self.max_iter]

            def visit(L: NDArray, loss: float) -> bool:
                stop = progress.step(lambda: {"metric_": find_metric(L)}, loss=loss)
                n_left[0] -= 1
                if n_left[0] and not stop:
                    progress.begin()
                return stop

            found = train(rows, values, start, self.max_iter, self.tol, visit, weights)
            self.metric_ = find_metric(found.map)
            self.history_ = found.history
            self.n_iter_ = len(found.history["loss"]) - 1
        if self.n_iter_ == self.max_iter and not found.converged:
            warnings.warn(
                f"MLKR did not converge in max_iter={self.max_iter} steps: increase max_iter or "
                "tol.",
                ConvergenceWarning,
            )
        return self

    def score(self, X: MatrixLike, y: ArrayLike) -> float:  # type: ignore[override]
        """Return R^2 of the regression of each row on the others, by the learned kernel.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,)
            Their targets.

        Returns
        -------
        r2 : float
            At most 1; 0 is that of the mean of y.
        """
        Z = self.transform(X)
        values = check_targets(y, len(Z))
        loss, _ = loss_and_gradient(np.eye(Z.shape[1]), Z, values)
        return 1 - loss / float(np.sum((values - values.mean()) ** 2))


def check_targets(y: Any, n_rows: int) -> NDArray[np.float64]:
    """Return numbers up to 1 that are not all the same; a column is flattened, with a warning."""
    with naming("y"):
        values = column_or_1d(as_array(y), warn=True)
    values = check_numbers(values, "y", n_rows)
    if values.min() == values.max():
        raise ValueError("y is the same number for all rows: there is nothing to learn from.")
    return values / np.abs(values).max()
