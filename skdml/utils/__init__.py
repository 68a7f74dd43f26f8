"""Tools for people who write or check estimators."""
