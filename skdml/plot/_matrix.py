"""A Mahalanobis matrix as a heat map, with the weights of its columns and its spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..linear import MahalanobisMetric
from ._style import COLORS, Panels, add_legend

# With more features a heat map shows nothing: the directions of the metric are drawn instead.
_MOST_FEATURES = 200


@dataclass(eq=False, repr=False)
class MetricMatrixDisplay(Panels):
    """A learned Mahalanobis metric: its matrix as a heat map, its columns, and its spectrum.

    The second panel shows how much a difference in each column counts, in units of the mean column:
    columns below 1, in orange, were turned down. Above 200 features the first two would show
    nothing and take a matrix of n_features² entries, so only the spectrum is drawn. Use
    `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    metric : MahalanobisMetric
        The metric.
    feature_names : sequence of str, default=None
        Names beside the columns, drawn for up to 30 features.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        Heat map, columns and spectrum, or the spectrum alone.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skdml import GMMLTransformer
    >>> from skdml.plot import MetricMatrixDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> model = GMMLTransformer(random_state=0).fit(X, y)
    >>> display = MetricMatrixDisplay.from_estimator(model)
    >>> len(display.axes_)
    3
    """

    n_panels = 3
    figsize = (10.2, 3.2)
    metric: MahalanobisMetric
    feature_names: Sequence[str] | NDArray | None = None

    def __post_init__(self) -> None:
        if self.metric.n_features > _MOST_FEATURES:
            self.n_panels, self.figsize = 1, (4.2, 3.2)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, feature_names: Sequence[str] | NDArray | None = None, ax: Any = None
    ) -> Self:
        """Draw the metric of a fitted linear metric learner.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `get_metric`.
        feature_names : sequence of str, default=None
            None takes those seen in `fit`, if any.
        ax : sequence of matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : MetricMatrixDisplay
            The drawn display.
        """
        metric = estimator.get_metric()
        if feature_names is None:
            feature_names = getattr(estimator, "feature_names_in_", None)
        return cls.from_predictions(metric, feature_names=feature_names, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        metric: MahalanobisMetric,
        *,
        feature_names: Sequence[str] | NDArray | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a metric, or the matrix of one that was learned elsewhere.

        Parameters
        ----------
        metric : MahalanobisMetric or array-like of shape (n_features, n_features)
            The metric, or its symmetric and positive semi-definite matrix.
        feature_names : sequence of str, default=None
            Names beside the heat map.
        ax : sequence of matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : MetricMatrixDisplay
            The drawn display.
        """
        if not isinstance(metric, MahalanobisMetric):
            metric = MahalanobisMetric.from_matrix(metric)
        return cls(metric, feature_names).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        if self.n_panels == 3:
            self._plot_matrix(self.axes_[0])
            self._plot_columns(self.axes_[1])
        self._plot_spectrum(self.axes_[-1])

    def _plot_matrix(self, axes):
        matrix = self.metric.matrix()
        limit = np.abs(matrix).max()
        image = axes.imshow(matrix, cmap="PuOr_r", vmin=-limit, vmax=limit, interpolation="nearest")
        self.figure_.colorbar(image, ax=axes, shrink=0.8)
        axes.set_title("Mahalanobis matrix")
        axes.set_xlabel("feature")

    def _plot_columns(self, axes):
        weights = self.metric.matrix().diagonal()
        weights = weights / weights.mean()
        places = range(len(weights))
        colors = np.where(weights >= 1, COLORS[0], COLORS[1])
        if self.feature_names is not None and len(weights) <= 30:
            axes.barh(places, weights, color=colors)
            axes.set_yticks(places, self.feature_names, fontsize=7 if len(weights) <= 20 else 5.5)
            axes.invert_yaxis()
            axes.axvline(1, color="black", lw=0.8, ls="--")
            axes.set_xlabel("weight, the mean is 1")
        else:
            axes.bar(places, weights, width=1.0, color=colors)
            axes.axhline(1, color="black", lw=0.8, ls="--")
            axes.set(xlabel="feature", ylabel="weight, the mean is 1")
        axes.set_title("how much a column counts")

    def _plot_spectrum(self, axes):
        eigenvalues = np.sort(self.metric.scale + self.metric.weights)[::-1]
        places = np.arange(1, len(eigenvalues) + 1)
        style = {"ms": 3, "lw": 1, "color": COLORS[0], "label": "along the learned directions"}
        axes.plot(places, eigenvalues, "o-", **style)
        outside = self.metric.n_features - self.metric.rank
        if outside and self.metric.scale > 0:
            label = f"in the other {outside:,} dimensions"
            axes.axhline(self.metric.scale, color=COLORS[1], lw=1, ls="--", label=label)
        axes.set(title="spectrum", xlabel="direction", ylabel="eigenvalue", yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        add_legend(axes)
