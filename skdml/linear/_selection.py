"""Local pairs, and the choice of a parameter along a path by rows that are held out.

A learner gives a function `learn(rows, pairs, labels, values, start)` that yields the factor L of a
metric for one value of its parameter after the other, A = L L'. Rounds of local pairs are found
under the metric of the round before. The prior is a candidate: where no value is better on rows
that were held out, nothing is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..utils._differences import PairDifferences
from ..utils._neighbors import near_rows, retrieval_hits, vote_hits
from ._graded import RIDGES, rank_correlation
from ._span import Span

Learn = Callable[[NDArray, NDArray, NDArray, list, "NDArray | None"], Iterable[NDArray]]
Embed = Callable[[NDArray, NDArray], NDArray]

N_ROUNDS = 3
_N_NEIGHBORS = 5
N_FOLDS = 3
# With more rows, one fold is as good as three.
_MANY_ROWS = 1000
_MOST_HELD_OUT = 2000
# By how many standard errors a metric in closed form must be better than the prior.
_N_ERRORS = 1.5


@dataclass
class Choice:
    """The chosen value of each round of pairs; none where the prior is best.

    Attributes
    ----------
    values : list of float
        One for each round.
    ridge : float or None
        Of the regression of grades, where that is best.
    path : dict of str to list
        "round", "value" and "score" of all candidates; round 0 is the prior.
    """

    values: list[float] = field(default_factory=list)
    ridge: float | None = None
    path: dict[str, list] = field(default_factory=lambda: {"round": [], "value": [], "score": []})


def near_pairs(
    rows: NDArray, codes: NDArray, n_pairs: int, rng: np.random.RandomState
) -> tuple[NDArray, NDArray]:
    """Return about `n_pairs` pairs of near rows, and their labels: +1 of one class, -1 of two."""
    n_rows = len(rows)
    n_anchors = min(n_rows, max(2, n_pairs // (2 * _N_NEIGHBORS)))
    anchors = np.arange(n_rows)
    if n_anchors < n_rows:
        anchors = np.sort(rng.choice(n_rows, n_anchors, replace=False))
    found = []
    for near in near_rows(rows, codes, anchors, _N_NEIGHBORS):
        first, column = np.nonzero(near >= 0)
        pairs = np.sort(np.column_stack([anchors[first], near[first, column]]), axis=1)
        numbers = np.unique(pairs[:, 0] * n_rows + pairs[:, 1])
        found.append(np.column_stack(np.divmod(numbers, n_rows)))
    if n_anchors < n_rows and not all(len(part) for part in found):
        # The rows that were drawn are the only ones of their classes.
        return near_pairs(rows, codes, 2 * _N_NEIGHBORS * n_rows, rng)
    return np.concatenate(found), np.repeat(np.array([1, -1]), [len(part) for part in found])


def weigh(labels: NDArray, pairs: NDArray, weights: NDArray | None) -> NDArray[np.float64]:
    """Return signed weights of pairs: labels times the product of the weights of their rows."""
    signed = np.asarray(labels, dtype=np.float64)
    return signed if weights is None else signed * weights[pairs].prod(axis=1)


class HeldOutVotes:
    """Rows that are held out in folds, and the votes for them under one metric or another.

    Parameters
    ----------
    rows, codes : ndarray
        The rows in coordinates of their span, and their classes.
    embed : callable
        ``embed(rows, L)`` returns the rows under the metric.
    select : {"samples", "classes"}
        Whether some rows of all classes are held out, or all rows of some classes.
    rng : RandomState
        Draws the folds.
    weights : ndarray of shape (n_rows,), default=None
        Weights of the rows, in the scores.

    Attributes
    ----------
    folds : list of (ndarray, ndarray)
        Rows to learn from, and rows that are held out.
    """

    def __init__(
        self,
        rows: NDArray,
        codes: NDArray,
        embed: Embed,
        select: str,
        rng: np.random.RandomState,
        weights: NDArray | None = None,
    ) -> None:
        self.rows, self.codes, self.embed, self.select = rows, codes, embed, select
        self.folds: list[tuple[NDArray, NDArray]] = []
        for _ in range(int(np.clip(_MANY_ROWS // len(rows), 1, 4))):  # few rows are split again
            self.folds += _make_folds(codes, select, rng)
        tests = [test for _, test in self.folds]
        if select == "classes":  # rows that are alone in their class have no score
            tests = [test[np.bincount(codes[test])[codes[test]] > 1] for test in tests]
        self._tested = np.concatenate(tests)
        shares = np.ones(len(self._tested)) if weights is None else weights[self._tested]
        self._shares = shares / shares.sum()

    def hits(self, factors: Sequence[NDArray]) -> NDArray[np.float64]:
        """Return two scores of each row that is held out, under the metric of its fold."""
        rows, codes, hits = self.rows, self.codes, []
        for (train, test), factor in zip(self.folds, factors, strict=True):
            E = self.embed(rows[test], factor)
            if self.select == "classes":
                hits.append(retrieval_hits(E, codes[test]))
            elif train is test:
                hits.append(vote_hits(E, codes[test], E, codes[test], is_same=True))
            else:
                base = self.embed(rows[train], factor)
                hits.append(vote_hits(E, codes[test], base, codes[train]))
        return np.concatenate(hits)

    def means(self, hits: NDArray) -> NDArray[np.float64]:
        """Return the two mean scores."""
        return self._shares @ hits

    def _is_better(self, hits, others, n_errors):
        """Tell whether a mean score is above another by more than some standard errors."""
        gains = self._shares * (hits - others).mean(axis=1)
        return gains.sum() > n_errors * np.linalg.norm(np.bincount(self._tested, gains))

    def choose(
        self, hits: list[NDArray], prior_hits: NDArray, best: float, n_errors: float = 0.0
    ) -> int | None:
        """Return the candidate to take, None where none is better than the best before.

        Parameters
        ----------
        hits : list of ndarray
            Scores of the candidates.
        prior_hits : ndarray
            Scores of the prior.
        best : float
            The mean score to be beaten.
        n_errors : float, default=0.0
            By how many standard errors the best candidate must be better than the prior, where
            rows are held out; with classes it is 1.
        """
        found = np.array([self.means(each) for each in hits])
        # The metric may lose in neither of two scores: 1 and 5 neighbours, or 1-NN and MAP@R.
        is_safe = (found >= self.means(prior_hits)).all(axis=1)
        scores = np.where(is_safe, found.mean(axis=1), -1.0)
        place = int(np.argmax(scores))
        if scores[place] <= best:
            return None
        n_errors = 1.0 if self.select == "classes" else n_errors  # others may well lose by it
        if n_errors and not self._is_better(hits[place], prior_hits, n_errors):
            return None
        if self.select == "samples":
            # Of values that chance alone tells apart, the last: with few rows, the first is timid.
            top = hits[place]
            better = np.flatnonzero(scores > best)
            return int(max(j for j in better if not self._is_better(top, hits[j], 0.5)))
        return place


def choose_value(
    rows: NDArray,
    codes: NDArray,
    draw: Callable[[NDArray, NDArray], tuple[NDArray, NDArray]],
    learn: Learn,
    embed: Embed,
    values: list[float],
    prior: NDArray,
    select: str,
    n_rounds: int,
    rng: np.random.RandomState,
    weights: NDArray | None = None,
) -> Choice:
    """Choose the value of a parameter, and the number of rounds, on rows that are held out.

    Parameters
    ----------
    rows, codes : ndarray
        The rows in coordinates of their span, and their classes.
    draw : callable
        ``draw(rows, codes)`` returns pairs and labels; the rows are those under the metric.
    learn : callable
        As this module says.
    embed : callable
        ``embed(rows, L)`` returns the rows under the metric.
    values : list of float
        The candidates in the order in which `learn` follows them.
    prior : ndarray of shape (rank, rank)
        L of the prior.
    select : {"samples", "classes"}
        Whether some rows of all classes are held out, or all rows of some classes.
    n_rounds : int
        Most rounds.
    rng : RandomState
        Draws the folds.
    weights : ndarray of shape (n_rows,), default=None
        Weights of the rows, in the pairs and in the scores.

    Returns
    -------
    choice : Choice
        What scored best.
    """
    votes = HeldOutVotes(rows, codes, embed, select, rng, weights)
    parts = [(rows[train], codes[train]) for train, _ in votes.folds]
    part_weights = [None if weights is None else weights[train] for train, _ in votes.folds]

    def drawn(rows: NDArray, codes: NDArray, weights: NDArray | None) -> tuple[NDArray, NDArray]:
        pairs, labels = draw(rows, codes)
        return pairs, weigh(labels, pairs, weights)

    choice = Choice()
    starts: list = [None] * len(parts)
    prior_hits = votes.hits([prior] * len(parts))
    best = float(votes.means(prior_hits).mean())
    _note(choice, 0, 0.0, best)
    mapped = [embed(part, prior) for part, _ in parts]
    candidates = values
    for number in range(1, n_rounds + 1):
        paths = [
            list(learn(part, *drawn(seen, part_codes, share), candidates, start))
            for (part, part_codes), share, seen, start in zip(
                parts, part_weights, mapped, starts, strict=True
            )
        ]
        hits = [votes.hits(factors) for factors in zip(*paths, strict=True)]
        means = [float(votes.means(each).mean()) for each in hits]
        for value, mean in zip(candidates, means, strict=True):
            _note(choice, number, value, mean)
        place = votes.choose(hits, prior_hits, best)
        if place is None:
            break
        best = means[place]
        choice.values.append(candidates[place])
        starts = [path[place] for path in paths]
        mapped = [embed(part, start) for (part, _), start in zip(parts, starts, strict=True)]
        place = values.index(candidates[place])
        candidates = values[max(0, place - 1) : place + 2]
    return choice


def choose_strength(
    rows: NDArray,
    codes: NDArray,
    learn: Callable[[NDArray, NDArray, NDArray], NDArray | None],
    values: Sequence[float],
    prior: NDArray,
    select: str,
    weights: NDArray,
) -> Choice:
    """Choose how far to go from the prior to a metric, its powers, on rows that are held out.

    Parameters
    ----------
    rows, codes : ndarray
        The rows in coordinates of their span, and their classes.
    learn : callable
        ``learn(rows, codes, weights)`` returns the metric of some rows, or None where there is
        nothing to learn from.
    values : sequence of float
        Exponents, from the smallest.
    prior : ndarray of shape (rank, n_components)
        L of the prior.
    select : {"samples", "classes"}
        Whether some rows of all classes are held out, or all rows of some classes.
    weights : ndarray of shape (n_rows,)
        Of the rows.

    Returns
    -------
    choice : Choice
        Its value; none where the prior is best. The folds are the same in every call.
    """
    rng = np.random.RandomState(0)
    votes = HeldOutVotes(rows, codes, np.matmul, select, rng, weights)
    paths = []
    for train, _ in votes.folds:
        A = learn(rows[train], codes[train], weights[train])
        paths.append([prior if A is None else metric_power(A, value) for value in values])
    choice = Choice()
    prior_hits = votes.hits([prior] * len(paths))
    best = float(votes.means(prior_hits).mean())
    _note(choice, 0, 0.0, best)
    hits = [votes.hits(factors) for factors in zip(*paths, strict=True)]
    for value, each in zip(values, hits, strict=True):
        _note(choice, 1, value, float(votes.means(each).mean()))
    place = votes.choose(hits, prior_hits, best, n_errors=_N_ERRORS)
    if place is not None:
        choice.values.append(values[place])
    return choice


def metric_power(A: NDArray, exponent: float) -> NDArray[np.float64]:
    """Return L with L L' the power of a metric, of its eigenvalues above 0."""
    eigenvalues, vectors = np.linalg.eigh(A)
    keep = eigenvalues > len(A) * np.finfo(float).eps * eigenvalues[-1]
    return vectors[:, keep] * eigenvalues[keep] ** (exponent / 2)


