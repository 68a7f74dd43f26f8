"""Display of the path along which a linear learner chose its parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ._style import Panels, add_legend, add_line, check_vector


@dataclass(eq=False, repr=False)
class PathDisplay(Panels):
    """Score of the candidates for `gamma` or `geodesic`, one curve for each round of pairs.

    The dotted line is the prior, which stays where no candidate is better. Use `from_estimator`
    or `from_predictions` to make one.

    Parameters
    ----------
    rounds : ndarray of shape (n_candidates,)
        The round of each candidate; 0 is the prior.
    values : ndarray of shape (n_candidates,)
        Its value of the parameter.
    scores : ndarray of shape (n_candidates,)
        Its score on what was held out.
    parameter : str, default="gamma"
        The name of the parameter.
    chosen : float, default=None
        The value that was chosen; None, and 0 of gamma, are the prior.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it is drawn.
    figure_ : matplotlib Figure
        The figure around it.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from skdml import DITMLTransformer
    >>> from skdml.plot import PathDisplay
    >>> X, y = load_wine(return_X_y=True)
    >>> display = PathDisplay.from_estimator(DITMLTransformer(random_state=0).fit(X, y))
    >>> display.ax_.get_xlabel()
    'gamma'
    """

    n_panels = 1
    figsize = (4.8, 3.2)
    rounds: NDArray
    values: NDArray
    scores: NDArray
    _: KW_ONLY
    parameter: str = "gamma"
    chosen: float | None = None

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Self:
        """Draw the path of a fitted estimator.

        Parameters
        ----------
        estimator : DITMLTransformer or GMMLTransformer
            Fitted with "auto".
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : PathDisplay
            The drawn display.
        """
        check_is_fitted(estimator)
        if not hasattr(estimator, "path_"):
            raise ValueError(
                f"estimator has no `path_`: {type(estimator).__name__} was fitted with a given "
                "value. Fit it with gamma='auto' or geodesic='auto'."
            )
        parameter = next(name for name in estimator.path_ if name not in ("round", "score"))
        chosen = getattr(estimator, f"{parameter}_")
        return cls.from_predictions(estimator.path_, chosen=chosen, ax=ax)

    @classmethod
    def from_predictions(
        cls, path: Mapping[str, ArrayLike], *, chosen: float | None = None, ax: Any = None
    ) -> Self:
        """Draw a path.

        Parameters
        ----------
        path : dict of array-like
            "round", "score" and one more, the values of the parameter of that name.
        chosen : float, default=None
            The value that was chosen.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : PathDisplay
            The drawn display.
        """
        parameter = next((name for name in path if name not in ("round", "score")), None)
        if parameter is None or not {"round", "score"} <= set(path):
            raise ValueError("path must have 'round', 'score' and the values of a parameter.")
        columns = [
            check_vector(path[name], f"path[{name!r}]", "candidate")
            for name in ("round", parameter, "score")
        ]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("the entries of path must be of the same length.")
        return cls(*columns, parameter=parameter, chosen=chosen).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        axes = self.ax_
        for number in np.unique(self.rounds[self.rounds > 0]):
            part = self.rounds == number
            add_line(axes, self.values[part], self.scores[part], label=f"round {number:.0f}", ms=4)
        for score in self.scores[self.rounds == 0]:
            axes.axhline(score, color="0.3", linestyle=":", label="prior")
        is_prior = self.chosen is None or (self.chosen == 0 and self.parameter == "gamma")
        if not is_prior:
            axes.axvline(self.chosen, color="0.7", linewidth=1, zorder=0, label="chosen")
        if self.parameter == "gamma":
            axes.set_xscale("log")
        axes.set(xlabel=self.parameter, ylabel="score on what was held out")
        add_legend(axes)
