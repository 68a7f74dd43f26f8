"""`import skdml` is light, and a missing extra says how to install it."""

import subprocess
import sys

import pytest

import skdml

EXTRAS = ("torch", "skorch", "ot", "pytorch_metric_learning", "dask", "distributed", "matplotlib")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_brings_none_of_the_extras():
    touched = (
        "skdml.GMMLTransformer, skdml.AsymmetricMetricClassifier, skdml.metrics, skdml.datasets, "
        "skdml.constraints, skdml.utils"
    )
    loaded = run(f"import sys, skdml; {touched}; print(*set({EXTRAS}) & set(sys.modules))")
    assert loaded == ""


def test_a_missing_extra_names_the_pip_command():
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = sys.modules['distributed'] = None\n"
        "import numpy as np, skdml\n"
        "from skdml.plot import EmbeddingDisplay\n"
        "from skdml.utils._parallel import find_client\n"
        "for touch in (lambda: EmbeddingDisplay.from_predictions(np.eye(4), np.eye(4)),\n"
        "              lambda: find_client('here')):\n"
        "    try:\n"
        "        touch()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    lines = run(code).splitlines()
    assert lines[0].startswith("EmbeddingDisplay needs matplotlib, which is not installed.")
    assert lines[0].endswith('pip install "skdml[plot]"')
    assert lines[1].endswith('pip install "skdml[distributed]"')


def test_public_names():
    pytest.importorskip("torch")
    for name in skdml.__all__:
        assert getattr(skdml, name) is not None
    assert set(skdml.__all__) == set(dir(skdml))
    with pytest.raises(AttributeError, match="no attribute 'NoSuchThing'"):
        _ = skdml.NoSuchThing