def choose_for_pairs(
    rows: NDArray,
    pairs: NDArray,
    signed: NDArray,
    learn: Learn,
    embed: Embed,
    values: list[float],
    prior: NDArray,
    rng: np.random.RandomState,
    grades: NDArray | None = None,
    regress: Callable[[NDArray, NDArray, Sequence[float]], Iterable[NDArray]] | None = None,
) -> Choice:
    """Choose the value of a parameter for given pairs, by pairs that are held out.

    By their ROC AUC, or with grades by the rank correlation of distances and grades. Where a kind
    has fewer than two pairs in a fold, the pairs themselves decide. Grades, with the weights of
    their pairs in a second column, have more candidates: ``regress(pairs, grades, ridges)`` yields
    the factors of regressions, which are round 2 of the path.
    """
    labels, weights = np.sign(signed), np.abs(signed)
    order = np.empty(len(labels), dtype=int)
    for label in (1, -1, 0):  # the folds have their share of each kind
        members = rng.permutation(np.flatnonzero(labels == label))
        order[members] = np.arange(len(members)) % N_FOLDS
    folds = [
        (np.flatnonzero(order != fold), np.flatnonzero(order == fold)) for fold in range(N_FOLDS)
    ]
    if min(np.sum(labels == 1), np.sum(labels == -1)) < 2 * N_FOLDS:
        folds = [(np.arange(len(labels)),) * 2]

    def score(factors):
        found = []
        for (_, test), factor in zip(folds, factors, strict=True):
            first, second = (embed(rows[pairs[test, side]], factor) for side in (0, 1))
            near = -((first - second) ** 2).sum(axis=1)
            if grades is None:
                found.append(roc_auc_score(labels[test], near, sample_weight=weights[test]))
            else:
                found.append(rank_correlation(near, grades[test, 0], grades[test, 1]))
        return float(np.mean(found))

    choice = Choice()
    best = score([prior] * len(folds))
    _note(choice, 0, 0.0, best)
    paths = [list(learn(rows, pairs[train], signed[train], values, None)) for train, _ in folds]
    scores = [score(factors) for factors in zip(*paths, strict=True)]
    for value, found in zip(values, scores, strict=True):
        _note(choice, 1, value, found)
    if max(scores) > best:
        best = max(scores)
        choice.values.append(values[int(np.argmax(scores))])
    if grades is not None and regress is not None:
        paths = [list(regress(pairs[train], grades[train], RIDGES)) for train, _ in folds]
        scores = [score(factors) for factors in zip(*paths, strict=True)]
        for ridge, found in zip(RIDGES, scores, strict=True):
            _note(choice, 2, ridge, found)
        if max(scores) > best:
            choice.values, choice.ridge = [], RIDGES[int(np.argmax(scores))]
    return choice


