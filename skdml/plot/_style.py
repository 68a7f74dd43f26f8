"""Colours, line styles, axes and legends of all displays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._optional import optional_import

# Okabe and Ito's palette, which colour-blind readers can tell apart (yellow left out: too pale
# on white); with more classes the markers change.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
# Right and wrong neighbours; they also differ in the width of their frames.
RIGHT, WRONG = COLORS[0], COLORS[1]


def class_styles() -> Iterator[tuple[str, str]]:
    """Yield (colour, marker) for one class after the other."""
    for marker, color in itertools.cycle(itertools.product(MARKERS, COLORS)):
        yield color, marker


def line_style(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the line with this number in its axes."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
    }


def add_legend(axes: Any, **options: Any) -> None:
    """Name the lines of axes that have more than one."""
    if len(axes.lines) > 1 and axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8, **options)


def check_vector(values: ArrayLike, name: str, entry: str, finite: bool = True) -> NDArray:
    """Return numbers as a vector: one for each `entry`, and at least one."""
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"{name} must be a vector with one entry for each {entry}, got an array of shape "
            f"{values.shape}."
        )
    if finite and not np.isfinite(values).all():
        raise ValueError(f"{name} must have no NaN and no infinity.")
    return values


def check_axis(ax: Any, user: str, **figure_options: Any) -> tuple[Any, Any]:
    """Return one axes: the given one, or that of a new figure."""
    figure, axes = check_axes(ax, 1, user, **figure_options)
    return figure, axes[0]


def check_axes(ax: Any, n_axes: int, user: str, **figure_options: Any) -> tuple[Any, NDArray]:
    """Return `n_axes` axes: the given ones, or those of a new figure."""
    pyplot = optional_import("matplotlib.pyplot", user)
    if ax is None:
        figure, axes = pyplot.subplots(1, n_axes, layout="constrained", **figure_options)
        return figure, np.atleast_1d(axes)
    axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
    if len(axes) != n_axes:
        raise ValueError(f"ax must be {n_axes} axes for {user}, got {len(axes)}.")
    return axes[0].figure, axes


class Panels:
    """Base of displays with panels side by side, which `_draw` fills.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        The panels.
    figure_ : matplotlib Figure
        The figure around them.
    """

    n_panels = 2
    figsize = (7.4, 3.2)
    axes_: NDArray
    figure_: Any

    def plot(self, ax: Any = None) -> Self:
        """Draw the panels.

        Parameters
        ----------
        ax : sequence of matplotlib Axes, default=None
            One for each panel; None makes a figure.

        Returns
        -------
        display : Display
            Itself.
        """
        self.figure_, self.axes_ = check_axes(
            ax, self.n_panels, type(self).__name__, figsize=self.figsize
        )
        self._draw(own_figure=ax is None)
        return self

    def _draw(self, own_figure: bool) -> None:
        raise NotImplementedError
