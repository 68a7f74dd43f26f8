"""Displays of a search: recall at k, and queries with their nearest neighbours as images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from .._optional import optional_import
from ..metrics import recall_at_k
from ..metrics._neighbors import Metric, check_sides, nearest
from ..utils._typing import MatrixLike
from ._style import RIGHT, WRONG, Panels, add_legend, add_line

# Space between images, and between a query and its neighbours, in units of an image's side.
_GAP = 0.12
_QUERY_GAP = 0.3


# Neighbours of the curve of recall.
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
        self.line_ = add_line(self.ax_, self.k, self.recall, label=self.name, ms=4)
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


@dataclass(eq=False, repr=False)
class RetrievalDisplay(Panels):
    """Queries and their nearest neighbours as images, right and wrong ones marked.

    Each row is a query with its neighbours, nearest first. A right neighbour has a thin blue
    frame, a wrong one a thick orange frame and a cross. Use `from_estimator` or
    `from_predictions` to make one.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, height, width) or (n_queries, height, width, 3)
        Images of the queries.
    found : ndarray of shape (n_queries, k, height, width) or (n_queries, k, height, width, 3)
        Images of their neighbours.
    right : ndarray of shape (n_queries, k)
        Whether a neighbour is of the query's class.
    labels : sequence of str, default=None
        Classes of the queries, written beside them.
    cmap : str, default="gray_r"
        Colours of images with one channel; "gray_r" is ink on paper.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the images are drawn.
    figure_ : matplotlib Figure
        The figure around it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skdml import GMMLTransformer
    >>> from skdml.plot import RetrievalDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> model = GMMLTransformer(random_state=0).fit(X[:900], y[:900])
    >>> display = RetrievalDisplay.from_estimator(
    ...     model, X[900:], y[900:], image_shape=(8, 8), n_queries=4)
    >>> display.right.shape
    (4, 5)
    """

    n_panels = 1
    queries: NDArray
    found: NDArray
    right: NDArray
    labels: Any = None
    cmap: str = "gray_r"

    def __post_init__(self) -> None:
        # Where images begin, in units of their width.
        n_queries, k = self.right.shape
        self._aspect = self.queries.shape[1] / self.queries.shape[2]
        self._columns = np.r_[0, 1 + _GAP + _QUERY_GAP + np.arange(k) * (1 + _GAP)]
        self._rows = np.arange(n_queries) * self._aspect * (1 + _GAP)
        size = np.array([self._columns[-1] + 1.1, self._rows[-1] + self._aspect + 0.1])
        self.figsize = tuple(min(0.9, 7.0 / size[0]) * size + [0.4, 0.3])

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
        """Search with a fitted transformer, and draw the nearest neighbours.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `transform`.
        X : array-like of shape (n_samples, ...)
            Images, as the estimator takes them: flat rows, or of shape (channels, height, width).
        y : array-like of shape (n_samples,)
            Their classes.
        gallery : array-like of shape (n_gallery, ...), default=None
            Images to search, mapped by `transform_database` where the estimator has it. None
            searches X without the query itself.
        gallery_labels : array-like of shape (n_gallery,), default=None
            Their classes.
        **options : dict
            Other options of `from_predictions`: `queries`, `n_queries`, `k`, `metric`,
            `image_shape`, `cmap` and `ax`.

        Returns
        -------
        display : RetrievalDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        embedded = estimator.transform(X)
        searched: dict[str, Any] = {"gallery_labels": gallery_labels, "gallery_images": gallery}
        gallery = map_gallery(estimator, gallery)
        return cls.from_predictions(embedded, y, X, gallery=gallery, **searched, **options)

    @classmethod
    def from_predictions(
        cls,
        X_embedded: MatrixLike,
        y: ArrayLike,
        images: MatrixLike,
        *,
        gallery: MatrixLike | None = None,
        gallery_labels: ArrayLike | None = None,
        gallery_images: MatrixLike | None = None,
        queries: ArrayLike | None = None,
        n_queries: int = 5,
        k: int = 5,
        metric: Metric = "euclidean",
        image_shape: tuple[int, int] | None = None,
        cmap: str = "gray_r",
        ax: Any = None,
    ) -> Self:
        """Search among embedded images, and draw the nearest neighbours.

        Parameters
        ----------
        X_embedded : array-like of shape (n_samples, n_features)
            The embedded images.
        y : array-like of shape (n_samples,)
            Their classes.
        images : array-like of shape (n_samples, ...)
            The images: flat rows, or of shape (height, width), (channels, height, width) or
            (height, width, channels), with 1 or 3 channels.
        gallery, gallery_labels, gallery_images : array-like, default=None
            The same of images to search. None searches the others of X_embedded.
        queries : sequence of int, default=None
            Which images to look up. None takes `n_queries` of different classes.
        n_queries : int, default=5
            How many, if `queries` is None.
        k : int, default=5
            Neighbours of each.
        metric : str, callable or object, default="euclidean"
            The distance of embedded images.
        image_shape : tuple (height, width), default=None
            The shape of a row that is an image; None takes that of `images`, or a square.
        cmap : str, default="gray_r"
            Colours of images with one channel.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : RetrievalDisplay
            The drawn display.
        """
        check_consistent_length(X_embedded, y, images)
        given = [part is not None for part in (gallery, gallery_labels, gallery_images)]
        if any(given) and not all(given):
            raise ValueError(
                "gallery, gallery_labels and gallery_images belong together: give all, or none."
            )
        check_consistent_length(gallery, gallery_labels, gallery_images)
        y = np.asarray(y)
        queries = choose_queries(y, n_queries) if queries is None else check_queries(queries, y)
        places = search(X_embedded, gallery, queries, k, metric)
        if gallery is None:
            gallery_labels, gallery_images = y, images
        shown, searched = (as_images(some, image_shape) for some in (images, gallery_images))
        return cls(
            shown[queries],
            searched[places],
            np.asarray(gallery_labels)[places] == y[queries, None],
            [str(label) for label in y[queries]],
            cmap,
        ).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        patches = optional_import("matplotlib.patches", type(self).__name__)
        columns, rows, aspect = self._columns, self._rows, self._aspect
        for query, found, right, y in zip(self.queries, self.found, self.right, rows, strict=True):
            self._show(query, 0, y, self.queries)
            for image, is_right, x in zip(found, right, columns[1:], strict=True):
                self._show(image, x, y, self.found)
                frame = {"color": RIGHT, "lw": 1.2} if is_right else {"color": WRONG, "lw": 3}
                frame |= {"fill": False, "clip_on": False}
                self.ax_.add_patch(patches.Rectangle((x, y), 1, aspect, **frame))
                if not is_right:
                    box = {"facecolor": WRONG, "edgecolor": "none", "pad": 0.6}
                    style = {"color": "white", "fontsize": 9, "ha": "right", "va": "top"}
                    self.ax_.text(x + 0.97, y + 0.03, "×", bbox=box, **style)
        self.ax_.set(xlim=(-0.05, columns[-1] + 1.05), aspect="equal")
        self.ax_.set_ylim(rows[-1] + aspect + 0.05, -0.05)
        self.ax_.spines[:].set_visible(False)
        self.ax_.tick_params(length=0, labelsize=8)
        self.ax_.xaxis.tick_top()
        self.ax_.set_xticks(columns + 0.5, ["query", *range(1, len(columns))])
        labels = [""] * len(rows) if self.labels is None else self.labels
        self.ax_.set_yticks(rows + aspect / 2, labels)

    def _show(self, image, x, y, group):
        options = {}
        if image.ndim == 2:  # all of a group have the same greys
            options = {"cmap": self.cmap, "vmin": group.min(), "vmax": group.max()}
        self.ax_.imshow(image, extent=(x, x + 1, y + self._aspect, y), **options)


