"""Displays of a training: its residual or loss, and the distance between its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ._style import Panels, add_legend, add_line, check_vector

# What is drawn unless `measure` says otherwise: the first of these that the estimator has.
_DEFAULTS = ("kkt_residual", "train_loss", "loss", "objective", "wasserstein")
_LABELS = {
    "kkt_residual": "KKT residual",
    "divergence": "divergence from the solution",
    "value": "dual value",
    "train_loss": "training loss",
    "valid_recall": "recall@1 of held-out samples",
    "valid_order": "order of held-out pairs",
    "valid_map": "MAP@R of held-out classes",
    "validation_loss": "loss of held-out queries",
    "ndcg": "NDCG@10 of held-out queries",
    "validation": "mean cost of votes, held out",
    "wasserstein": "distance of points and rows",
}
_LOGARITHMIC = ("kkt_residual", "divergence")
# Keys of a history that are no measures.
_COUNTS = ("epoch", "partition", "seconds", "bytes")
# Longer curves have no markers.
_MOST_MARKERS = 40


@dataclass(eq=False, repr=False)
class ConvergenceDisplay(Panels):
    """A residual or a loss during training, against rounds and against seconds.

    The second panel is there if the seconds are known. Use `from_estimator` or `from_predictions`
    to make one; give `ax` to draw several trainings into one picture.

    Parameters
    ----------
    values : ndarray of shape (n_rounds,)
        The residual or loss after each round.
    seconds : ndarray of shape (n_rounds,), default=None
        The seconds from the start to the end of each round.
    rounds : ndarray of shape (n_rounds,), default=None
        Numbers of the rounds; None counts from 1.
    name : str, default=None
        What the curve is called in the legend.
    ylabel : str, default="loss"
        What the values are.
    log : bool, default=False
        Whether the axis of the values is logarithmic.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        Against rounds, and against seconds if they are known.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from skdml import DITMLTransformer
    >>> from skdml.plot import ConvergenceDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> model = DITMLTransformer(random_state=0).fit(scale(X), y)
    >>> display = ConvergenceDisplay.from_estimator(model)
    >>> [axes.get_xlabel() for axes in display.axes_]
    ['round', 'seconds']
    """

    values: NDArray
    seconds: Sequence[float] | NDArray | None = None
    _: KW_ONLY
    rounds: Sequence[float] | NDArray | None = None
    name: str | None = None
    ylabel: str = "loss"
    log: bool = False

    def __post_init__(self) -> None:
        if self.seconds is None:
            self.n_panels, self.figsize = 1, (4.6, 3.2)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, measure: str | None = None, name: str | None = None, ax: Any = None
    ) -> Self:
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with `history_`, a dict of lists with one entry per round.
        measure : str, default=None
            Which of its figures: a key of `history_`. None takes the residual or the loss of
            training.
        name : str, default=None
            What the curve is called; None takes the name of the class.
        ax : sequence of matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : ConvergenceDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        curves, seconds = read_curves(estimator)
        if not curves:
            raise ValueError(
                f"estimator has no history of its training: {type(estimator).__name__} has no "
                "`history_`."
            )
        if measure is None:
            measure = next((known for known in _DEFAULTS if known in curves), next(iter(curves)))
        if measure not in curves:
            raise ValueError(f"measure must be one of {sorted(curves)}, got {measure!r}.")
        values = curves[measure]
        # Some histories have the start, too.
        first = int(len(values) > getattr(estimator, "n_iter_", len(values)))
        return cls(
            values,
            seconds,
            rounds=np.arange(len(values)) + 1 - first,
            name=type(estimator).__name__ if name is None else name,
            ylabel=_LABELS.get(measure, measure.replace("_", " ")),
            log=measure in _LOGARITHMIC,
        ).plot(ax=ax)

    @classmethod
    def from_predictions(
        cls,
        values: ArrayLike,
        seconds: Sequence[float] | NDArray | None = None,
        *,
        rounds: Sequence[float] | NDArray | None = None,
        name: str | None = None,
        ylabel: str = "loss",
        log: bool = False,
        ax: Any = None,
    ) -> Self:
        """Draw figures of a training that were noted elsewhere.

        Parameters
        ----------
        values : array-like of shape (n_rounds,)
            The residual or loss after each round.
        seconds : array-like of shape (n_rounds,), default=None
            The seconds from the start to the end of each round.
        rounds : array-like of shape (n_rounds,), default=None
            Numbers of the rounds; None counts from 1.
        name : str, default=None
            What the curve is called.
        ylabel : str, default="loss"
            What the values are.
        log : bool, default=False
            Whether the axis of the values is logarithmic.
        ax : sequence of matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : ConvergenceDisplay
            The drawn display.
        """
        values = check_vector(values, "values", "round", finite=False)
        for given, what in ((seconds, "seconds"), (rounds, "rounds")):
            if given is not None and len(given) != len(values):
                raise ValueError(f"{what} must have {len(values)} entries, got {len(given)}.")
        return cls(values, seconds, rounds=rounds, name=name, ylabel=ylabel, log=log).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        rounds = np.arange(1, len(self.values) + 1) if self.rounds is None else self.rounds
        panels = [("round", rounds)]
        if self.seconds is not None:
            panels.append(("seconds", self.seconds))
        for axes, (label, places) in zip(self.axes_, panels, strict=True):
            style = {"marker": "None"} if len(self.values) > _MOST_MARKERS else {"ms": 3.5}
            add_line(axes, places, self.values, label=self.name, **style)
            axes.set(xlabel=label, ylabel=self.ylabel if axes is self.axes_[0] else "")
            if self.log:
                axes.set_yscale("log")
        self.axes_[0].xaxis.get_major_locator().set_params(integer=True)
        add_legend(self.axes_[0])


def read_curves(estimator: Any) -> tuple[dict[str, NDArray], Any]:
    """Return the figures that a fitted estimator has of every round, and the seconds if known."""
    history = getattr(estimator, "history_", {})
    curves = {name: np.asarray(history[name], float) for name in history if name not in _COUNTS}
    return curves, history.get("seconds")


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
            name = "allreduce" if options is None else str(options.sync)
            if name == "hybrid":
                name += f", ring of {options.ring}"
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
        epochs = np.arange(1, len(self.consensus) + 1)
        self.line_ = add_line(self.ax_, epochs, self.consensus, label=self.name, ms=4)
        highest = max(line.get_ydata().max() for line in self.ax_.lines)
        self.ax_.set_ylim(-0.03 * (highest or 1), 1.08 * (highest or 1))
        self.ax_.set(xlabel="epoch", ylabel="distance of neighbouring replicas")
        self.ax_.xaxis.get_major_locator().set_params(integer=True)
        add_legend(self.ax_)
