"""The pages of the documentation name everything that is public, and estimators link to them."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

import skdml
from skdml.utils._sklearn import DOCUMENTATION
from skdml.utils.estimator_checks import all_estimators

ROOT = Path(__file__).parents[1]
API = (ROOT / "doc" / "api" / "index.md").read_text(encoding="utf-8")


def api_pages():
    """The pages that autosummary makes, by their names."""
    pages, module = set(), None
    for block in re.findall(r"(?s)```\{eval-rst\}(.*?)```", API):
        for line in block.splitlines():
            if found := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = found[1]
            elif found := re.match(r"   ([A-Za-z_]\w*)$", line):
                pages.add(f"{module}.{found[1]}")
    return pages


SUBPACKAGES = [name for name in skdml.__all__ if name[0].islower()]


@pytest.mark.parametrize("name", [*SUBPACKAGES, "deep.losses", "utils.estimator_checks"])
def test_every_public_name_has_a_page(name):
    pytest.importorskip("torch")
    module = importlib.import_module(f"skdml.{name}")
    modules = {f"{module.__name__}.{other}" for other in ("losses", "distributed")}
    public = {f"{module.__name__}.{public}" for public in getattr(module, "__all__", ())}
    assert public - modules <= api_pages()


@pytest.mark.parametrize("name_and_class", all_estimators(), ids=lambda pair: pair[0])
def test_html_representation_links_to_a_page_of_the_site(name_and_class):
    estimator = name_and_class[1]()
    link = estimator._get_doc_link()
    page = link.removeprefix(f"{DOCUMENTATION}api/generated/").removesuffix(".html")
    assert page in api_pages()
    assert f'href="{link}"' in estimator._repr_html_()


def test_home_of_the_documentation_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION


def test_tests_that_the_differences_name_exist():
    page = (ROOT / "doc" / "guide" / "differences.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 40
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text, f"{path} has no {name}"
