"""The core of the measures by query: documents sorted by query and score."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils.validation import check_count, check_grades, check_numbers, check_vector, encode

NoRelevant = Literal["skip", "zero", "one"]


@dataclass
class Ranking:
    """Documents grouped by query and, within a query, best score first."""

    queries: NDArray  # the distinct query ids
    starts: NDArray  # where each query begins
    segment: NDArray  # for each document, the position of its query
    position: NDArray  # for each document, its rank in the query from 0
    grades: NDArray
    ideal: NDArray  # the grades of each query, best grade first

    def sums(self, values: NDArray) -> NDArray:
        """Return the sum of the values of each query."""
        return np.add.reduceat(values, self.starts)

    def maxima(self, values: NDArray) -> NDArray:
        """Return the largest value of each query."""
        return np.maximum.reduceat(values, self.starts)


def rank(
    y_true: ArrayLike, y_score: ArrayLike, qid: ArrayLike | None, ideal: bool = False
) -> Ranking:
    """Check the input and sort it; `ideal` says whether the best order is needed too."""
    grades = check_grades(y_true, "y_true")
    scores = check_numbers(y_score, "y_score", len(grades))
    if qid is None:
        queries, codes = np.zeros(1, dtype=np.intp), np.zeros(len(grades), dtype=np.intp)
    else:
        queries, codes = encode(check_vector(qid, "qid", len(grades)), "qid")
    order = np.lexsort((-scores, codes))
    segment = codes[order]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    return Ranking(
        queries=queries,
        starts=starts,
        segment=segment,
        position=np.arange(len(grades)) - starts[segment],
        grades=grades[order],
        ideal=grades[np.lexsort((-grades, codes))] if ideal else np.empty(0),
    )


def check_cutoff(k: int | None) -> float:
    """Return the number of ranks that count."""
    return math.inf if k is None else check_count(k, "k")


def relevant(ranking: Ranking, threshold: float) -> NDArray:
    """Return for each document whether its grade is above the threshold."""
    if not isinstance(threshold, numbers.Real) or not math.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold!r}.")
    return ranking.grades > threshold


def mean_over_queries(values: NDArray, no_relevant: NoRelevant) -> float:
    """Return the mean; NaN stands for a query without relevant document."""
    if not isinstance(no_relevant, str) or no_relevant not in ("skip", "zero", "one"):
        raise ValueError(f"no_relevant must be 'skip', 'zero' or 'one', got {no_relevant!r}.")
    missing = np.isnan(values)
    if no_relevant != "skip":
        values = np.where(missing, float(no_relevant == "one"), values)
    elif missing.all():
        raise ValueError(
            "y_true: no query has a relevant document, so there is nothing to average; "
            "no_relevant='zero' or 'one' gives such queries a value."
        )
    else:
        values = values[~missing]
    return float(values.mean())


def ratio(numerator: NDArray, denominator: NDArray) -> NDArray:
    """Divide; NaN where the denominator is zero."""
    result = np.full(len(numerator), np.nan)
    return np.divide(numerator, denominator, out=result, where=denominator > 0)
