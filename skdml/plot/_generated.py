"""Generated beside real samples, and the training of a generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted

from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_named_array
from ._style import COLORS, Panels, check_vector


@dataclass(eq=False, repr=False)
class GeneratedSamplesDisplay(Panels):
    """Generated rows beside real ones, drawn in two dimensions, or as images.

    Use `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    real, generated : ndarray of shape (n_samples, n_features)
        The rows.
    image_shape : tuple (height, width), default=None
        The shape of a row that is an image; None draws rows as points, along the two leading
        principal axes of the real ones.

    Attributes
    ----------
    axes_ : ndarray of two matplotlib Axes
        Real rows, generated rows.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import WassersteinGenerator
    >>> from skdml.plot import GeneratedSamplesDisplay
    >>> X, _ = load_iris(return_X_y=True)
    >>> model = WassersteinGenerator(max_iter=50, random_state=0).fit(X)
    >>> display = GeneratedSamplesDisplay.from_estimator(model, X, random_state=0)
    >>> [axes.get_title() for axes in display.axes_]
    ['real', 'generated']
    """

    figsize = (7.4, 3.7)
    real: NDArray
    generated: NDArray
    image_shape: tuple[int, int] | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        *,
        image_shape: tuple[int, int] | None = None,
        random_state: RandomStateLike = None,
        ax: Any = None,
    ) -> Self:
        """Draw rows and as many samples of a fitted generator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `sample`.
        X : array-like of shape (n_samples, n_features)
            Real rows.
        image_shape : tuple (height, width), default=None
            The shape of a row that is an image.
        random_state : int, RandomState instance or None, default=None
            Seeds the samples.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : GeneratedSamplesDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        X = check_named_array(X, "X")
        samples = estimator.sample(len(X), random_state=random_state)
        return cls.from_predictions(X, samples, image_shape=image_shape, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        real: MatrixLike,
        generated: MatrixLike,
        *,
        image_shape: tuple[int, int] | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw real and generated rows.

        Parameters
        ----------
        real : array-like of shape (n_real, n_features)
            Real rows.
        generated : array-like of shape (n_generated, n_features)
            Generated rows.
        image_shape : tuple (height, width), default=None
            The shape of a row that is an image.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : GeneratedSamplesDisplay
            The drawn display.
        """
        real = check_named_array(real, "real")
        generated = check_named_array(generated, "generated")
        if real.shape[1] != generated.shape[1]:
            raise ValueError(
                f"generated must have the {real.shape[1]} features of real, got "
                f"{generated.shape[1]}."
            )
        if image_shape is not None and math.prod(image_shape) != real.shape[1]:
            raise ValueError(
                f"image_shape={tuple(image_shape)} has {math.prod(image_shape)} values, but rows "
                f"have {real.shape[1]}."
            )
        return cls(real, generated, image_shape).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        if self.image_shape is None:
            self._plot_points()
        else:
            self._plot_images(*self.image_shape)
        for axes, title in zip(self.axes_, ("real", "generated"), strict=True):
            axes.set(title=title, xticks=[], yticks=[])

    def _plot_points(self):
        sides = [self.real, self.generated]
        if self.real.shape[1] == 1:
            sides = [np.column_stack([rows, np.zeros(len(rows))]) for rows in sides]
        elif self.real.shape[1] > 2:
            axes = PCA(2).fit(self.real)
            sides = [axes.transform(rows) for rows in sides]
        for axes, points, color in zip(self.axes_, sides, COLORS, strict=False):
            axes.scatter(*points.T, s=10, c=color, alpha=0.6, linewidths=0)
        ends = np.concatenate(sides)
        margin = 0.05 * np.ptp(ends, axis=0) + 1e-9
        low, high = ends.min(axis=0) - margin, ends.max(axis=0) + margin
        for axes in self.axes_:
            axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))

    def _plot_images(self, height, width):
        side = min(8, math.isqrt(len(self.real)), math.isqrt(len(self.generated)))
        for axes, rows in zip(self.axes_, (self.real, self.generated), strict=True):
            grid = rows[: side * side].reshape(side, side, height, width).astype(float)
            grid = np.pad(grid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
            sheet = grid.transpose(0, 2, 1, 3).reshape(side * (height + 2), side * (width + 2))
            axes.imshow(sheet, cmap="gray_r", vmin=self.real.min(), vmax=self.real.max())


@dataclass(eq=False, repr=False)
class GeneratorTrainingDisplay(Panels):
    """Training of a generator: distance to the real rows, and masses of the last transport cells.

    The left panel is the distance in each update, or the loss of a flow, and its running mean. The
    right panel is the share of the rows that fell to each of the last generated points, sorted,
    where 1 is a fair share; it is empty for a flow, which has no such points. Use `from_estimator`
    or `from_predictions` to make one.

    Parameters
    ----------
    curve : ndarray of shape (n_updates,)
        The distances.
    masses : ndarray of shape (n_points,), default=None
        The masses; None for a flow.

    Attributes
    ----------
    axes_ : ndarray of two matplotlib Axes
        The panels.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import WassersteinGenerator
    >>> from skdml.plot import GeneratorTrainingDisplay
    >>> X, _ = load_iris(return_X_y=True)
    >>> model = WassersteinGenerator(max_iter=50, random_state=0).fit(X)
    >>> display = GeneratorTrainingDisplay.from_estimator(model)
    >>> len(display.axes_)
    2
    """

    curve: NDArray
    masses: NDArray | None = None

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Self:
        """Draw the training of a fitted generator.

        Parameters
        ----------
        estimator : WassersteinGenerator
            Fitted.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : GeneratorTrainingDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        history = estimator.history_
        curve = history["loss"] if "loss" in history else history["wasserstein"]
        return cls.from_predictions(curve, getattr(estimator, "masses_", None), ax=ax)

    @classmethod
    def from_predictions(
        cls, curve: ArrayLike, masses: ArrayLike | None = None, *, ax: Any = None
    ) -> Self:
        """Draw the training curve of a generator from arrays.

        Parameters
        ----------
        curve : array-like of shape (n_updates,)
            The distance, or the loss of a flow, in each update.
        masses : array-like of shape (n_points,), default=None
            The masses of the last points; None for a flow.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : GeneratorTrainingDisplay
            The drawn display.
        """
        curve = check_vector(curve, "curve", "update")
        if masses is not None:
            masses = check_vector(masses, "masses", "point")
        return cls(curve, masses).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        curve, cells = self.axes_
        updates = np.arange(1, len(self.curve) + 1)
        window = max(1, len(self.curve) // 20)
        smooth = np.convolve(self.curve, np.full(window, 1 / window), mode="valid")
        label = f"mean of the last {window}"
        curve.plot(updates, self.curve, lw=0.8, color=COLORS[0], alpha=0.35, label="each update")
        curve.plot(updates[window - 1 :], smooth, color=COLORS[0], label=label)
        is_flow = self.masses is None
        title = "loss of the flow" if is_flow else "distance of points and rows"
        curve.set(title=title, xlabel="update", ylabel="loss" if is_flow else "distance")
        curve.legend(frameon=False, fontsize=8)
        if self.masses is None:
            cells.set_axis_off()
            return
        masses = np.sort(self.masses)[::-1]
        cells.bar(np.arange(1, len(masses) + 1), masses, width=1.0, color=COLORS[2])
        cells.axhline(1, color="black", lw=0.8, ls="--")
        cells.set(title="masses of the last cells", xlabel="point", ylabel="fair shares of rows")
        cells.xaxis.get_major_locator().set_params(integer=True)
