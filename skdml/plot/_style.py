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
    """Return (marker, colour) for one class after the other, without end."""
    return itertools.cycle(itertools.product(MARKERS, COLORS))


def add_line(axes: Any, x: Any, y: Any, **options: Any) -> Any:
    """Draw a line whose colour, marker and dashes the lines before it do not have."""
    styles = {"color": COLORS, "marker": MARKERS, "linestyle": DASHES}
    number = len(axes.lines)
    own = {name: values[number % len(values)] for name, values in styles.items()}
    return axes.plot(x, y, **{**own, **options})[0]


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


class Panels:
    """Base of displays: panels side by side, which `_draw` fills.

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

    @property
    def ax_(self) -> Any:
        """The first panel."""
        return self.axes_[0]

    def plot(self, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes or sequence of them, default=None
            One for each panel; None makes a figure.

        Returns
        -------
        display : Display
            Itself.
        """
        name, n_panels = type(self).__name__, self.n_panels
        pyplot = optional_import("matplotlib.pyplot", name)
        axes = ax
        if ax is None:
            axes = pyplot.subplots(1, n_panels, layout="constrained", figsize=self.figsize)[1]
        self.axes_ = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        if len(self.axes_) != n_panels:
            raise ValueError(f"ax must be {n_panels} axes for {name}, got {len(self.axes_)}.")
        self.figure_ = self.axes_[0].figure
        self._draw(own_figure=ax is None)
        return self

    def _draw(self, own_figure: bool) -> None:
        raise NotImplementedError
