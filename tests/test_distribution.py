"""The wheel and the source distribution, built and installed where nothing else is."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from skdml import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[1]
BUILD = "import setuptools.build_meta as b; print(b.build_{kind}('dist'))"
USE = """
import sys, tempfile, pathlib
import numpy as np
import skdml
from skdml import GMMLTransformer
from skdml.plot import explore
from importlib.metadata import version
assert version("skdml") == skdml.__version__ == "%s"
assert "site-packages" in skdml.__file__, skdml.__file__
X = np.random.default_rng(0).normal(size=(60, 4)); y = np.arange(60) %% 3
model = GMMLTransformer(random_state=0).fit(X, y)
page = explore(model, X, y, path=pathlib.Path(tempfile.mkdtemp()) / "x.html")
assert "PointMap" in page.read_text(encoding="utf-8")
assert (pathlib.Path(skdml.__file__).parent / "py.typed").exists()
assert not {"torch", "matplotlib", "dask"} & set(sys.modules)
print("works")
"""


def run(python, *arguments, folder):
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run([python, *arguments], cwd=folder, env=own, **options)
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An environment of its own."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "-q", "setuptools>=77", folder=folder)
    return python


@pytest.fixture(scope="module")
def built(python, tmp_path_factory):
    """The paths of the source distribution and of the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("project")
    ignore = shutil.ignore_patterns(
        ".git", ".venv*", "__pycache__", "*.egg-info", "_build", "auto_examples", "generated",
        ".*_cache", "skdml-demo", "build", "dist",
    )  # fmt: skip
    shutil.copytree(ROOT, folder / "copy", ignore=ignore)
    name = run(python, "-c", BUILD.format(kind="sdist"), folder=folder / "copy")
    sdist = folder / "copy" / "dist" / name
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    unpacked = folder / "unpacked" / f"skdml-{__version__}"
    name = run(python, "-c", BUILD.format(kind="wheel"), folder=unpacked)
    return sdist, unpacked / "dist" / name


def test_the_source_has_what_tests_and_documentation_need(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "CITATION.cff",
        "SECURITY.md",
        "doc/conf.py",
    }
    assert wanted <= names
    assert {"tests/conftest.py", "benchmarks/__main__.py", ".github/workflows/ci.yml"} <= names


def test_the_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "skdml").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files <= names
    assert all(name.startswith(("skdml/", "skdml-")) for name in names)


def test_it_works_where_nothing_else_is_installed(python, built, tmp_path):
    constraints = str(ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "-q", "-c", constraints, str(built[1]), folder=tmp_path)
    assert run(python, "-c", USE % __version__, folder=tmp_path) == "works"
