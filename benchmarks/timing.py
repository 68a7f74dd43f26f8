"""Seconds: median of repeats, the sides of a comparison taking turns."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import threadpoolctl


@dataclass
class Measured:
    """What a side returns when it knows its own time better than the caller's clock.

    `seconds` is None and `missed` is true when the side did not finish within its time cap.
    """

    seconds: float | None
    missed: bool = False


@dataclass
class Timing:
    """The median and all times of one side, and the value of its last call."""

    seconds: float | None
    times: list[float] = field(default_factory=list)
    value: Any = None
    missed: bool = False


def progress(text: str) -> None:
    """Tell on standard error what runs now."""
    print(f"  {text}", file=sys.stderr, flush=True)


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to `threads` threads; None leaves them alone."""
    if threads is None:
        yield
        return
    # torch holds a BLAS that threadpoolctl cannot see.
    torch = sys.modules.get("torch")
    torch_threads = torch.get_num_threads() if torch is not None else None
    with threadpoolctl.threadpool_limits(threads):
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(torch_threads)


def compare(
    sides: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 5,
    warmup: int | Mapping[str, int] = 1,
    threads: int | None = 1,
) -> dict[str, Timing]:
    """Time the sides in turns (A B A B ...), so that a noisy moment hits all of them.

    Parameters
    ----------
    sides : mapping of name to function without arguments
        A function that returns a `Measured` gives its own seconds; one that misses its time
        cap is not run again.
    repeats : int
        Timed calls per side.
    warmup : int or mapping of name to int
        Calls before the timed ones; in a mapping, a side that is not named has none.
    threads : int or None
        Limit of BLAS and OpenMP threads; None where the point is threads.

    Returns
    -------
    dict of name to Timing
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if isinstance(warmup, Mapping):
        unknown = set(warmup) - set(sides)
        if unknown:
            raise ValueError(f"warmup names sides that do not exist: {sorted(unknown)}")
        warm = {name: warmup.get(name, 0) for name in sides}
    else:
        warm = dict.fromkeys(sides, warmup)
    results = {name: Timing(seconds=None) for name in sides}
    for turn in range(-max(warm.values(), default=0), repeats):
        for name, side in sides.items():
            result = results[name]
            if result.missed or turn < -warm[name]:
                continue
            label = f"repeat {turn + 1} of {repeats}" if turn >= 0 else "warm-up"
            progress(f"{name}: {label}")
            result.value = None
            result.value, seconds = _timed(side, threads)
            if isinstance(result.value, Measured):
                seconds, result.missed = result.value.seconds, result.value.missed
            if turn >= 0 and not result.missed:
                result.times.append(seconds)
    for result in results.values():
        if not result.missed:
            result.seconds = statistics.median(result.times)
    return results


def _timed(side, threads):
    # Anew for every call: a library that the last call loaded is limited in the next one.
    with limited_threads(threads):
        gc.collect()
        start = time.perf_counter()
        value = side()
        return value, time.perf_counter() - start


def measure(
    func: Callable[..., Any],
    *args: Any,
    repeats: int = 5,
    warmup: int = 1,
    threads: int | None = 1,
    **kwargs: Any,
) -> Timing:
    """Time `func(*args, **kwargs)` alone; the parameters are those of `compare`."""
    name = getattr(func, "__name__", "function")
    sides = {name: lambda: func(*args, **kwargs)}
    return compare(sides, repeats=repeats, warmup=warmup, threads=threads)[name]
