"""Two rankings of the same documents, compared query by query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics import ndcg_by_query
from ..utils._typing import MatrixLike
from ._style import COLORS, DASHES, Panels

_MOST_BARS = 8  # of what is added to the score of a document


@dataclass(eq=False, repr=False)
class RankingDisplay(Panels):
    """NDCG by query: two rankings side by side, and where each is better.

    The left panel shows the NDCG of all queries, sorted, for either ranking; the right panel the
    difference of each query, from the greatest gain to the greatest loss. Queries without a
    relevant document are left out. A third panel, if asked for, says what features and ideal
    documents add to the score of one document.

    Parameters
    ----------
    ndcg : ndarray of shape (n_queries,)
        NDCG of each query.
    other_ndcg : ndarray of shape (n_queries,)
        NDCG of the same queries in the other ranking.
    names : tuple of two str
        What the two are called.
    k : int or None
        The number of ranks that count in NDCG.
    added : dict of str to float, default=None
        What adds so much to the score of a document, drawn in a third panel.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        The panels.
    figure_ : matplotlib Figure
        The figure around them.

    Examples
    --------
    >>> from skdml import LocalGMMLRanker
    >>> from skdml.datasets import make_ranking
    >>> from skdml.plot import RankingDisplay
    >>> X, y, qid = make_ranking(n_queries=40, n_features=5, random_state=0)
    >>> ranker = LocalGMMLRanker(n_metrics=2, max_epochs=5, random_state=0).fit(X, y, qid=qid)
    >>> display = RankingDisplay.from_estimator(ranker, X, y, qid, other=X[:, 0])
    >>> len(display.axes_)
    2
    >>> display = RankingDisplay.from_estimator(ranker, X, y, qid, other=X[:, 0], explain=3)
    >>> len(display.axes_)
    3
    """

    ndcg: NDArray
    other_ndcg: NDArray
    names: tuple[str, str] = ("ranking", "other")
    k: int = 10
    added: dict[str, float] | None = None

    def __post_init__(self) -> None:
        if self.added is not None:
            self.n_panels, self.figsize = 3, (11.1, 3.2)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | None = None,
        *,
        other: Any,
        explain: int | None = None,
        **options: Any,
    ) -> Self:
        """Compare a fitted ranker with another ranking.

        Parameters
        ----------
        estimator : estimator
            Fitted; its `predict` takes `qid`.
        X : array-like of shape (n_documents, n_features)
            The documents.
        y : array-like of shape (n_documents,)
            Their relevance.
        qid : array-like of shape (n_documents,), default=None
            Their queries.
        other : array-like of shape (n_documents,)
            Scores of the other ranking.
        explain : int, default=None
            The row of X whose score is explained in a third panel, by the estimator's `explain`.
        **options : dict
            Other options of `from_predictions`: `other_name`, `name` (by default that of the
            estimator's class), `k` and `ax`.

        Returns
        -------
        display : RankingDisplay
            The drawn display.
        """
        options = {"name": type(estimator).__name__, **options}
        if explain is not None:
            options["added"] = _added(estimator, X, qid, explain)
        return cls.from_predictions(y, estimator.predict(X, qid=qid), qid, other=other, **options)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        scores: ArrayLike,
        qid: ArrayLike | None = None,
        *,
        other: Any,
        other_name: str = "other",
        name: str = "ranking",
        k: int = 10,
        added: dict[str, float] | None = None,
        ax: Any = None,
    ) -> Self:
        """Compare two rankings given as scores.

        Parameters
        ----------
        y : array-like of shape (n_documents,)
            The relevance of the documents.
        scores : array-like of shape (n_documents,)
            Scores of the ranking, the higher the better.
        qid : array-like of shape (n_documents,), default=None
            Their queries.
        other : array-like of shape (n_documents,)
            Scores of the other ranking.
        other_name, name : str
            What the two are called.
        k : int or None, default=10
            The number of ranks that count.
        added : dict of str to float, default=None
            What adds so much to the score of a document, drawn in a third panel.
        ax : sequence of matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        display : RankingDisplay
            The drawn display.
        """
        ndcg, other_ndcg = (ndcg_by_query(y, s, qid, k)[1] for s in (scores, other))
        counted = ~np.isnan(ndcg)
        if not counted.any():
            raise ValueError("y: no query has a relevant document, so there is nothing to draw.")
        names = name, other_name
        return cls(ndcg[counted], other_ndcg[counted], names, k, added).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        measure = "NDCG" if self.k is None else f"NDCG@{self.k}"
        curves, bars = self.axes_[:2]
        share = np.linspace(0, 100, len(self.ndcg))
        for i, values in enumerate((self.ndcg, self.other_ndcg)):
            label = f"{self.names[i]}, mean {values.mean():.3f}"
            style = {"color": COLORS[i], "linestyle": DASHES[i]}
            curves.plot(share, np.sort(values)[::-1], label=label, **style)
        curves.set(xlabel="% of queries, best first", ylabel=measure, ylim=(-0.02, 1.02))
        curves.set_title("all queries")
        curves.legend(frameon=False, fontsize=8, loc="lower left")

        difference = np.sort(self.ndcg - self.other_ndcg)[::-1]
        better, worse = np.sum(difference > 0), np.sum(difference < 0)
        colors = np.where(difference > 0, COLORS[0], COLORS[1])
        bars.bar(np.arange(len(difference)), difference, width=1.0, color=colors)
        bars.axhline(0, color="black", lw=0.8)
        bars.set(xlabel="query", ylabel=f"difference in {measure}")
        bars.set_title(f"{self.names[0]}:\nbetter in {better}, worse in {worse}", fontsize=10)
        bars.xaxis.get_major_locator().set_params(integer=True)
        if self.added is not None:
            _draw_added(self.axes_[2], self.added)


def _draw_added(axes, added):
    """Draw what adds most to the score of a document, and the sum of the rest."""
    names = sorted(added, key=lambda name: -abs(added[name]))
    shown = {name: added[name] for name in names[:_MOST_BARS]}
    if len(names) > _MOST_BARS:
        shown["others"] = sum(added[name] for name in names[_MOST_BARS:])
    colors = [COLORS[0] if value > 0 else COLORS[1] for value in shown.values()]
    axes.barh(range(len(shown)), list(shown.values()), color=colors)
    axes.set_yticks(range(len(shown)), list(shown), fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", lw=0.8)
    axes.set(xlabel="adds to the score")
    axes.set_title(f"one document, score {sum(added.values()):.2f}", fontsize=10)


def _added(estimator, X, qid, row):
    """Return what features and ideal documents add to the score of a row."""
    found = estimator.explain(X, qid)
    n_rows = len(found.features)
    if not isinstance(row, int | np.integer) or not -n_rows <= row < n_rows:
        raise ValueError(f"explain must be a row of X, below {n_rows}, got {row!r}.")
    names = getattr(estimator, "feature_names_in_", range(found.features.shape[1]))
    added = {
        name if isinstance(name, str) else f"feature {name}": float(value)
        for name, value in zip(names, found.features[row], strict=True)
    }
    added |= {f"ideal document {r}": float(v) for r, v in enumerate(found.documents[row])}
    return added
