"""Metric learning for people who use scikit-learn."""
