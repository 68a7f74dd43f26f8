"""Verification: whether two rows are of the same kind, learned from labelled pairs."""

from __future__ import annotations

from ._pair_classifier import PairClassifier
from ._pair_folds import PairGroupKFold

__all__ = ["PairClassifier", "PairGroupKFold"]
