"""Queries and database rows in different projections."""

from ._asymmetric import AsymmetricMetricClassifier

__all__ = ["AsymmetricMetricClassifier"]
