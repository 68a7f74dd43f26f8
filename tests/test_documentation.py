"""The pages of the documentation name everything that is public, and estimators link to them."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

import skdml
from skdml.utils._sklearn import DOCUMENTATION, EstimatorMixin
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
def test_estimators_link_to_their_pages_once_the_site_has_an_address(name_and_class, monkeypatch):
    estimator = name_and_class[1]()
    assert bool(estimator._get_doc_link()) == bool(DOCUMENTATION)
    home = DOCUMENTATION or "https://example.org/"
    monkeypatch.setattr(type(estimator), "_doc_link_module", "skdml")
    path = EstimatorMixin._doc_link_template.removeprefix(DOCUMENTATION)
    monkeypatch.setattr(type(estimator), "_doc_link_template", home + path)
    link = estimator._get_doc_link()
    page = link.removeprefix(f"{home}api/generated/").removesuffix(".html")
    assert page in api_pages()
    assert f'href="{link}"' in estimator._repr_html_()


def test_no_address_is_claimed_that_is_not_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.get("urls", {}).get("Documentation", "") == DOCUMENTATION


def test_tests_that_the_differences_name_exist():
    page = (ROOT / "doc" / "guide" / "differences.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 40
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text, f"{path} has no {name}"


def test_the_version_is_the_same_everywhere():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"(?m)^## (\d+\.\d+\.\d+)\b", changes)
    assert released[0] == skdml.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {skdml.__version__}\n" in citation


def test_continuous_integration_runs_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    targets = set(re.findall(r"run: make ([\w -]+)", workflow))
    assert targets
    for target in {name for names in targets for name in names.split()}:
        assert re.search(rf"(?m)^{target}:", makefile), target
