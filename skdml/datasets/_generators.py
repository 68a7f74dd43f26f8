"""Generators of data with local structure."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.utils import check_random_state

from skdml.utils._sklearn import Interval, validate_params
from skdml.utils.validation import refuse_if_too_large

Seed = int | np.random.RandomState | np.random.Generator | None

_POSITIVE_INT = Interval(Integral, 1, None, closed="left")
_AT_LEAST_TWO = Interval(Integral, 2, None, closed="left")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COMMON_CONSTRAINTS = {
    "n_features": [_POSITIVE_INT],
    "n_centers": [_POSITIVE_INT],
    "n_informative": [_POSITIVE_INT],
    "center_scale": [_NOT_NEGATIVE],
    "confidence": [Interval(Real, 0, 1, closed="right")],
    "random_state": ["random_state", np.random.Generator],
}


def _check_random_state(random_state: Seed) -> np.random.RandomState:
    if isinstance(random_state, np.random.Generator):
        return np.random.RandomState(random_state.bit_generator)
    return check_random_state(random_state)


def _check_sizes(n_samples: int, n_centers: int, n_informative: int, n_features: int) -> None:
    if n_informative > n_features:
        raise ValueError(
            f"n_informative={n_informative} must not be greater than n_features={n_features}"
        )
    if n_samples < n_centers:
        raise ValueError(
            f"{n_samples} samples are too few for n_centers={n_centers}: "
            "each centre needs at least one"
        )
    refuse_if_too_large(
        (n_features, n_samples + n_centers * (1 + n_informative)),
        f"n_features={n_features}, {n_samples} samples and n_centers={n_centers} make an array",
        "Give fewer of them.",
    )


def _draw_normal(rng: np.random.RandomState, *shape: int) -> NDArray:
    return rng.standard_normal([int(n) for n in shape])  # True is a number, too


def _draw_centers(
    n_centers: int, n_features: int, n_informative: int, scale: float, rng: np.random.RandomState
) -> tuple[NDArray, NDArray]:
    """Return the centres and an orthonormal (n_features, n_informative) basis for each."""
    centers = scale * _draw_normal(rng, n_centers, n_features)
    bases, _ = np.linalg.qr(_draw_normal(rng, n_centers, n_features, n_informative))
    return centers, bases


def _draw_deviations(
    n_samples: int, n_features: int, confidence: float, rng: np.random.RandomState
) -> NDArray:
    """Return standard normal samples, restricted to the ball of the given probability."""
    deviations = _draw_normal(rng, n_samples, n_features)
    if confidence < 1:
        # The squared length is chi-square distributed: draw it below its quantile `confidence`.
        squared = chi2.ppf(confidence * rng.uniform(size=n_samples), n_features)
        lengths = np.linalg.norm(deviations, axis=1)
        deviations *= (np.sqrt(squared) / lengths)[:, np.newaxis]
    return deviations


def _assign_centers(n_samples: int, n_centers: int, rng: np.random.RandomState | None) -> NDArray:
    """Return the centre of each sample: evenly shared, in turn or (with rng) in random order."""
    member = np.arange(n_samples) % n_centers
    return member if rng is None else rng.permutation(member)


@validate_params(
    {
        **_COMMON_CONSTRAINTS,
        "n_samples": [_POSITIVE_INT],
        "n_classes": [_AT_LEAST_TWO, None],
        "contrast": [Interval(Real, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "return_centers": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def make_local_clusters(
    n_samples: int = 1000,
    n_features: int = 10,
    n_centers: int = 10,
    *,
    n_classes: int | None = None,
    n_informative: int = 2,
    contrast: float = 5.0,
    center_scale: float = 1.0,
    confidence: float = 0.95,
    shuffle: bool = True,
    return_centers: bool = False,
    random_state: Seed = None,
) -> tuple[NDArray, ...]:
    """Generate clusters in which the directions that matter differ from centre to centre.

    Each centre is a normal distribution that is narrow in a few directions of its own, its
    informative ones, and wide in the others. Taken over all centres no direction stands out, so
    that one metric for the whole space can gain little where one metric for each centre gains
    a lot.

    Parameters
    ----------
    n_samples : int, default=1000
        The number of samples, shared evenly among the centres.

    n_features : int, default=10
        The number of features.

    n_centers : int, default=10
        The number of centres.

    n_classes : int, default=None
        If None, each centre is a class. If a number, each centre has samples of all these classes:
        along the first informative direction of the centre, they lie in bands of equal size one
        after the other, in an order that is random for each centre.

    n_informative : int, default=2
        The number of informative directions of each centre.

    contrast : float, default=5.0
        How many times wider the distribution is in the other directions, where its standard
        deviation is 1, than in the informative ones. With 1 all clusters are round.

    center_scale : float, default=1.0
        The standard deviation of the centres in each feature; they are normal around 0.

    confidence : float, default=0.95
        The probability of the region around the centre from which samples are drawn: what an
        untruncated normal distribution would place outside of it does not occur. With 1 nothing
        is cut off.

    shuffle : bool, default=True
        If False, the samples come from the centres in turn: 0, 1, 2, ..., 0, 1, 2, ...

    return_centers : bool, default=False
        If True, also return the centres.

    random_state : int, RandomState, Generator or None, default=None
        Determines the data. Pass an int for the same data in each call.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        The samples.

    y : ndarray of shape (n_samples,), int64
        The classes: the number of the centre if ``n_classes`` is None.

    centers : ndarray of shape (n_centers, n_features)
        The centres. Only if ``return_centers`` is True.

    See Also
    --------
    make_ranking : Ranking data with local structure.

    Notes
    -----
    The sets Synthetic-10, Synthetic-50 and Synthetic-100 of [1]_ (section 4.3.3, figure 4.2) are
    normal distributions "with multiple centers and 95% confidence interval", where the class of a
    sample, and its relevance when ranked, is the number of its centre: ``n_centers`` is 10, 50 or
    100 and ``n_classes`` None. Figure 4.4 has 10 to 1000 features. Left open there are the number
    of samples, how far apart the centres are, the shape of the distributions, and what the
    confidence interval means. Here it is read as a truncation, the centres are normal around 0,
    and the narrow directions give each centre a metric of its own.

    The sets of section 3.4.2 have two classes, 100 to 100,000 features and a tenth as many samples,
    and come from Apache Spark's ``KMeansDataGenerator``: round, not truncated, evenly from each
    centre in turn. That is ``n_centers=2, n_informative=1, contrast=1, confidence=1,
    shuffle=False``, with Spark's scaling factor (not stated there) as ``center_scale``.

    References
    ----------
    .. [1] Su, Y., PhD thesis on distributed distance learning, chapters 3 and 4. Chapter 4 extends
       Y. Su, I. King, M. Lyu. "Learning to Rank Using Localized Geometric Mean Metrics",
       SIGIR 2017.

    Examples
    --------
    >>> from skdml.datasets import make_local_clusters
    >>> X, y = make_local_clusters(n_samples=200, n_centers=50, random_state=0)
    >>> X.shape, y.min(), y.max()
    ((200, 10), np.int64(0), np.int64(49))
    """
    _check_sizes(n_samples, n_centers, n_informative, n_features)
    rng = _check_random_state(random_state)
    centers, bases = _draw_centers(n_centers, n_features, n_informative, center_scale, rng)
    member = _assign_centers(n_samples, n_centers, rng if shuffle else None)
    X = _draw_deviations(n_samples, n_features, confidence, rng)
    y = member.astype(np.int64)
    for number, (center, basis) in enumerate(zip(centers, bases, strict=True)):
        rows = np.flatnonzero(member == number)
        along = X[rows] @ basis
        X[rows] += center - (1 - 1 / contrast) * along @ basis.T
        if n_classes is not None:
            band = along[:, 0].argsort().argsort() * n_classes // len(rows)
            y[rows] = rng.permutation(n_classes)[band]
    return (X, y, centers) if return_centers else (X, y)


@validate_params(
    {
        **_COMMON_CONSTRAINTS,
        "n_queries": [_POSITIVE_INT],
        "n_documents": [_POSITIVE_INT],
        "n_levels": [_AT_LEAST_TWO],
        "noise": [_NOT_NEGATIVE],
        "ideal_distance": [Interval(Real, 0, 1e30, closed="both")],
        "return_ideals": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def make_ranking(
    n_queries: int = 50,
    n_documents: int = 20,
    n_features: int = 10,
    *,
    n_centers: int = 1,
    n_informative: int = 2,
    n_levels: int = 3,
    noise: float = 0.1,
    ideal_distance: float = 1.0,
    center_scale: float = 3.0,
    confidence: float = 0.95,
    return_ideals: bool = False,
    random_state: Seed = None,
) -> tuple[NDArray, ...]:
    """Generate documents whose relevance is their distance to an ideal document.

    Documents lie around centres. Each centre has an ideal document and a few informative
    directions of its own; the closer a document of that centre is to the ideal one in these
    directions, the more relevant it is. The other directions are noise there, and may be
    informative elsewhere.

    Parameters
    ----------
    n_queries : int, default=50
        The number of queries.

    n_documents : int, default=20
        The number of documents of each query. They come from all centres alike.

    n_features : int, default=10
        The number of features.

    n_centers : int, default=1
        The number of centres. With 1, one metric and one ideal document explain the relevance.

    n_informative : int, default=2
        The number of informative directions of each centre.

    n_levels : int, default=3
        The number of relevance levels, 0 to ``n_levels - 1``. Each level has half as many
        documents as the one below.

    noise : float, default=0.1
        The standard deviation of what is added to the distance before it is turned into a level;
        that of the documents around their centre is 1 in each direction.

    ideal_distance : float, default=1.0
        How far the ideal document is from its centre. With 0 it is in the middle, so that no
        linear score finds it; far away, the relevance is almost linear around each centre.

    center_scale : float, default=3.0
        The standard deviation of the centres in each feature; they are normal around 0.

    confidence : float, default=0.95
        The probability of the region around the centre from which documents are drawn; see
        :func:`make_local_clusters`.

    return_ideals : bool, default=False
        If True, also return the ideal documents.

    random_state : int, RandomState, Generator or None, default=None
        Determines the data. Pass an int for the same data in each call.

    Returns
    -------
    X : ndarray of shape (n_queries * n_documents, n_features)
        The documents, query by query.

    y : ndarray of shape (n_queries * n_documents,), int64
        Their relevance.

    qid : ndarray of shape (n_queries * n_documents,), int64
        Their queries, 0 to ``n_queries - 1``.

    ideals : ndarray of shape (n_centers, n_features)
        The ideal documents. Only if ``return_ideals`` is True.

    See Also
    --------
    make_local_clusters : Classes with local structure; the sets of the thesis's figures.

    Notes
    -----
    This follows the model of chapter 4 of [1]_: relevant documents are close to an "ideal
    candidate document", by a distance that differs from region to region. The thesis's own
    synthetic sets (10, 50 and 100 centres) take the number of the centre as the relevance and
    mention no queries; :func:`make_local_clusters` generates those. Left open there, and chosen
    here: a document belongs to one centre, relevance levels are cut off at the same distance for
    all queries, and so a query may have no relevant document, as in real data.

    References
    ----------
    .. [1] Su, Y., PhD thesis on distributed distance learning, chapter 4, which extends
       Y. Su, I. King, M. Lyu. "Learning to Rank Using Localized Geometric Mean Metrics",
       SIGIR 2017.

    Examples
    --------
    >>> from skdml.datasets import make_ranking
    >>> X, y, qid = make_ranking(n_queries=5, n_documents=7, n_features=4, random_state=0)
    >>> X.shape
    (35, 4)
    >>> [(y == level).sum().item() for level in range(3)]
    [20, 10, 5]
    """
    n_samples = n_queries * n_documents
    _check_sizes(n_samples, n_centers, n_informative, n_features)
    rng = _check_random_state(random_state)
    centers, bases = _draw_centers(n_centers, n_features, n_informative, center_scale, rng)
    ideals = centers + ideal_distance * bases[:, :, 0]
    member = _assign_centers(n_samples, n_centers, rng)
    X = centers[member] + _draw_deviations(n_samples, n_features, confidence, rng)

    distance = noise * rng.standard_normal(n_samples)
    for number, (ideal, basis) in enumerate(zip(ideals, bases, strict=True)):
        rows = np.flatnonzero(member == number)
        distance[rows] += np.linalg.norm((X[rows] - ideal) @ basis, axis=1)

    shares = 0.5 ** np.arange(n_levels)
    limits = np.quantile(-distance, np.cumsum(shares / shares.sum())[:-1])
    y = np.searchsorted(limits, -distance, side="right").astype(np.int64)
    qid = np.repeat(np.arange(n_queries, dtype=np.int64), n_documents)
    return (X, y, qid, ideals) if return_ideals else (X, y, qid)
