"""RCA: the inverse of the covariance inside chunks of rows that belong together."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh

from ..utils._fit import FitProgress, fit_method
from ..utils._prior import ledoit_wolf_shrinkage
from ..utils._sklearn import Interval, StrOptions
from ..utils._typing import MatrixLike, Request
from ..utils.validation import check_given, check_row_labels, check_vector, encode_for_pairs
from ._rows import StrengthMixin, merge_weighted
from ._selection import N_FOLDS

LEAST_SHRINKAGE = 1e-6


class RCA(StrengthMixin):
    r"""Relevant component analysis: the metric that whitens what varies inside chunks of rows.

    The rows of a chunk belong together: they show the same thing, or are of one class. With C
    the covariance of all rows around the means of their chunks, shrunk to a multiple of the
    identity, the metric is

    .. math:: A = C^{-t}, \qquad C = (1 - s) \frac{1}{n} \sum_c \sum_{i \in c}
              (x_i - m_c)(x_i - m_c)^T + s \bar\sigma^2 I.

    With t = 1 it is the method of the paper; rows that are held out choose t, and 0, X as it is,
    where no other is better. Read more in the :ref:`user guide <rca>`.

    Parameters
    ----------
    n_components : int, default=None
        Keep so many directions: those along which rows vary most, compared with rows of the same
        chunk. None keeps all.
    shrinkage : float or "auto", default="auto"
        s, between 0 and 1; "auto" is the estimate of Ledoit and Wolf. 0 is the method of the
        paper, which needs more rows in chunks than features.
    strength : float or "auto", default="auto"
        t, between 0 and 1. "auto" is the one of 0, 0.25, 0.5, 0.75 and 1 with the best votes for
        rows that are held out; with `chunks`, six or more, the one under which rows of held-out
        chunks find each other best. A single chunk tells nothing apart: it is 1 then.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric.
    components_ : ndarray of shape (n_components, n_features)
        L with A = L'L: `transform` returns ``X @ components_.T``.
    shrinkage_ : float
        The shrinkage that was used.
    strength_ : float
        The strength that was used.
    path_ : dict of str to list
        "strength" and "score" of all candidates. Only with ``strength="auto"``.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    GMMLTransformer : Also takes into account which rows do not belong together.
    LFDA : Keeps apart what is far inside a class.

    References
    ----------
    .. [1] N. Shental, T. Hertz, D. Weinshall, M. Pavel. "Adjustment learning and relevant
       component analysis", ECCV 2002.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml import RCA
    >>> X = np.array([[0.0, 0.0], [2.0, 0.1], [9.0, 5.0], [7.0, 5.1], [3.0, 9.0]])
    >>> model = RCA(shrinkage=0.1, strength=1).fit(X, chunks=[0, 0, 1, 1, -1])
    >>> u, v, w = [0, 0], [2, 0], [0, 2]
    >>> metric = model.get_metric()
    >>> bool(metric(u, v) < metric(u, w))
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
        "strength": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
    }

    shrinkage_: float
    strength_: float

    if TYPE_CHECKING:

        def set_fit_request(  # type: ignore[override]
            self, *, chunks: Request = None, sample_weight: Request = None
        ) -> Self: ...

    def __init__(
        self,
        n_components: int | None = None,
        shrinkage: float | str = "auto",
        strength: float | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.shrinkage = shrinkage
        self.strength = strength

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        chunks: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric from chunks, or from classes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,), default=None
            Their classes, numbers or strings: each is one chunk. Not used where `chunks` is given.
        chunks : array-like of shape (n_samples,), default=None
            The number of each row's chunk, -1 for rows of none.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts; a weight of 0 is the same as no row.

        Returns
        -------
        self : RCA
            The fitted estimator.
        """
        given = X
        if chunks is None:
            hint = " Pass the class of each row of X, or their chunks with chunks=."
            check_given(y, type(self).__name__, hint)
        X = self._check_rows(X)
        if chunks is None:
            codes = encode_for_pairs(check_row_labels(y, X.shape[0]))
        else:
            codes = check_chunks(chunks, X.shape[0])
        X, codes, weights = merge_weighted(X, codes, sample_weight)
        with FitProgress(self, total=0, X=given, y=y):
            span = self._find_span(X, weights)
            inside = codes >= 0
            rows, weights = span.coordinates[inside], weights[inside]
            codes = np.unique(codes[inside], return_inverse=True)[1]
            sizes = self.n_components, span.n_features
            A, outside, self.shrinkage_ = whiten(rows, codes, weights, self.shrinkage, *sizes)

            def learn(rows, codes, weights):
                return whiten(rows, codes, weights, more_shrinkage(self.shrinkage), *sizes)[0]

            in_pairs, select = np.bincount(codes)[codes] > 1, "classes"
            if chunks is None or len(np.unique(codes[in_pairs])) < 2 * N_FOLDS:
                in_pairs, select = np.ones(len(rows), dtype=bool), "samples"
            parts = rows[in_pairs], codes[in_pairs], weights[in_pairs]
            self._choose_strength(*parts, learn, select)
            scale = 1 / outside if outside else 0.0
            self.metric_ = self._span_metric(span, A, scale, rows, weights, X.dtype)
        return self


def check_chunks(chunks: ArrayLike, n_rows: int) -> NDArray[np.int64]:
    """Return the number of each row's chunk from 0, -1 for rows of none."""
    chunks = check_vector(chunks, "chunks", n_rows)
    if chunks.dtype.kind not in "iu":
        raise TypeError(
            f"chunks must be integers, -1 for rows of no chunk, got dtype {chunks.dtype}."
        )
    if chunks.min() < -1:
        raise ValueError(f"chunks must be numbers from 0, or -1 for none; got {chunks.min()}.")
    codes = np.full(n_rows, -1)
    _, codes[chunks >= 0], counts = np.unique(
        chunks[chunks >= 0], return_inverse=True, return_counts=True
    )
    if counts.max(initial=0) < 2:
        raise ValueError("chunks has no chunk of two rows or more: there is nothing to learn from.")
    return codes


