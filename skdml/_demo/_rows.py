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
        What the two figures are, such as "3-NN accuracy".
    baseline : float
        The figure without skdml.
    learned : float
        The figure with skdml.
    seconds : float
        Time of the fit.
    baseline_name : str
        What the baseline is.
    explanation : str
        One or two sentences for the report.
    figures : list of (caption, matplotlib Figure)
        Pictures for the report.
    """

    estimator: str
    task: str
    measure: str
    baseline: float
    learned: float
    seconds: float
    baseline_name: str = "Euclidean"
    explanation: str = ""
    figures: list[tuple[str, Any]] = field(default_factory=list)
