"""Fits of a flow that end sooner."""

import pytest


@pytest.fixture(autouse=True)
def few_samples_calibrate(monkeypatch):
    """Calibrate columns by fewer samples: that is most of the time of a short fit."""
    monkeypatch.setattr("skdml.generate._generator._N_CALIBRATION", 1000)
