"""One row of the demo's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DemoRow:
    """One line of the demo's table, with its pictures.

    Attributes
    ----------
    estimator : str
        The estimator shown.
    task : str
        What was learned, on what data.
    measure : str
        What the figures are, such as "3-NN accuracy"; more is better.
    baselines : dict of str to float
        The figures without skdml: of plain distance, and of strong simple methods.
    learned : float
        The figure with skdml.
    seconds : float
        Time of the fit.
    explanation : str
        One or two sentences for the report.
    figures : list of (caption, matplotlib Figure)
        Pictures for the report.
    explore : dict, default=None
        Arguments of `skdml.plot.explore`, for a page beside the report.
    """

    estimator: str
    task: str
    measure: str
    baselines: dict[str, float]
    learned: float
    seconds: float
    explanation: str = ""
    figures: list[tuple[str, Any]] = field(default_factory=list)
    explore: dict[str, Any] | None = None

    @property
    def strongest(self) -> tuple[str, float]:
        """The best baseline and its figure."""
        name = max(self.baselines, key=lambda name: self.baselines[name])
        return name, self.baselines[name]

    @property
    def verdict(self) -> str:
        """Whether the learner is worth it here, in a word or two."""
        best = self.strongest[1]
        if round(self.learned, 3) == round(best, 3):
            return "no gain"
        return "better" if self.learned > best else "simpler is better"