def whiten(
    rows: NDArray,
    codes: NDArray,
    weights: NDArray,
    shrinkage: Any,
    n_components: int | None,
    n_features: int,
) -> tuple[NDArray[np.float64], float, float]:
    """Return the metric that whitens groups of rows, and what `shrunk_covariance` returns.

    Parameters
    ----------
    rows, codes, weights : ndarray
        Rows in coordinates of their span, numbers of their groups, and their weights.
    shrinkage : float or "auto"
        Between 0 and 1.
    n_components : int or None
        Directions that are kept.
    n_features : int
        The dimension of the space around.

    Returns
    -------
    A : ndarray of shape (rank, rank)
        The metric.
    outside, shrinkage : float
        Of the covariance.
    """
    codes = np.unique(codes, return_inverse=True)[1]
    centred = centre_groups(rows, codes, weights) if len(rows) else rows
    if not np.any(centred):
        raise ValueError("X is the same in all rows of a chunk: there is nothing to learn from.")
    C = centred.T @ (weights[:, None] * centred) / weights.sum()
    C, outside, shrinkage = shrunk_covariance(centred, C, shrinkage, n_features, weights)
    return inner_metric(C, rows, n_components, weights), outside, shrinkage


def more_shrinkage(shrinkage: Any) -> Any:
    """Return the shrinkage for a part of the rows, whose covariance may be singular without."""
    return shrinkage if isinstance(shrinkage, str) else max(shrinkage, LEAST_SHRINKAGE)


def centre_groups(rows: NDArray, codes: NDArray, weights: NDArray) -> NDArray[np.float64]:
    """Return rows less the weighted mean of their group; groups are numbers from 0."""
    starts = np.append(0, np.bincount(codes).cumsum()[:-1])
    order = np.argsort(codes, kind="stable")
    sums = np.add.reduceat(weights[order, None] * rows[order], starts, axis=0)
    return rows - (sums / np.bincount(codes, weights)[:, None])[codes]


def shrunk_covariance(
    centred: NDArray, C: NDArray, shrinkage: Any, n_features: int, weights: NDArray
) -> tuple[NDArray[np.float64], float, float]:
    """Shrink a covariance to a multiple of the identity.

    Parameters
    ----------
    centred : ndarray of shape (n_rows, rank)
        Centred rows in coordinates of their span, from which "auto" estimates the shrinkage.
    C : ndarray of shape (rank, rank)
        The covariance.
    shrinkage : float or "auto"
        Between 0 and 1.
    n_features : int
        The dimension of the space around.
    weights : ndarray of shape (n_rows,)
        Of the rows.

    Returns
    -------
    C : ndarray of shape (rank, rank)
        The shrunk covariance.
    outside : float
        Its eigenvalue outside the span.
    shrinkage : float
        That was used.

    Raises
    ------
    ValueError
        If the covariance is singular.
    """
    if isinstance(shrinkage, str):
        moment = centred.T @ (weights[:, None] * centred)
        shrinkage, _ = ledoit_wolf_shrinkage(centred, moment, n_features, weights)
        # A little more where the estimate shrinks nothing: a constant feature is no failure.
        shrinkage = max(shrinkage, LEAST_SHRINKAGE)
    outside = float(shrinkage * np.trace(C) / n_features)
    C = (1 - shrinkage) * C
    C[np.diag_indices_from(C)] += outside
    if _is_singular(C) or (len(C) < n_features and not outside):
        raise ValueError(
            f"shrinkage={shrinkage:g} leaves the covariance singular: {len(centred)} rows do not "
            f"vary in all {n_features} dimensions around the means of their groups. Use more "
            'shrinkage, or shrinkage="auto".'
        )
    return C, outside, float(shrinkage)


def _is_singular(C):
    try:
        pivots = np.diagonal(cholesky(C))
    except LinAlgError:
        return True
    return bool(pivots.min() <= 1e-7 * pivots.max())


def inner_metric(
    C: NDArray, rows: NDArray, n_components: int | None, weights: NDArray
) -> NDArray[np.float64]:
    """Return the inverse of C, or its part along the directions that matter most.

    Parameters
    ----------
    C : ndarray of shape (rank, rank)
        Covariance inside of chunks, positive definite.
    rows : ndarray of shape (n_rows, rank)
        The rows of all chunks.
    n_components : int or None
        Directions: those with the largest ratio of the covariance of all rows to C.
    weights : ndarray of shape (n_rows,)
        Of the rows.

    Returns
    -------
    A : ndarray of shape (rank, rank)
        The metric.
    """
    if n_components is None:
        return cho_solve((cholesky(C, lower=True), True), np.eye(len(C)))
    centred = rows - np.average(rows, axis=0, weights=weights)
    rank = len(C)
    V = eigh(
        centred.T @ (weights[:, None] * centred), C, subset_by_index=[rank - n_components, rank - 1]
    )[1]
    return V @ V.T
