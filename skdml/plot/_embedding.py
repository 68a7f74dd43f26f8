"""Samples before and after a learned map, as two scatter plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from ..utils._typing import MatrixLike
from ._style import Panels, class_styles

# Longer names of classes stand below the panels.
_SHORT_NAME = 12


@dataclass(eq=False, repr=False)
class EmbeddingDisplay(Panels):
    """Rows before and after a learned map, drawn in two dimensions.

    Use `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    before, after : ndarray of shape (n_samples, 2)
        Positions in the two panels.
    y : ndarray of shape (n_samples,), default=None
        Classes, drawn in different colours and markers.
    titles : tuple of two str, default=("input", "learned")
        Above the panels.

    Attributes
    ----------
    axes_ : ndarray of two matplotlib Axes
        The panels.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skdml import GMMLTransformer
    >>> from skdml.plot import EmbeddingDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> model = GMMLTransformer(random_state=0).fit(X, y)
    >>> display = EmbeddingDisplay.from_estimator(model, X, y)
    >>> len(display.axes_)
    2
    """

    figsize = (7.4, 3.6)
    before: NDArray
    after: NDArray
    y: NDArray | None = None
    titles: tuple[str, str] = ("input", "learned")

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: MatrixLike, y: ArrayLike | None = None, *, ax: Any = None
    ) -> Self:
        """Draw rows as they are and as a fitted transformer maps them.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `transform`.
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows.
        y : array-like of shape (n_samples,), default=None
            Their classes.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : EmbeddingDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        titles = ("input", type(estimator).__name__)
        return cls.from_predictions(X, estimator.transform(X), y, titles=titles, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        X: MatrixLike,
        X_embedded: MatrixLike,
        y: ArrayLike | None = None,
        *,
        titles: tuple[str, str] = ("input", "learned"),
        ax: Any = None,
    ) -> Self:
        """Draw rows and their embedding.

        Each is shown along its own two leading principal axes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The rows before.
        X_embedded : array-like of shape (n_samples, n_outputs)
            The rows after.
        y : array-like of shape (n_samples,), default=None
            Their classes.
        titles : tuple of two str, default=("input", "learned")
            Above the panels.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : EmbeddingDisplay
            The drawn display.
        """
        check_consistent_length(X, X_embedded, y)
        y = None if y is None else np.asarray(y)
        return cls(project(X), project(X_embedded), y, titles).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        classes = [None] if self.y is None else np.unique(self.y)
        sides = (self.before, self.after)
        for axes, points, title in zip(self.axes_, sides, self.titles, strict=True):
            for label, (marker, color) in zip(classes, class_styles(), strict=False):
                chosen, name = (slice(None), None) if label is None else (self.y == label, label)
                style = {"c": color, "marker": marker, "alpha": 0.75, "linewidths": 0}
                axes.scatter(*points[chosen].T, s=12, label=name, **style)
            axes.set(title=title, xticks=[], yticks=[])
        if self.y is None or len(classes) > 12:
            return
        style = {"frameon": False, "markerscale": 1.6}
        longest = max(len(str(label)) for label in classes)
        if own_figure and longest > _SHORT_NAME:
            # Beside the panels long names would leave them no room.
            handles, labels = self.axes_[-1].get_legend_handles_labels()
            style |= {"ncols": max(1, 90 // (longest + 6)), "fontsize": 8}
            self.figure_.legend(handles, labels, loc="outside lower center", **style)
        else:
            self.axes_[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), **style)


def project(X: MatrixLike) -> NDArray:
    """Return the rows along their two leading principal axes (one: a column of zeros is added)."""
    if sparse.issparse(X):
        return TruncatedSVD(2, random_state=0).fit_transform(X)
    X = np.asarray(X, dtype=float)
    if X.ndim > 2:
        X = X.reshape(len(X), -1)
    if X.shape[1] == 1:
        return np.column_stack([X, np.zeros(len(X))])
    return PCA(2, svd_solver="full" if min(X.shape) < 500 else "covariance_eigh").fit_transform(X)
