"""Samples as scatter plots: before and after a learned map, and with propagated labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.manifold import TSNE
from sklearn.neighbors import kneighbors_graph
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from .._optional import optional_import
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
    stored : ndarray of shape (n_samples,), default=None
        Whether a row is stored, rather than asked for; stored ones are pale.

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
    stored: NDArray | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: ArrayLike | None = None,
        *,
        gallery: MatrixLike | None = None,
        gallery_labels: ArrayLike | None = None,
        ax: Any = None,
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
        gallery : array-like of shape (n_gallery, n_features), default=None
            Stored rows that X is searched in, drawn pale, and mapped by `transform_database` where
            the estimator has it.
        gallery_labels : array-like of shape (n_gallery,), default=None
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
        if gallery is None:
            if gallery_labels is not None:
                raise ValueError("gallery_labels is given without gallery.")
            return cls.from_predictions(X, estimator.transform(X), y, titles=titles, ax=ax)
        if (y is None) != (gallery_labels is None):
            raise ValueError("pass both y and gallery_labels, or neither.")
        check_consistent_length(X, y)
        check_consistent_length(gallery, gallery_labels)
        as_stored = getattr(estimator, "transform_database", estimator.transform)
        before = np.concatenate([np.asarray(X), np.asarray(gallery)])
        after = np.concatenate([estimator.transform(X), as_stored(gallery)])
        labels = None if y is None else np.concatenate([np.asarray(y), np.asarray(gallery_labels)])
        stored = np.arange(len(before)) >= len(after) - len(np.asarray(gallery))
        return cls(project(before), project(after), labels, titles, stored).plot(ax=ax)

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
        size = np.clip(4000 / len(self.before), 12, 36)
        for axes, points, title in zip(self.axes_, sides, self.titles, strict=True):
            for label, (marker, color) in zip(classes, class_styles(), strict=False):
                chosen = np.ones(len(points), bool) if label is None else self.y == label
                style = {"c": color, "marker": marker, "linewidths": 0}
                if self.stored is not None:
                    pale = points[chosen & self.stored]
                    axes.scatter(*pale.T, s=size, alpha=0.25, zorder=1, **style)
                    chosen = chosen & ~self.stored
                name = label if len(classes) <= 12 else None
                axes.scatter(*points[chosen].T, s=size, label=name, alpha=0.75, zorder=2, **style)
            axes.set(title=title, xticks=[], yticks=[])
            for name, alpha in (("query, strong", 0.75), ("stored, pale", 0.25)):
                if self.stored is not None:
                    axes.scatter([], [], s=size, c="0.3", alpha=alpha, linewidths=0, label=name)
        if not self.axes_[-1].get_legend_handles_labels()[1]:
            return
        style = {"frameon": False, "markerscale": (20 / size) ** 0.5 * 1.25}
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
    return principal_axes(X)[0]


def principal_axes(X: MatrixLike) -> tuple[NDArray, float]:
    """Return the rows along their two leading principal axes, and their share of the variance."""
    if sparse.issparse(X):
        model = TruncatedSVD(2, random_state=0)
        return model.fit_transform(X), float(model.explained_variance_ratio_.sum())
    rows = np.asarray(X, dtype=float)
    rows = rows.reshape(len(rows), -1)
    if rows.shape[1] == 1:
        return np.column_stack([rows, np.zeros(len(rows))]), 1.0
    if not np.ptp(rows, axis=0).any():
        return np.zeros((len(rows), 2)), 1.0  # equal rows have no axes
    model = PCA(2, svd_solver="full" if min(rows.shape) < 500 else "covariance_eigh")
    points = model.fit_transform(rows)
    return points, float(model.explained_variance_ratio_.sum())


@dataclass(eq=False, repr=False)
class AffinityDisplay(Panels):
    """Given labels and propagated labels, on the graph of nearest neighbours.

    Use `from_estimator` or `from_predictions` to make one.

    Parameters
    ----------
    positions : ndarray of shape (n_samples, 2)
        Where the samples are drawn.
    edges : ndarray of shape (n_edges, 2)
        Pairs of samples that are joined.
    given : ndarray of shape (n_samples,)
        Labels; -1 for samples without one.
    propagated : ndarray of shape (n_samples,)
        Labels of all samples; -1 or None for samples that no label reached.
    confidence : ndarray of shape (n_samples,)
        Confidence of the propagated labels, between 0 and 1, drawn as opacity.

    Attributes
    ----------
    axes_ : ndarray of two matplotlib Axes
        The panels: given, and propagated.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from skdml import SSDMLEmbedder
    >>> from skdml.plot import AffinityDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> partly = np.where(np.arange(len(y)) % 15 == 0, y, -1)
    >>> model = SSDMLEmbedder(max_epochs=1, n_components=4, random_state=0).fit(X, partly)
    >>> display = AffinityDisplay.from_estimator(model, X, partly)
    >>> len(display.axes_)
    2
    """

    figsize = (7.4, 3.6)
    positions: NDArray
    edges: NDArray
    given: NDArray
    propagated: NDArray
    confidence: NDArray

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: MatrixLike, y: ArrayLike, *, max_samples: int = 1000, **options: Any
    ) -> Self:
        """Draw the training samples of a fitted estimator where it embeds them.

        Parameters
        ----------
        estimator : SSDMLEmbedder
            Fitted on X and y.
        X : array-like of shape (n_samples, ...)
            The training samples.
        y : array-like of shape (n_samples,)
            Their labels; -1 for samples without one.
        max_samples : int, default=1000
            At most this many samples are drawn: labelled ones first, others spread evenly over
            the rows.
        **options : dict
            Other options of `from_predictions`: `n_neighbors` (by default the estimator's),
            `projection` and `ax`.

        Returns
        -------
        display : AffinityDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        y = np.asarray(y)
        check_consistent_length(X, y, estimator.propagated_labels_)
        rows = _choose(y != -1, max_samples)
        embedding = estimator.transform(np.asarray(X)[rows])
        found = estimator.propagated_labels_[rows], estimator.propagated_confidence_[rows]
        options = {"n_neighbors": estimator.n_neighbors, **options}
        return cls.from_predictions(embedding, y[rows], *found, **options)

    @classmethod
    def from_predictions(
        cls,
        X_embedded: MatrixLike,
        y: ArrayLike,
        propagated: ArrayLike,
        confidence: ArrayLike | None = None,
        *,
        n_neighbors: int = 10,
        projection: str = "pca",
        ax: Any = None,
    ) -> Self:
        """Draw samples with given and with propagated labels.

        Parameters
        ----------
        X_embedded : array-like of shape (n_samples, n_features)
            The samples, joined to their nearest neighbours.
        y : array-like of shape (n_samples,)
            Given labels; -1 for samples without one.
        propagated : array-like of shape (n_samples,)
            Propagated labels, such as ``LabelSpreading.transduction_``.
        confidence : array-like of shape (n_samples,), default=None
            Between 0 and 1; None is 1.
        n_neighbors : int, default=10
            Neighbours of each sample.
        projection : {"pca", "tsne"}, default="pca"
            How positions are found: two leading principal axes, or t-SNE, which takes longer and
            keeps neighbours together.
        ax : sequence of two matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : AffinityDisplay
            The drawn display.
        """
        if projection not in ("pca", "tsne"):
            raise ValueError(f"projection must be 'pca' or 'tsne', got {projection!r}.")
        check_consistent_length(X_embedded, y, propagated, confidence)
        given, propagated = np.asarray(y), np.asarray(propagated)
        confidence = np.ones(len(given)) if confidence is None else np.asarray(confidence)
        n_neighbors = min(n_neighbors, len(given) - 1)
        graph = kneighbors_graph(X_embedded, n_neighbors).tocoo()
        edges = np.column_stack([graph.row, graph.col])
        if projection == "tsne":
            perplexity = min(30.0, (len(given) - 1) / 3)
            positions = TSNE(perplexity=perplexity, random_state=0).fit_transform(X_embedded)
        else:
            positions = project(X_embedded)
        return cls(positions, edges, given, propagated, confidence).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        collections = optional_import("matplotlib.collections", type(self).__name__)
        known = self.given != -1
        classes = np.unique(self.given[known].tolist())
        titles = f"{known.sum()} given labels", "propagated labels"
        for axes, title in zip(self.axes_, titles, strict=True):
            edges, style = self.positions[self.edges], {"colors": "0.9", "linewidths": 0.4}
            axes.add_collection(collections.LineCollection(edges, zorder=0, **style))
            axes.scatter(*self.positions.T, s=5, c="0.8", linewidths=0)
            axes.set(title=title, xticks=[], yticks=[])
        first, second = self.axes_
        for label, (marker, color) in zip(classes, class_styles(), strict=False):
            style = {"c": color, "marker": marker, "linewidths": 0}
            given = known & (self.given == label)
            first.scatter(*self.positions[given].T, s=28, label=label, **style)
            found = np.array(self.propagated == label, dtype=bool)
            alpha = np.clip(self.confidence[found], 0.15, 1)
            second.scatter(*self.positions[found].T, s=12, alpha=alpha, **style)
        if len(classes) <= 12:
            place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
            second.legend(*first.get_legend_handles_labels(), **place)


def _choose(labelled: NDArray, max_samples: int) -> NDArray:
    """Return the rows to draw: the labelled ones, and others spread evenly."""
    first, others = np.flatnonzero(labelled), np.flatnonzero(~labelled)
    n_others = min(len(others), max(max_samples - len(first), 0))
    places = np.linspace(0, max(len(others) - 1, 0), n_others).astype(int)
    return np.sort(np.concatenate([first[:max_samples], others[places]]))
