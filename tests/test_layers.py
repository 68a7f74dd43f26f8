"""Imports go downwards: the layers are those of the picture in CONTRIBUTING.md."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import skdml

PACKAGE = Path(skdml.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"


def read_picture(text):
    """Return the layer of each unit, the lowest 0, and the imports between units of one layer."""
    picture = re.search(r"^## The layers\n.*?^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    layers, sideways = [], set()
    for line in picture[1].splitlines():
        if line.startswith("|"):
            name, content = (part.strip() for part in line.strip("|").split("|"))
            if name:
                layers.append([])
            if "->" in content:
                source, targets = content.split("->")
                sideways |= {(source.strip(), target) for target in targets.split()}
            else:
                layers[-1] += content.split()
    height = {unit: number for number, units in enumerate(reversed(layers)) for unit in units}
    return height, sideways


def find_unit(path, units):
    """Return the unit of a file of the package: a pattern of the picture, a folder or a module."""
    for pattern in units:
        if "*" in pattern and fnmatch(path.as_posix(), pattern):
            return pattern
    return path.parts[0].removesuffix(".py")


def find_module(parts):
    """Return the file of a module, None if it is none."""
    path = PACKAGE.joinpath(*parts)
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.is_file():
            return candidate.relative_to(PACKAGE)
    return None


def imported_files(source, path):
    """Yield the files of the package that a file imports, also inside of functions."""
    package = ("skdml", *path.parent.parts)
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = [(*base, alias.name) for alias in node.names]
        for name in names:
            if name[0] == "skdml":
                # the last part may be a class or function of a module
                yield find_module(name[1:]) or find_module(name[1:-1])


HEIGHT, SIDEWAYS = read_picture(CONTRIBUTING.read_text(encoding="utf-8"))
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def forbidden_imports(source, path):
    unit = find_unit(path, HEIGHT)
    found = {find_unit(target, HEIGHT) for target in imported_files(source, path)}
    return {
        other
        for other in found - {unit}
        if HEIGHT[other] >= HEIGHT[unit] and (unit, other) not in SIDEWAYS
    }


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_downwards(path):
    wrong = forbidden_imports((PACKAGE / path).read_text(encoding="utf-8"), path)
    assert not wrong, f"{path} imports {wrong}: see the picture of the layers in CONTRIBUTING.md"


def test_the_picture_shows_every_file_once():
    units = {find_unit(path, HEIGHT) for path in FILES}
    assert units <= set(HEIGHT)
    assert {unit for pair in SIDEWAYS for unit in pair} <= set(HEIGHT)


@pytest.mark.parametrize(
    ("path", "line", "wrong"),
    [
        ("metrics/_new.py", "from ..linear import GMMLTransformer", {"linear"}),
        ("metrics/_new.py", "from .. import plot", {"plot"}),
        ("metrics/_new.py", "def f():\n    import skdml.deep.losses", {"deep"}),
        ("linear/_new.py", "from ..deep._embedder import DeepMetricEmbedder", {"deep"}),
        ("linear/_new.py", "from ._demo_gmml import demo", {"*/*demo*.py"}),
        ("utils/_new.py", "from ..constraints import make_pairs", {"constraints"}),
        ("deep/_new.py", "from ..transport import CloudMetric", set()),
        ("plot/_new.py", "from skdml.linear._mahalanobis import MahalanobisMetric", set()),
    ],
)
def test_an_import_upwards_is_found(path, line, wrong):
    assert forbidden_imports(line, Path(path)) == wrong
