"""Measures of how well clusters of embeddings agree with labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_count, check_embeddings, check_vector, encode, unit_for_squares


def _clusters(embeddings, labels, n_clusters, n_init, random_state):
    """Return the labels as integers and the clusters that k-means finds."""
    X = check_embeddings(embeddings, "embeddings", min_samples=2)
    distinct, codes = encode(check_vector(labels, "labels", len(X)), "labels")
    n_clusters = len(distinct) if n_clusters is None else check_count(n_clusters, "n_clusters")
    if n_clusters > len(X):
        raise ValueError(
            f"n_clusters must not exceed the number of embeddings, {len(X)}, got {n_clusters}."
        )
    k_means = KMeans(n_clusters, n_init=check_count(n_init, "n_init"), random_state=random_state)
    unit = unit_for_squares(X)
    return codes, k_means.fit(X if unit == 1 else X.astype(np.float64) / unit).labels_


def cluster_nmi(
    embeddings: MatrixLike,
    labels: ArrayLike,
    *,
    n_clusters: int | None = None,
    n_init: int = 3,
    random_state: RandomStateLike = None,
) -> float:
    """NMI of the labels and k-means clusters (normalized mutual information).

    Parameters
    ----------
    embeddings : array-like of shape (n_samples, n_features)
        The items to cluster.

    labels : array-like of shape (n_samples,)
        Their labels, numbers or strings.

    n_clusters : int, default=None
        Number of clusters; by default the number of distinct labels.

    n_init : int, default=3
        Number of starts of k-means, of which the best is kept.

    random_state : int, RandomState instance or None, default=None
        Determines the starts of k-means.

    Returns
    -------
    nmi : float
        Between 0 and 1, normalized by the arithmetic mean of the entropies.

    See Also
    --------
    cluster_f1 : The same clusters, measured by pairs.
    sklearn.metrics.normalized_mutual_info_score : The measure for given clusters.

    Examples
    --------
    >>> from skdml.metrics import cluster_nmi
    >>> embeddings = [[0.0], [0.1], [5.0], [5.1]]
    >>> cluster_nmi(embeddings, ["a", "a", "b", "b"], random_state=0)
    1.0
    """
    codes, clusters = _clusters(embeddings, labels, n_clusters, n_init, random_state)
    return float(normalized_mutual_info_score(codes, clusters))


def cluster_f1(
    embeddings: MatrixLike,
    labels: ArrayLike,
    *,
    n_clusters: int | None = None,
    n_init: int = 3,
    random_state: RandomStateLike = None,
) -> float:
    """Pairwise F1 of k-means clusters.

    A pair of items is predicted to belong together if it is in one cluster and does belong
    together if it has one label. The value is the harmonic mean of precision and recall over all
    pairs.

    Parameters
    ----------
    embeddings : array-like of shape (n_samples, n_features)
        The items to cluster.

    labels : array-like of shape (n_samples,)
        Their labels, numbers or strings. At least two items must share a label.

    n_clusters : int, default=None
        Number of clusters; by default the number of distinct labels.

    n_init : int, default=3
        Number of starts of k-means, of which the best is kept.

    random_state : int, RandomState instance or None, default=None
        Determines the starts of k-means.

    Returns
    -------
    f1 : float
        Between 0 and 1.

    See Also
    --------
    cluster_nmi : The same clusters, measured by mutual information.

    Examples
    --------
    >>> from skdml.metrics import cluster_f1
    >>> embeddings = [[0.0], [0.1], [5.0], [5.1], [5.2]]
    >>> round(cluster_f1(embeddings, ["a", "a", "b", "b", "a"], random_state=0), 4)
    0.5
    """
    codes, clusters = _clusters(embeddings, labels, n_clusters, n_init, random_state)
    (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(codes, clusters)
    if true_positive + false_negative == 0:
        raise ValueError("labels: no two items share a label.")
    return float(2 * true_positive / (2 * true_positive + false_positive + false_negative))
