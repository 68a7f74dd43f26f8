"""cloudpickle, which joblib has as a requirement, or inside itself before 1.6."""

from __future__ import annotations

try:
    import cloudpickle
except ImportError:  # pragma: no cover
    from joblib.externals import cloudpickle

__all__ = ["cloudpickle"]