def choose_queries(y: NDArray, n_queries: int) -> NDArray:
    """Return the first sample of some classes, spread evenly over them."""
    if n_queries < 1:
        raise ValueError(f"n_queries must be 1 or more, got {n_queries}.")
    _, first = np.unique(y, return_index=True)
    places = np.linspace(0, len(first) - 1, min(n_queries, len(first))).astype(int)
    return first[places]


def check_queries(queries: ArrayLike, y: NDArray) -> NDArray:
    """Return the indices of queries, or raise if they are not indices of samples."""
    queries = np.asarray(queries)
    is_vector = queries.ndim == 1 and queries.dtype.kind in "iu" and len(queries)
    if not is_vector or queries.min() < 0 or queries.max() >= len(y):
        raise ValueError(
            f"queries must be a sequence of whole numbers between 0 and {len(y) - 1}, indices of "
            f"images, got {queries.tolist()}."
        )
    return queries


def search(X: Any, gallery: Any, queries: NDArray, k: int, metric: Metric) -> NDArray:
    """Return the nearest k rows of the gallery (None: the other rows of X) for some rows of X."""
    X, Y = check_sides(X, gallery, "X_embedded")
    n_candidates = len(Y) - (gallery is None)
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= n_candidates:
        raise ValueError(
            f"k must be a whole number from 1 to the number of images to search, which is "
            f"{n_candidates}, got {k}."
        )
    needed = np.zeros(len(X), dtype=int)
    needed[queries] = k
    places = np.empty((len(X), k), dtype=int)
    for rows, found in nearest(X, Y, needed, metric=metric):
        places[rows] = found
    return places[queries]


def as_images(X: Any, image_shape: tuple[int, int] | None = None) -> NDArray:
    """Return images of shape (n, height, width), or (n, height, width, 3) in colour."""
    X = np.asarray(X)
    if X.ndim == 2:
        shape = (math.isqrt(X.shape[1]),) * 2 if image_shape is None else tuple(image_shape)
        if math.prod(shape) != X.shape[1]:
            raise ValueError(
                f"image_shape={image_shape}: rows have {X.shape[1]} values. Give the height and "
                "the width of an image."
            )
        X = X.reshape(len(X), *shape)
    if X.ndim == 4 and X.shape[1] in (1, 3):  # as torch has them
        X = np.moveaxis(X, 1, -1)
    if X.ndim == 4 and X.shape[-1] == 1:
        X = X[..., 0]
    if X.ndim != 3 and not (X.ndim == 4 and X.shape[-1] == 3):
        raise ValueError(f"images must have 1 or 3 channels, got an array of shape {X.shape}.")
    return X
