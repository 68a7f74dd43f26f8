"""Two rankings of the same documents, compared query by query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics import ndcg_by_query
from ..utils._typing import MatrixLike
from ._style import COLORS, DASHES, Panels


@dataclass(eq=False, repr=False)
class RankingDisplay(Panels):
    """NDCG by query: two rankings side by side, and where each is better.

    The left panel shows the NDCG of all queries, sorted, for either ranking; the right panel the
    difference of each query, from the greatest gain to the greatest loss. Queries without a
    relevant document are left out.

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

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        The two panels.
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
    """

    ndcg: NDArray
    other_ndcg: NDArray
    names: tuple[str, str] = ("ranking", "other")
    k: int = 10

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | None = None,
        *,
        other: Any,
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
        **options : dict
            Other options of `from_predictions`: `other_name`, `name` (by default that of the
            estimator's class), `k` and `ax`.

        Returns
        -------
        display : RankingDisplay
            The drawn display.
        """
        options = {"name": type(estimator).__name__, **options}
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
        return cls(ndcg[counted], other_ndcg[counted], (name, other_name), k).plot(ax=ax)

    def _draw(self, own_figure: bool) -> None:
        measure = "NDCG" if self.k is None else f"NDCG@{self.k}"
        curves, bars = self.axes_
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
        bars.set_title(f"{self.names[0]} better in {better}, worse in {worse}", fontsize=10)
        bars.xaxis.get_major_locator().set_params(integer=True)