def _note(choice, number, value, score):
    for name, entry in (("round", number), ("value", value), ("score", score)):
        choice.path[name].append(entry)


def _make_folds(
    codes: NDArray, select: str, rng: np.random.RandomState
) -> Iterator[tuple[NDArray, NDArray]]:
    """Yield rows to learn from and rows to score, of folds that can be learned from."""
    n_rows = len(codes)
    order = np.empty(n_rows, dtype=int)
    if select == "classes":
        numbers = rng.permutation(codes.max() + 1)
        if len(numbers) < 2 * N_FOLDS:
            raise ValueError(
                f"select='classes' holds out a third of the classes, but y has {len(numbers)}: "
                f"{2 * N_FOLDS} are needed. Use select='samples'."
            )
        order = numbers[codes] % N_FOLDS
    else:
        for code in range(codes.max() + 1):
            members = rng.permutation(np.flatnonzero(codes == code))
            order[members] = (np.arange(len(members)) + rng.randint(N_FOLDS)) % N_FOLDS
    is_any = False
    for fold in range(1 if n_rows > _MANY_ROWS else N_FOLDS):
        train, test = np.flatnonzero(order != fold), np.flatnonzero(order == fold)
        counts = np.bincount(codes[train])
        if len(test) > 1 and counts.max() > 1 and np.count_nonzero(counts) > 1:
            is_any = True
            if len(test) > _MOST_HELD_OUT and select == "samples":
                test = rng.choice(test, _MOST_HELD_OUT, replace=False)
            yield train, test
    if not is_any:  # too few rows: each is left out of its own vote
        everything = np.arange(n_rows)
        yield everything, everything


