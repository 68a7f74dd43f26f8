"""Recall at k against k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ..metrics import recall_at_k
from ..metrics._neighbors import Metric
from ..utils._typing import MatrixLike
from ._style import Panels, add_legend, line_style

_KS = (1, 2, 4, 8, 16, 32)


@dataclass(eq=False, repr=False)
class RecallCurveDisplay(Panels):
    """Recall@k of a nearest-neighbour search, against k.

    Recall@k is the share of queries with at least one sample of their class among the k nearest.
    Use `from_estimator` or `from_predictions` to make one; give `ax` to draw several curves into
    one picture.

    Parameters
    ----------
    k : ndarray of shape (n_points,)
        Numbers of neighbours.
    recall : ndarray of shape (n_points,)
        Recall at each of them, between 0 and 1.
    name : str, default=None
        What the curve is called in the legend.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve.
    ax_ : matplotlib Axes
        Where it is drawn.
    figure_ : matplotlib Figure
        The figure around it.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skdml import GMMLTransformer
    >>> from skdml.plot import RecallCurveDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> model = GMMLTransformer(random_state=0).fit(X[::2], y[::2])
    >>> display = RecallCurveDisplay.from_predictions(X[1::2], y[1::2], name="input")
    >>> learned = RecallCurveDisplay.from_estimator(model, X[1::2], y[1::2], ax=display.ax_)
    >>> len(display.ax_.lines)
    2
    """

    n_panels = 1
    figsize = (4.6, 3.2)
    k: Sequence[int] | NDArray
    recall: NDArray
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: ArrayLike,
        *,
        gallery: MatrixLike | None = None,
        gallery_labels: ArrayLike | None = None,
        **options: Any,
    ) -> Self:
        """Draw the recall of samples that a fitted transformer maps.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `transform`.
        X : array-like of shape (n_samples, ...)
            The queries. Without `gallery` each is searched among all the others.
        y : array-like of shape (n_samples,)
            Their classes.
        gallery : array-like of shape (n_gallery, ...), default=None
            Samples to search instead, mapped by `transform_database` where the estimator has it.
        gallery_labels : array-like of shape (n_gallery,), default=None
            Their classes.
        **options : dict
            Other options of `from_predictions`: `k`, `metric` (such as `metric_` of a
            :class:`~skdml.deep.DeepMetricEmbedder` that was trained by transport), `name` (by
            default that of the estimator's class) and `ax`.

        Returns
        -------
        display : RecallCurveDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        options = {"name": type(estimator).__name__, "gallery_labels": gallery_labels, **options}
        gallery = map_gallery(estimator, gallery)
        return cls.from_predictions(estimator.transform(X), y, gallery=gallery, **options)

    @classmethod
    def from_predictions(
        cls,
        X_embedded: ArrayLike,
        y: ArrayLike,
        *,
        gallery: ArrayLike | None = None,
        gallery_labels: ArrayLike | None = None,
        k: Sequence[int] | NDArray | None = None,
        metric: Metric = "euclidean",
        name: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the recall of embedded samples.

        Parameters
        ----------
        X_embedded : array-like of shape (n_samples, n_features)
            The queries. Without `gallery` each is searched among all the others.
        y : array-like of shape (n_samples,)
            Their classes.
        gallery : array-like of shape (n_gallery, n_features), default=None
            Embedded samples to search instead.
        gallery_labels : array-like of shape (n_gallery,), default=None
            Their classes.
        k : sequence of int, default=None
            Numbers of neighbours; None takes 1, 2, 4, 8, 16 and 32, as far as there are as many.
        metric : str, callable or object, default="euclidean"
            As in :func:`~skdml.metrics.recall_at_k`.
        name : str, default=None
            What the curve is called.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : RecallCurveDisplay
            The drawn display.
        """
        if k is None:
            searched = X_embedded if gallery is None else gallery
            n_candidates = np.shape(searched)[0] - (gallery is None)
            k = [number for number in _KS if number <= n_candidates]
        k = np.unique(k)
        recall = recall_at_k(
            X_embedded, y, k.tolist(), gallery=gallery, gallery_labels=gallery_labels, metric=metric
        )
        return cls(k, recall, name).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        style = line_style(len(self.ax_.lines))
        self.line_ = self.ax_.plot(self.k, self.recall, label=self.name, ms=4, **style)[0]
        self.ax_.set_xscale("log", base=2)
        ticks = np.unique(np.concatenate([line.get_xdata() for line in self.ax_.lines]))
        if len(ticks) <= 10:
            self.ax_.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        self.ax_.set(xlabel="neighbours, k", ylabel="recall@k")
        lowest = min(line.get_ydata().min() for line in self.ax_.lines)
        margin = 0.05 * max(1 - lowest, 0.02)
        self.ax_.set_ylim(lowest - margin, 1 + margin)
        add_legend(self.ax_, loc="lower right")


def map_gallery(estimator: Any, gallery: MatrixLike | None) -> NDArray | None:
    """Return samples to be searched, as an estimator maps them: some have a map of their own."""
    transform = getattr(estimator, "transform_database", estimator.transform)
    return None if gallery is None else transform(gallery)
