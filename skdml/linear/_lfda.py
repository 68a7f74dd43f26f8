"""LFDA: classes apart, and near rows of a class together."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from sklearn.metrics.pairwise import euclidean_distances

from ..utils._fit import FitProgress, fit_method
from ..utils._sklearn import Interval, StrOptions
from ..utils._typing import MatrixLike, Request
from ..utils.validation import check_given, check_row_labels, encode_for_pairs
from ._rca import centre_groups, more_shrinkage, shrunk_covariance
from ._rows import StrengthMixin, merge_weighted

# Distances in a block.
_BLOCK_SIZE = 2**22


class LFDA(StrengthMixin):
    r"""Local Fisher discriminant analysis: classes apart, near rows of a class together.

    Fisher's analysis draws all rows of a class to its mean, which is wrong for a class of
    several clusters. Here pairs of a class count by their affinity
    :math:`a_{ij} = \exp(-\|x_i - x_j\|^2 / (\sigma_i \sigma_j))`, with :math:`\sigma_i` the
    distance to the k-th neighbour in the class. With the local scatters W inside classes and B
    between them, the directions are the leading solutions of
    :math:`B \varphi = \lambda W \varphi`. Rows that are held out choose how far to go from X as
    it is to this metric. Read more in the :ref:`user guide <lfda>`.

    Parameters
    ----------
    n_components : int, default=None
        Directions that are kept. None keeps all.
    n_neighbors : int, default=7
        k, of the neighbour whose distance is the local scale.
    embedding_type : {"weighted", "orthonormalized", "plain"}, default="weighted"
        "weighted" multiplies a direction by the root of its eigenvalue, "plain" gives all
        directions unit scatter inside classes, and "orthonormalized" gives plain distances in
        the space that the directions span.
    shrinkage : float or "auto", default="auto"
        How much W is shrunk to a multiple of the identity, between 0 and 1; "auto" is the
        estimate of Ledoit and Wolf for the covariance inside of classes. 0 is the method of the
        paper, which needs more rows than features.
    strength : float or "auto", default="auto"
        The power of the metric, between 0, which is X as it is or its principal axes, and 1, the
        method of the paper. "auto" is the one of 0, 0.25, 0.5, 0.75 and 1 with the best votes for
        rows that are held out.

    Attributes
    ----------
    metric_ : MahalanobisMetric
        The learned metric.
    components_ : ndarray of shape (n_components, n_features)
        L: `transform` returns ``X @ components_.T``. Up to a rotation, its rows are the directions.
    eigenvalues_ : ndarray of shape (n_components,)
        Of the directions, from the largest: scatter between classes over that inside of them.
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
    LMNN : From neighbours and margins, by iterations.
    sklearn.discriminant_analysis.LinearDiscriminantAnalysis : Fisher's analysis.

    References
    ----------
    .. [1] M. Sugiyama. "Dimensionality reduction of multimodal labeled data by local Fisher
       discriminant analysis", JMLR 2007.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import LFDA
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LFDA(n_components=2), KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "embedding_type": [StrOptions({"weighted", "orthonormalized", "plain"})],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
        "strength": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
    }

    eigenvalues_: NDArray
    shrinkage_: float
    strength_: float

    if TYPE_CHECKING:

        def set_fit_request(  # type: ignore[override]
            self, *, sample_weight: Request = None
        ) -> Self: ...

    def __init__(
        self,
        n_components: int | None = None,
        n_neighbors: int = 7,
        embedding_type: str = "weighted",
        shrinkage: float | str = "auto",
        strength: float | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.embedding_type = embedding_type
        self.shrinkage = shrinkage
        self.strength = strength

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
        self : LFDA
            The fitted estimator.
        """
        check_given(y, type(self).__name__, " Pass the class of each row of X.")
        given, X = X, self._check_rows(X)
        codes = encode_for_pairs(check_row_labels(y, X.shape[0]))
        X, codes, weights = merge_weighted(X, codes, sample_weight)
        with FitProgress(self, total=0, X=given, y=y):
            span = self._find_span(X, weights)
            rows = span.coordinates
            V, outside = self._learn(rows, codes, weights, self.shrinkage, span)

            def learn(rows, codes, weights):
                shrinkage = more_shrinkage(self.shrinkage)
                V = self._learn(rows, codes, weights, shrinkage, span, is_part=True)[0]
                return V @ V.T

            self._choose_strength(rows, codes, weights, learn, "samples")
            # A direction outside the span has no scatter between classes, and the least inside.
            scales = {"weighted": 0.0, "orthonormalized": 1.0}
            scale = scales.get(self.embedding_type, 1 / outside if outside else 0.0)
            self.metric_ = self._span_metric(span, V @ V.T, scale, rows, weights, X.dtype)
        return self

    def _learn(self, rows, codes, weights, shrinkage, span, is_part=False):
        """Return the directions of some rows, and the scatter inside classes off their span."""
        codes = np.unique(codes, return_inverse=True)[1]
        inside, between = local_scatters(rows, codes, self.n_neighbors, weights)
        if not np.any(inside):
            raise ValueError(
                "X has no two different rows of one class that are near each other: there is "
                "nothing to learn from."
            )
        centred = centre_groups(rows, codes, weights)
        inside, outside, shrinkage = shrunk_covariance(
            centred, inside, shrinkage, span.n_features, weights
        )
        eigenvalues, directions = discriminant_directions(
            between, inside, self.n_components or span.rank
        )
        if not is_part:
            self.eigenvalues_, self.shrinkage_ = eigenvalues, shrinkage
        return embed_directions(eigenvalues, directions, self.embedding_type), outside


def local_scatters(
    rows: NDArray, codes: NDArray, n_neighbors: int, weights: NDArray | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return the local scatter inside classes and that between them.

    Half the sums of :math:`w_{ij} (x_i - x_j)(x_i - x_j)^T` over all i and j, where w is
    :math:`a_{ij} / n_c` inside and :math:`a_{ij} (1/n - 1/n_c)` between for rows of one class,
    and 0 and 1/n for others. Rows count as often as their weights say; neighbours are distinct
    rows.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        The rows.
    codes : ndarray of shape (n_rows,)
        Their classes, numbers from 0.
    n_neighbors : int
        Of the local scale; fewer where a class has fewer rows.
    weights : ndarray of shape (n_rows,), default=None
        Of the rows; None is 1 for each.

    Returns
    -------
    inside, between : ndarray of shape (n_features, n_features)
        Symmetric; `inside` is positive semi-definite.
    """
    n_features = rows.shape[1]
    weights = np.ones(len(rows)) if weights is None else weights
    n_rows = weights.sum()
    inside, between = np.zeros((2, n_features, n_features))
    for code in np.unique(codes):
        members, share = rows[codes == code], weights[codes == code]
        n_members, total = share.sum(), share @ members
        local = _affinity_scatter(members, n_neighbors, share)
        inside += local / n_members
        between += local / n_rows
        between += (1 - n_members / n_rows) * members.T @ (share[:, None] * members)
        between += np.outer(total, total) / n_rows
    total = weights @ rows
    between -= np.outer(total, total) / n_rows + inside
    return (inside + inside.T) / 2, (between + between.T) / 2


def _affinity_scatter(members, n_neighbors, weights):
    """Return X' (D - A) X with the weighted affinities A of rows X and their sums D."""
    n_members = len(members)
    k = min(int(n_neighbors), n_members - 1)
    step = max(1, _BLOCK_SIZE // n_members)
    cuts = [slice(start, start + step) for start in range(0, n_members, step)]
    scales = np.empty(n_members)
    for cut in cuts:
        # The row itself is at 0.
        squared = euclidean_distances(members[cut], members, squared=True)
        scales[cut] = np.sqrt(np.partition(squared, k, axis=1)[:, k])
    drawn, degrees = np.zeros_like(members), np.zeros(n_members)
    # A row with k equal ones has no scale: its affinities are 0.
    inverses = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    for cut in cuts:
        squared = euclidean_distances(members[cut], members, squared=True)
        affinities = np.exp(-squared * inverses[cut, None] * inverses)
        affinities *= (inverses[cut, None] > 0) & (inverses > 0)
        affinities *= weights[cut, None] * weights
        degrees[cut] = affinities.sum(axis=1)
        drawn[cut] = affinities @ members
    return members.T @ (degrees[:, None] * members - drawn)


def discriminant_directions(
    between: NDArray, inside: NDArray, n_components: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve ``between @ v = eigenvalue * inside @ v`` for the largest eigenvalues.

    Parameters
    ----------
    between, inside : ndarray of shape (n, n)
        Symmetric; `inside` is positive definite.
    n_components : int
        How many.

    Returns
    -------
    eigenvalues : ndarray of shape (n_components,)
        From the largest.
    directions : ndarray of shape (n, n_components)
        With ``directions.T @ inside @ directions`` the identity.
    """
    n = len(inside)
    eigenvalues, directions = eigh(between, inside, subset_by_index=[n - n_components, n - 1])
    return eigenvalues[::-1], directions[:, ::-1]


def embed_directions(
    eigenvalues: NDArray, directions: NDArray, embedding_type: str
) -> NDArray[np.float64]:
    """Return directions with the lengths of an embedding type, see `LFDA`."""
    if embedding_type == "orthonormalized":
        return np.linalg.qr(directions)[0]
    if embedding_type == "plain":
        return directions
    # With the negative weights of near rows of a class, an eigenvalue may be below 0.
    return directions * np.sqrt(np.maximum(eigenvalues, 1e-6 * np.abs(eigenvalues).max()))
