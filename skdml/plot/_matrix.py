"""A Mahalanobis matrix as a heat map, with the weights of its columns and its spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from ..linear import MahalanobisMetric
from ..utils._typing import MatrixLike
from ._style import COLORS, Panels, add_legend

# With more features a heat map shows nothing: the directions of the metric are drawn instead.
_MOST_FEATURES = 200


@dataclass(eq=False, repr=False)
class MetricMatrixDisplay(Panels):
    """A learned Mahalanobis metric: its matrix as a heat map, its columns, and its spectrum.

    The second panel shows how much each column counts; columns in orange were turned down. With
    rows, it is the share of the column in the mean squared distance of two rows, beside its share
    in the plain distance. Without rows it is the weight of a difference in the column, in units of
    the mean column: a column that hardly varies may have a large one.

    Above 200 features the first two panels would show nothing and take a matrix of n_features²
    entries, so only the spectrum is drawn. Use `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    metric : MahalanobisMetric
        The metric.
    feature_names : sequence of str, default=None
        Names beside the columns, drawn for up to 30 features.
    covariance : ndarray of shape (n_features, n_features), default=None
        That of the rows, if there are any.

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
    covariance: NDArray | None = None

    def __post_init__(self) -> None:
        if self.metric.n_features > _MOST_FEATURES:
            self.n_panels, self.figsize = 1, (4.2, 3.2)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike | None = None,
        *,
        feature_names: Sequence[str] | NDArray | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the metric of a fitted linear metric learner.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `get_metric`.
        X : array-like of shape (n_samples, n_features), default=None
            Rows, for the share of each column in their distances.
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
        return cls.from_predictions(metric, X, feature_names=feature_names, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        metric: MahalanobisMetric,
        X: MatrixLike | None = None,
        *,
        feature_names: Sequence[str] | NDArray | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a metric, or the matrix of one that was learned elsewhere.

        Parameters
        ----------
        metric : MahalanobisMetric or array-like of shape (n_features, n_features)
            The metric, or its symmetric and positive semi-definite matrix.
        X : array-like of shape (n_samples, n_features), default=None
            Rows, for the share of each column in their distances.
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
        covariance = None
        if X is not None and metric.n_features <= _MOST_FEATURES:
            rows = check_array(X, accept_sparse="csr", ensure_min_samples=2)
            if rows.shape[1] != metric.n_features:
                raise ValueError(
                    f"X must have {metric.n_features} columns, as the metric, got {rows.shape[1]}."
                )
            covariance = np.cov(rows.toarray() if sparse.issparse(rows) else rows, rowvar=False)
        return cls(metric, feature_names, covariance).plot(ax=ax)

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
        matrix = self.metric.matrix()
        if self.covariance is None:
            counts, plain = matrix.diagonal(), None
            counts, limit, label = counts / counts.mean(), 1.0, "weight, the mean is 1"
        else:
            # What a column adds to the mean squared distance of two rows, in both metrics.
            covariance = np.atleast_2d(self.covariance)
            counts, plain = (matrix * covariance).sum(axis=1), covariance.diagonal()
            counts, plain = counts / counts.sum(), plain / plain.sum()
            limit, label = plain, "share of the squared distance"
        names = self.feature_names if len(counts) <= 30 else None
        places = np.arange(len(counts))
        draw, size = (axes.bar, "width") if names is None else (axes.barh, "height")
        thick = {size: 1.0 if names is None else 0.8}
        for chosen, color, name in (
            (counts >= limit, COLORS[0], "counts more"),
            (counts < limit, COLORS[1], "turned down"),
        ):
            if chosen.any():
                draw(places[chosen], counts[chosen], color=color, label=name, **thick)
        self._plot_limits(axes, plain, names is None)
        # The limits leave room for the legend.
        if names is None:
            axes.set(xlabel="feature", ylabel=label)
            axes.set_ylim(top=1.4 * axes.get_ylim()[1])
            axes.xaxis.get_major_locator().set_params(integer=True)
        else:
            axes.set_yticks(places, names, fontsize=7 if len(names) <= 20 else 5.5)
            axes.set_ylim(1.3 * len(names), -0.7)
            axes.set_xlabel(label)
        axes.set_title("how much a column counts")
        axes.legend(frameon=False, fontsize=8, loc="best" if names is None else "lower right")

    def _plot_limits(self, axes, plain, is_upright):
        """Draw where a column has counted before."""
        if plain is None:
            line = axes.axhline if is_upright else axes.axvline
            line(1, color="black", lw=0.8, ls="--")
            return
        edges = np.arange(len(plain) + 1) - 0.5
        orientation = "vertical" if is_upright else "horizontal"
        style = {"color": "black", "lw": 0.8, "label": "plain distance", "baseline": None}
        axes.stairs(plain, edges, orientation=orientation, **style)

    def _plot_spectrum(self, axes):
        eigenvalues = np.sort(self.metric.scale + self.metric.weights)[::-1]
        places = np.arange(1, len(eigenvalues) + 1)
        style = {"ms": 3, "lw": 1, "color": COLORS[0], "label": "learned directions"}
        axes.plot(places, eigenvalues, "o-", **style)
        outside = self.metric.n_features - self.metric.rank
        if outside and self.metric.scale > 0:
            label = f"{outside:,} other dimension{'s' if outside > 1 else ''}"
            axes.axhline(self.metric.scale, color=COLORS[1], lw=1, ls="--", label=label)
        axes.set(title="spectrum", xlabel="direction", ylabel="eigenvalue", yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        add_legend(axes)
