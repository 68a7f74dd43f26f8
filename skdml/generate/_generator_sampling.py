"""Samples of a generator: in blocks, under conditions, and whether they spread as rows do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import gen_batches

from ._columns import mean_deviation
from ._generator_input import make_condition
from ._tables import TableEncoder

_BLOCK = 4096
# Conditions that hold for less than this share of so many rows are too rare.
_MOST_DRAWS, _LEAST_SHARE = 50_000, 1e-3
# Samples whose spread is below the first share of that of the rows have collapsed; above or below
# the second factor, they are not like the rows.
_COLLAPSED, _MAX_SPREAD = 0.01, 3.0

# From a number of samples and their codes, if any, to encoded samples.
Draw = Callable[[int, NDArray | None], NDArray]


def draw_blocks(draw: Draw, n_samples: int, codes: NDArray | None) -> Iterator[NDArray]:
    """Yield encoded samples in blocks."""
    for part in gen_batches(n_samples, _BLOCK):
        found = draw(part.stop - part.start, None if codes is None else codes[part])
        if not np.isfinite(found).all():
            raise ValueError(
                "the generator draws rows that are not finite, so its training diverged: fit it "
                "again with a smaller lr."
            )
        yield found


def draw_conditioned(
    draw: Draw,
    n_samples: int,
    codes: NDArray | None,
    encoder: TableEncoder,
    conditions: dict[Any, Any],
) -> NDArray:
    """Return encoded samples that meet conditions, in the order in which they are drawn.

    Parameters
    ----------
    draw : callable
        Returns encoded samples.
    n_samples : int
        How many are wanted.
    codes : ndarray of shape (n_samples, n_codes) or None
        Of the class of the samples, which must be the same for all of them.
    encoder : TableEncoder
        Knows the columns.
    conditions : dict of column to value
        What samples have to meet.

    Returns
    -------
    samples : ndarray of shape (n_samples, n_columns)
        Encoded samples.
    """
    if codes is not None and len(np.unique(codes, axis=0)) > 1:
        raise ValueError("y must be one class where there are conditions, got several.")
    accepts = make_condition(encoder, conditions)
    found: list[NDArray] = []
    n_found = n_drawn = 0
    size = min(_BLOCK, max(256, 4 * n_samples))
    given = None if codes is None else np.repeat(codes[:1], size, axis=0)
    while n_found < n_samples:
        for block in draw_blocks(draw, size, given):
            kept = block[accepts(encoder.decode(block))]
            found.append(kept)
            n_found, n_drawn = n_found + len(kept), n_drawn + len(block)
        if n_drawn >= _MOST_DRAWS and n_found < n_drawn * _LEAST_SHARE:
            raise ValueError(
                f"conditions={conditions!r} hold for {n_found} of {n_drawn} rows that were "
                "drawn, which is too rare: give fewer, or fit with this column as y."
            )
    return np.concatenate(found)[:n_samples]


def check_spread(samples: NDArray, rows: NDArray, plan: Any, n_iter: int) -> None:
    """Warn of samples that spread more or less than the rows.

    Parameters
    ----------
    samples, rows : ndarray of shape (n, n_columns)
        Encoded samples and rows.
    plan : FlowPlan or TrainingPlan
        The parameters of the training, named in warnings.
    n_iter : int
        How many updates there were.
    """
    if not np.isfinite(samples).all():
        message = f"the generator's samples are not all finite: try a smaller lr than {plan.lr}."
        warnings.warn(message, ConvergenceWarning, stacklevel=5)
        return
    spread, expected = mean_deviation(samples), mean_deviation(rows)
    if expected / _MAX_SPREAD <= spread <= _MAX_SPREAD * expected:
        return
    problem = "'s samples spread too much" if spread > expected else "'s samples are too alike"
    if spread < _COLLAPSED * expected:
        problem = " collapsed: its samples are all equal, or nearly so"
    more = "" if getattr(plan, "debias", True) else ", cost='euclidean' with debias=True"
    message = (
        f"the generator{problem}. Their columns vary by {spread:.2g} and those of X by "
        f"{expected:.2g}, scaled. Try max_iter above {n_iter}, a smaller lr than "
        f"{plan.lr}, a batch_size above {plan.batch_size}{more}, or another module."
    )
    warnings.warn(message, ConvergenceWarning, stacklevel=5)
