"""Measures of generated samples: distance to real ones, fidelity, coverage and novelty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches

from .._optional import optional_import
from ..utils._typing import MatrixLike
from ..utils.validation import check_count, check_embeddings, check_scale, largest_size

# Distances of a block.
_BLOCK = 2**22


def check_both(
    first: MatrixLike, second: MatrixLike, names: tuple[str, str], min_samples: int = 1
) -> tuple[NDArray, NDArray, float]:
    """Return two arrays with the same number of columns, centred and scaled, and their unit.

    The unit is a power of two, so that scaling is exact. Squares of unscaled rows may cancel or
    overflow.
    """
    X, Y = (
        check_embeddings(values, name, min_samples).astype(np.float64)
        for values, name in zip((first, second), names, strict=True)
    )
    if X.shape[1] != Y.shape[1]:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same number of features, got {X.shape[1]} "
            f"and {Y.shape[1]}."
        )
    unit = _power_of_two(X, Y)
    X, Y = X / unit, Y / unit
    centre = X.mean(axis=0)
    X, Y = X - centre, Y - centre
    smaller = min(1.0, _power_of_two(X, Y))
    return X / smaller, Y / smaller, smaller * unit


def _power_of_two(*arrays):
    """Return the largest power of two that is not above all numbers of arrays."""
    largest = max(map(largest_size, arrays))
    return float(np.ldexp(0.5, np.frexp(largest)[1])) if largest > 0 else 1.0


def wasserstein_distance(X: MatrixLike, Y: MatrixLike) -> float:
    """Compute the exact 2-Wasserstein distance of two sets of rows.

    The square root of the optimal transport cost between the two sets, where a move costs its
    squared length and all rows of a set have equal weight. Time grows with about the cube of the
    number of rows: a second for some 2,000.

    Parameters
    ----------
    X : array-like of shape (n_samples_X, n_features)
        Rows.

    Y : array-like of shape (n_samples_Y, n_features)
        Other rows.

    Returns
    -------
    distance : float
        0 at least, and 0 for equal sets. For two samples of one distribution it is above 0, the
        more so the fewer rows and the more features there are: compare it with the distance of
        two real samples.

    See Also
    --------
    skdml.transport.sinkhorn_divergence : With an entropy, and a gradient.

    Examples
    --------
    >>> from skdml.metrics import wasserstein_distance
    >>> wasserstein_distance([[0.0], [1.0]], [[4.0], [3.0]])
    3.0
    """
    X, Y, unit = check_both(X, Y, ("X", "Y"))
    ot = optional_import("ot", "wasserstein_distance")
    costs = euclidean_distances(X, Y, squared=True)
    weights = [np.full(len(side), 1 / len(side)) for side in (X, Y)]
    value = ot.emd2(*weights, costs, numItermax=10_000_000)
    return float(np.sqrt(max(value, 0.0))) * unit


def energy_distance(X: MatrixLike, Y: MatrixLike) -> float:
    """Compute the unbiased energy distance of two sets of rows.

    Twice the mean distance of a row of X to one of Y, less the mean distances of two different rows
    of X and of two of Y. Its expectation is 0 for samples of one distribution, and above 0 for any
    others: unlike a transport cost between samples, rows that are averages cannot win.

    Parameters
    ----------
    X : array-like of shape (n_samples_X, n_features)
        Rows; two at least.

    Y : array-like of shape (n_samples_Y, n_features)
        Other rows.

    Returns
    -------
    distance : float
        In units of the rows. An estimate, which may be a little below 0.

    References
    ----------
    .. [1] G. J. Szekely, M. L. Rizzo. "Energy statistics: a class of statistics based on
       distances", Journal of Statistical Planning and Inference, 2013.

    Examples
    --------
    >>> from skdml.metrics import energy_distance
    >>> energy_distance([[0.0], [1.0]], [[4.0], [3.0]])
    4.0
    """
    X, Y, unit = check_both(X, Y, ("X", "Y"), min_samples=2)
    own = sum(_sum_of_distances(Z, Z) / (len(Z) * (len(Z) - 1)) for Z in (X, Y))
    return float(2 * _sum_of_distances(X, Y) / (len(X) * len(Y)) - own) * unit


def _sum_of_distances(X, Y):
    """Return the sum of the distances of all pairs, in blocks; that of a row to itself is 0."""
    total = 0.0
    for rows in gen_batches(len(X), max(1, _BLOCK // len(Y))):
        block = euclidean_distances(X[rows], Y)
        if X is Y:
            block[np.arange(len(block)), np.arange(rows.start, rows.stop)] = 0
        total += block.sum()
    return total


def frechet_distance(X: MatrixLike, Y: MatrixLike) -> float:
    """Compute the Frechet distance of the Gaussians with the moments of two sets of rows.

    Rows are usually features of images, from a network that was trained to tell images apart.

    Parameters
    ----------
    X : array-like of shape (n_samples_X, n_features)
        Rows; two at least.

    Y : array-like of shape (n_samples_Y, n_features)
        Other rows.

    Returns
    -------
    distance : float
        The squared distance of the means, and that of the covariances.

    Examples
    --------
    >>> from skdml.metrics import frechet_distance
    >>> round(frechet_distance([[0.0], [2.0]], [[3.0], [5.0]]), 6)
    9.0
    """
    X, Y, unit = check_both(X, Y, ("X", "Y"), min_samples=2)
    check_scale(np.array([unit]), "X or Y")  # the distance is a square
    A, B = (np.atleast_2d(np.cov(side, rowvar=False)) for side in (X, Y))
    # The trace of the root of A B is the sum of the roots of its eigenvalues, which are those of
    # the symmetric matrix A^(1/2) B A^(1/2).
    values, vectors = np.linalg.eigh(A)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    crossed = np.sqrt(np.maximum(eigvalsh(root @ B @ root), 0)).sum()
    means = ((X.mean(axis=0) - Y.mean(axis=0)) ** 2).sum()
    return float(means + np.trace(A) + np.trace(B) - 2 * crossed) * unit**2


class SampleQuality(NamedTuple):
    """What `sample_quality` returns."""

    precision: float
    recall: float
    density: float
    coverage: float


def sample_quality(real: MatrixLike, generated: MatrixLike, *, k: int = 5) -> SampleQuality:
    """Compute precision, recall, density and coverage of generated rows.

    The neighbourhood of a row is the ball that reaches to its k-th nearest other row of its set.

    Parameters
    ----------
    real : array-like of shape (n_real, n_features)
        Real rows, more than k.

    generated : array-like of shape (n_generated, n_features)
        Generated rows, more than k.

    k : int, default=5
        The neighbour that sets the size of a neighbourhood.

    Returns
    -------
    quality : SampleQuality
        A named tuple. *precision*: the share of generated rows inside the neighbourhood of a real
        row, so that they look real. *recall*: the share of real rows inside the neighbourhood of a
        generated row, so that they might have been generated. *density*: in how many
        neighbourhoods of real rows a generated row is, over k; outliers among the real rows count
        less than in precision. *coverage*: the share of real rows with a generated row in their
        neighbourhood.

    References
    ----------
    .. [1] T. Kynkaanniemi et al., "Improved precision and recall metric for assessing generative
       models", NeurIPS 2019.
    .. [2] M. F. Naeem et al., "Reliable fidelity and diversity metrics for generative models",
       ICML 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.metrics import sample_quality
    >>> rng = np.random.default_rng(0)
    >>> real, generated = rng.standard_normal((2, 300, 2))
    >>> quality = sample_quality(real, generated / 3)
    >>> quality.precision > 0.95, quality.recall < 0.8
    (True, True)
    """
    k = check_count(k, "k")
    X, Y, _ = check_both(real, generated, ("real", "generated"), min_samples=2)
    for rows, name in ((X, "real"), (Y, "generated")):
        if len(rows) <= k:
            raise ValueError(f"{name} must have more than k={k} rows, got {len(rows)}.")
    distances = euclidean_distances(X, Y)
    inside = distances <= _radii(X, k)[:, None]
    return SampleQuality(
        precision=float(inside.any(axis=0).mean()),
        recall=float((distances <= _radii(Y, k)).any(axis=1).mean()),
        density=float(inside.sum(axis=0).mean() / k),
        coverage=float(inside.any(axis=1).mean()),
    )


def _radii(X, k):
    """Return the distance of each row to its k-th nearest other row."""
    return NearestNeighbors(n_neighbors=k).fit(X).kneighbors()[0][:, -1]


def nearest_row_ratio(train: MatrixLike, real: MatrixLike, generated: MatrixLike) -> float:
    """Compute how near generated rows are to training rows, relative to unseen real rows.

    Parameters
    ----------
    train : array-like of shape (n_train, n_features)
        The rows that the generator was fitted on.

    real : array-like of shape (n_real, n_features)
        Real rows that it has not seen.

    generated : array-like of shape (n_generated, n_features)
        Rows that it generated.

    Returns
    -------
    ratio : float
        The median distance of a generated row to its nearest training row, over that of a real
        row. 0 for copies of training rows; about 1 for rows as new as unseen real ones.

    Examples
    --------
    >>> from skdml.metrics import nearest_row_ratio
    >>> nearest_row_ratio([[0.0], [4.0]], [[1.0], [3.0]], [[0.0], [4.5]])
    0.25
    """
    distance_new, distance_made = (
        _median_distance(*check_both(train, rows, ("train", name)))
        for rows, name in ((real, "real"), (generated, "generated"))
    )
    if distance_new == 0:
        raise ValueError("real: most of its rows are among the training rows: nothing is new.")
    return distance_made / distance_new


def _median_distance(train, rows, unit):
    """Return the median distance of rows to their nearest training row."""
    nearest = NearestNeighbors(n_neighbors=1).fit(train)
    return float(np.median(nearest.kneighbors(rows)[0])) * unit
