"""Distance between the replicas of a network in distributed training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ._style import Panels, add_legend, check_vector, line_style


@dataclass(eq=False, repr=False)
class ConsensusDisplay(Panels):
    """Distance between the replicas of a network after each epoch.

    The distance is that of a rank's backbone from the backbone of its left neighbour, mean over
    ranks. Zero means that all ranks have the same network. Use `from_estimator` or
    `from_predictions` to make one; give `ax` to draw several trainings into one picture.

    Parameters
    ----------
    consensus : ndarray of shape (n_epochs,)
        The distance after each epoch.
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
    >>> from skdml.plot import ConsensusDisplay
    >>> display = ConsensusDisplay.from_predictions([1.2, 0.8, 0.3, 0.1], name="ring")
    >>> display.ax_.get_xlabel()
    'epoch'
    """

    n_panels = 1
    figsize = (4.6, 3.2)
    consensus: NDArray
    name: str | None = None

    @classmethod
    def from_estimator(cls, estimator: Any, *, name: str | None = None, ax: Any = None) -> Self:
        """Draw the distances of an estimator that was fitted by several workers.

        Parameters
        ----------
        estimator : DeepMetricEmbedder
            Fitted, with ``n_workers`` above 1.
        name : str, default=None
            What the curve is called; None takes `sync` of the estimator, and `ring` if that is
            "hybrid".
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : ConsensusDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        if not hasattr(estimator, "consensus_"):
            raise ValueError(
                f"estimator has no `consensus_`: {type(estimator).__name__} was fitted by one "
                "process. Fit it with n_workers above 1."
            )
        if name is None:
            options = estimator.distributed
            name = "hybrid" if options is None else str(options.sync)
            if name == "hybrid":
                name += f", ring of {'parameters' if options is None else options.ring}"
        return cls.from_predictions(estimator.consensus_, name=name, ax=ax)

    @classmethod
    def from_predictions(
        cls, consensus: ArrayLike, *, name: str | None = None, ax: Any = None
    ) -> Self:
        """Draw distances of replicas.

        Parameters
        ----------
        consensus : array-like of shape (n_epochs,)
            The distance after each epoch.
        name : str, default=None
            What the curve is called.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : ConsensusDisplay
            The drawn display.
        """
        return cls(check_vector(consensus, "consensus", "epoch"), name).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        style = line_style(len(self.ax_.lines))
        epochs = np.arange(1, len(self.consensus) + 1)
        self.line_ = self.ax_.plot(epochs, self.consensus, label=self.name, ms=4, **style)[0]
        highest = max(line.get_ydata().max() for line in self.ax_.lines)
        self.ax_.set_ylim(-0.03 * (highest or 1), 1.08 * (highest or 1))
        self.ax_.set(xlabel="epoch", ylabel="distance of neighbouring replicas")
        self.ax_.xaxis.get_major_locator().set_params(integer=True)
        add_legend(self.ax_)
