"""Queries and database rows in different projections."""

from __future__ import annotations

from ._asymmetric import AsymmetricMetricClassifier

__all__ = ["AsymmetricMetricClassifier"]
