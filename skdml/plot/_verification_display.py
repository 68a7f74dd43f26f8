"""Display of verification: errors by threshold, and distances of both kinds of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.metrics import auc, roc_curve

from ..metrics._verification_metrics import check_verification, find_equal_errors
from ..utils._typing import MatrixLike
from ._style import COLORS, DASHES, RIGHT, WRONG, Panels

# Legends over a line.
_PLAIN = {"framealpha": 1.0, "edgecolor": "none"}
_DET_TICKS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)


@dataclass(eq=False, repr=False)
class VerificationDisplay(Panels):
    """ROC curve, DET curve, and histograms of the distances of similar and dissimilar pairs.

    The ROC curve shows similar pairs that are accepted against dissimilar ones that are accepted;
    its area and the equal error rate are in its legend. The DET curve shows both errors on
    scales that make it straight where distances are normal. A dot marks the threshold. Drawn into
    the axes of another display, it adds its curves, and leaves the histograms as they are.

    Parameters
    ----------
    similar : ndarray of shape (n_pairs,)
        Whether each pair is similar.
    distances : ndarray of shape (n_pairs,)
        Their distances.
    threshold : float, default=None
        Pairs up to this distance are accepted.
    name : str, default="distance"
        What is measured.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        The three panels.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skdml import PairClassifier
    >>> from skdml.constraints import make_pairs
    >>> from skdml.plot import VerificationDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> pairs, labels = make_pairs(y, 400, random_state=0)
    >>> model = PairClassifier(preprocessor=X, random_state=0).fit(pairs[::2], labels[::2])
    >>> display = VerificationDisplay.from_estimator(model, pairs[1::2], labels[1::2])
    >>> len(display.axes_)
    3
    """

    n_panels = 3
    figsize = (10.2, 3.4)
    similar: NDArray
    distances: NDArray
    threshold: float | None = None
    name: str = "distance"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        pairs: MatrixLike,
        y: ArrayLike,
        *,
        name: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the distances of pairs under a fitted classifier of pairs.

        Parameters
        ----------
        estimator : PairClassifier
            Fitted; its threshold is marked.
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs that were not in `fit`.
        y : array-like of shape (n_pairs,)
            +1 and -1.
        name : str, default=None
            The name in the legend. None: that of the learner's class.
        ax : sequence of three matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : VerificationDisplay
            The drawn display.
        """
        distances = estimator.pair_distance(pairs)
        if name is None:
            name = type(getattr(estimator, "learner_", estimator)).__name__
        threshold = getattr(estimator, "threshold_", None)
        return cls.from_predictions(y, distances, threshold=threshold, name=name, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        distances: ArrayLike,
        *,
        threshold: float | None = None,
        name: str = "distance",
        ax: Any = None,
    ) -> Self:
        """Draw given distances of pairs.

        Parameters
        ----------
        y_true : array-like of shape (n_pairs,)
            1 for similar pairs; -1 or 0 for dissimilar ones.
        distances : array-like of shape (n_pairs,)
            Their distances, the lower the more similar.
        threshold : float, default=None
            Pairs up to this distance are accepted; None marks none.
        name : str, default="distance"
            The name in the legend.
        ax : sequence of three matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : VerificationDisplay
            The drawn display.
        """
        similar, distances = check_verification(y_true, distances, "distances")
        return cls(similar, distances, threshold, name).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        roc, det, histogram = self.axes_
        accepted, found, _ = roc_curve(self.similar, -self.distances, drop_intermediate=False)
        equal = find_equal_errors(accepted, found)
        number = sum(line.get_gid() == "curve" for line in roc.lines)
        style = {"color": COLORS[number % 7], "linestyle": DASHES[number % 4], "gid": "curve"}
        label = f"{self.name}\nAUC {auc(accepted, found):.3f}, EER {100 * equal:.1f} %"
        roc.plot(accepted, found, label=label, **style)
        if not number:
            roc.plot([0, 1], [1, 0], color="0.7", lw=0.8, zorder=0)  # equal errors
        roc.set(xlabel="dissimilar pairs accepted", ylabel="similar pairs accepted")
        roc.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title="ROC")
        roc.legend(fontsize=8, loc="lower right", **_PLAIN)

        # The ends, no errors of a kind at all, are at infinity.
        inner = (accepted > 0) & (found < 1)
        rates = norm.ppf(np.array([accepted[inner], 1 - found[inner]]))
        det.plot(*rates, label=f"EER {100 * equal:.1f} %", **style)
        if not number:
            det.plot(norm.ppf([0.001, 0.999]), norm.ppf([0.001, 0.999]), color="0.7", lw=0.8)
        if self.threshold is not None:
            self._mark_threshold(roc, det, style["color"])
        ends = norm.ppf([0.0005, 0.9995])
        ticks = norm.ppf(_DET_TICKS)
        labels = [f"{100 * tick:g}" for tick in _DET_TICKS]
        det.set(xlim=ends, ylim=ends, title="DET")
        det.set_xticks(ticks, labels, fontsize=8)
        det.set_yticks(ticks, labels, fontsize=8)
        det.set(xlabel="dissimilar pairs accepted, %", ylabel="similar pairs rejected, %")
        det.legend(fontsize=8, loc="upper right", **_PLAIN)
        if not number:
            self._draw_histograms(histogram)

    def _draw_histograms(self, histogram):
        """Draw the distances of both kinds."""
        edges = np.histogram_bin_edges(self.distances, bins=30)
        for part, color, kind in (
            (self.similar, RIGHT, "similar"),
            (~self.similar, WRONG, "dissimilar"),
        ):
            values = self.distances[part]
            share = np.full(len(values), 100 / len(values))
            common = {"bins": edges, "weights": share, "color": color}
            histogram.hist(values, alpha=0.35, label=f"{kind} ({len(values)})", **common)
            histogram.hist(values, histtype="step", **common)
        if self.threshold is not None:
            histogram.axvline(self.threshold, color="black", linestyle="--", label="threshold")
        histogram.set(xlabel="distance", ylabel="% of the pairs of a kind", title="distances")
        # Room for the legend above the bars.
        histogram.set_ylim(top=1.45 * histogram.get_ylim()[1])
        histogram.legend(frameon=False, fontsize=8, loc="upper right")

    def _mark_threshold(self, roc, det, color):
        """Draw a dot on both curves."""
        near = self.distances <= self.threshold
        rates = np.array([near[~self.similar].mean(), near[self.similar].mean()])
        roc.plot(*rates, "o", color=color, ms=5)
        rates = norm.ppf(np.clip([rates[0], 1 - rates[1]], 0.0005, 0.9995))
        det.plot(*rates, "o", color=color, ms=5, clip_on=False)
