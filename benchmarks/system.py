"""The machine and the versions that a benchmark ran with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import threadpoolctl

PACKAGES = ("numpy", "scipy", "scikit-learn", "skdml")


def environment() -> dict[str, object]:
    """Return versions, BLAS, processor and date as a dictionary for reports."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "blas": blas_name(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def blas_name() -> str:
    """Return the name and version of the BLAS libraries in use."""
    import scipy.linalg  # noqa: F401 - threadpoolctl only sees what is loaded

    found = {
        f"{library['internal_api']} {library['version'] or ''}".strip()
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    }
    return ", ".join(sorted(found)) or "unknown"


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