@dataclass(frozen=True)
class TrainingPairs:
    """Rows in coordinates of their span, their pairs, and the prior in the same coordinates.

    A context manager: the blocks of differences are freed at the end.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        Row indices into X.
    codes : ndarray of shape (n_rows,) or None
        Their classes; None where pairs were given.
    places : ndarray of shape (n_pairs, 2)
        Pairs, as indices into the coordinates of the span.
    signed : ndarray of shape (n_pairs,)
        Their weights, negative for dissimilar pairs.
    grades : ndarray of shape (n_pairs, 2) or None
        How similar they are, and weights, where that was given.
    span : Span
        Of the rows.
    prior_inverse : ndarray of shape (rank, rank)
        The inverse of the prior inside the span.
    outside : float
        The inverse of the prior is this multiple of the identity outside the span.
    parallel : dict
        `n_jobs` and `client` of this fit.
    """

    rows: NDArray
    codes: NDArray | None
    places: NDArray
    signed: NDArray
    grades: NDArray | None
    span: Span
    prior_inverse: NDArray
    outside: float
    parallel: dict[str, Any]

    @property
    def pairs(self) -> NDArray:
        """The pairs, as row indices into X."""
        return self.rows[self.places]

    @cached_property
    def prior_factor(self) -> NDArray:
        """L of the prior inside the span, L L'."""
        return np.linalg.inv(np.linalg.cholesky(self.prior_inverse)).T

    @cached_property
    def differences(self) -> PairDifferences:
        """The differences of the pairs."""
        return self.differences_of(self.places)

    def differences_of(self, places: NDArray) -> PairDifferences:
        """Return the differences of other pairs of the same rows."""
        return PairDifferences(self.span.coordinates, places, **self.parallel)

    @property
    def labels(self) -> NDArray:
        """+1 for similar pairs, -1 for dissimilar ones."""
        return np.sign(self.signed).astype(np.int64)

    def with_pairs(self, places: NDArray, signed: NDArray) -> TrainingPairs:
        """Return the same rows with other pairs."""
        return replace(self, places=places, signed=signed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if "differences" in vars(self):
            self.differences.__exit__(*exc_info)
