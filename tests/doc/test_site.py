"""The site and the demo's report in a real browser; `make test-site` builds the site first."""

import time
from pathlib import Path

import pytest

from tests.doc.browser import NARROW, WIDE, find_chromium, open_browser, problems, resize, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SITE = Path(__file__).parents[2] / "doc" / "_build" / "html"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    pytest.importorskip("selenium")
    if None in find_chromium():
        pytest.skip("no Chromium with its driver: install the packages chromium, chromium-driver")
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: run `make doc` first")
    with serve(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    from skdml._demo import run_demos

    folder = tmp_path_factory.mktemp("report")
    run_demos(folder, verbose=0)
    return folder / "index.html"


def pages():
    """All pages but those of single functions, which are all alike."""
    found = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
    classes = ("Transformer", "Embedder", "Ranker", "Classifier", "Generator", "Display")
    return [
        page
        for page in found
        if not page.startswith("_static")  # templates of the theme
        and ("/generated/" not in page or page.removesuffix(".html").endswith(classes))
    ]


def test_what_is_wrong_with_a_page_is_seen(chrome, tmp_path):
    wrong = (
        "<title>wrong</title><img src='missing.png'><p style='width: 2000px'>wide</p>"
        "<script>nothing.there()</script>"
    )
    (tmp_path / "wrong.html").write_text(wrong)
    (tmp_path / "empty.html").write_text("<title>empty</title>")
    (tmp_path / "right.html").write_text("<title>right</title><link rel=icon href=data:,>text")
    resize(chrome, NARROW)
    with serve(tmp_path) as address:
        found = " ".join(problems(chrome, address + "wrong.html"))
        assert "the page is empty" in problems(chrome, address + "empty.html")
        assert not problems(chrome, address + "right.html")
    for what in ("image does not load", "wider than the screen: P", "nothing is not defined"):
        assert what in found


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_pages_of_the_site(chrome, site, size):
    resize(chrome, size)
    wrong = {page: problems(chrome, site + page) for page in pages()}
    assert not {page: found for page, found in wrong.items() if found}


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_report_of_the_demo(chrome, report, size):
    resize(chrome, size)
    assert not problems(chrome, report.as_uri())
    shown = chrome.execute_script(
        "return [...document.images].filter((i) => i.getBoundingClientRect().width > 200).length"
    )
    assert shown >= 7


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("GMMLTransformer", "api/generated/skdml.linear.GMMLTransformer.html"),
        ("photographed badly", "auto_examples/plot_asymmetric.html"),
        ("torchrun", "guide/distributed.html"),
    ],
)
def test_search_finds_pages(chrome, site, words, page):
    resize(chrome, WIDE)
    assert not problems(chrome, f"{site}search.html?q={words.replace(' ', '+')}")
    links = wait_for(
        chrome,
        "return [...document.querySelectorAll('#search-results li a')].map((a) => a.href)",
        lambda links: any(page in link for link in links),
    )
    assert any(page in link for link in links), links
    assert not [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]


def test_links_between_pages_lead_somewhere(chrome, site):
    resize(chrome, WIDE)
    chrome.get(site)
    links = chrome.execute_script(
        "return [...document.querySelectorAll('a[href]')].map(a => a.href)"
    )
    inside = {link.partition("#")[0] for link in links if link.startswith(site)}
    assert len(inside) > 5
    missing = [link for link in inside if not (SITE / (link.removeprefix(site) or ".")).exists()]
    assert not missing


def wait_for(chrome, script, is_done, seconds=30):
    """Run a script until its result is as it should be, and return the last one."""
    end = time.monotonic() + seconds
    while not is_done(result := chrome.execute_script(script)) and time.monotonic() < end:
        time.sleep(0.1)
    return result
