"""The pages of `skdml.plot.explore` in a real browser."""

import time

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skdml import GMMLTransformer, LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.plot import explore
from skdml.plot._explore_blocks import unpack
from tests.doc.browser import NARROW, WIDE, find_chromium, open_browser, problems, resize
from tests.plot.test_explore import Copies, read

pytest.importorskip("selenium")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Where a row is on the first map, in pixels of the window.
PLACE = """
const map = state.maps[0], box = map.canvas.getBoundingClientRect();
const [x, y] = map.at(arguments[0]);
return [box.left + x / map.ratio, box.top + y / map.ratio];
"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    if None in find_chromium():
        pytest.skip("no Chromium with its driver: install the packages chromium, chromium-driver")
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    X, y = load_wine(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), GMMLTransformer(random_state=0)).fit(X[::2], y[::2])
    texts = [f"bottle <b>{i}</b> of {'red' if i % 7 else 'white'}" for i in range(len(X) // 2)]
    path = tmp_path_factory.mktemp("wine") / "wine.html"
    return explore(model, X[1::2], y[1::2], texts=texts, path=path)


def show(chrome, path, size=WIDE, place=""):
    """Open a page of the disk, without an error, and wait until it is drawn."""
    resize(chrome, size)
    assert not problems(chrome, path.as_uri() + place)
    end = time.monotonic() + 120
    script = "return document.documentElement.dataset.ready && state.maps.every((m) => m.pixels)"
    while not chrome.execute_script(script):
        assert time.monotonic() < end, "the page does not become ready"
        time.sleep(0.05)
    settle(chrome)


def settle(chrome):
    """Wait until what was asked for is drawn."""
    chrome.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def text_of(chrome, element):
    return chrome.execute_script("return document.getElementById(arguments[0]).innerText", element)


def press(chrome, *keys):
    ActionChains(chrome).send_keys(*keys).perform()


def point_at(chrome, row, click=False):
    x, y = chrome.execute_script(PLACE, row)
    chain = ActionChains(chrome)
    chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    if click:
        chain.w3c_actions.pointer_action.click()
    chain.perform()


def ink(chrome):
    """How many pixels of the first map are not background."""
    return chrome.execute_script(
        "const p = state.maps[0].context.getImageData(0, 0, state.maps[0].canvas.width,"
        " state.maps[0].canvas.height).data; let n = 0;"
        " for (let i = 0; i < p.length; i += 4) if (p[i] !== p[0] || p[i+1] !== p[1]) n += 1;"
        " return n;"
    )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_both_metrics_are_shown(chrome, wine, size):
    show(chrome, wine, size)
    n_maps = chrome.execute_script("return state.maps.length")
    assert n_maps == (2 if size == WIDE else 1)
    assert "are of its class" in text_of(chrome, "summary")
    assert ink(chrome) > 1000


def test_hover_shows_the_row(chrome, wine):
    show(chrome, wine)
    point_at(chrome, 5)
    row = chrome.execute_script("return state.hovered")
    assert row >= 0  # another one may lie on it
    tip = text_of(chrome, "tip")
    assert f"row {row}, class" in tip
    assert f"bottle <b>{row}</b>" in tip  # as text, not as HTML


def test_a_click_shows_neighbours_under_both_metrics_and_why(chrome, wine):
    show(chrome, wine)
    point_at(chrome, 40, click=True)
    row = chrome.execute_script("return state.selected")
    page = read(wine)
    codes = unpack(page["labels"]["codes"])
    lists = chrome.find_elements(By.CSS_SELECTOR, "#panel .lists > section")
    for view, shown in zip(page["views"], lists, strict=True):
        expected = unpack(view["neighbors"]).reshape(-1, 10)[row]
        buttons = shown.find_elements(By.CSS_SELECTOR, ".neighbour")
        assert [int(b.get_attribute("data-row")) for b in buttons] == expected.tolist()
        for button, other in zip(buttons, expected, strict=True):
            right = codes[other] == codes[row]
            assert ("right" in button.get_attribute("class").split()) == right
            assert button.text.endswith("✓" if right else "✗")
    why = text_of(chrome, "why")
    assert "raw: distance" in why
    assert "GMMLTransformer: distance" in why
    # the shares of the columns are those of the squared distance
    parts, distance = chrome.execute_script(
        "const r = state.selected, o = neighbours(page.views[1], r)[3];"
        "return [parts(page.metrics[1], r, o), page.views[1].distances[r * page.k + 3]]"
    )
    assert sum(parts) == pytest.approx(distance**2, rel=0.02)


def test_neighbours_are_compared_and_followed(chrome, wine):
    show(chrome, wine, place="#3")
    buttons = chrome.find_elements(By.CSS_SELECTOR, "#panel .neighbour")
    other = int(buttons[4].get_attribute("data-row"))
    buttons[4].click()
    assert buttons[4].get_attribute("aria-pressed") == "true"
    assert f"row {other}" in text_of(chrome, "why")
    assert f"row {other} beside row 3. Largest part" in text_of(chrome, "live")
    chrome.find_element(By.CSS_SELECTOR, "#why .go").click()
    assert chrome.execute_script("return state.selected") == other
    assert chrome.execute_script("return document.activeElement.id") == "panel"


def test_search_by_number_and_by_text(chrome, wine):
    show(chrome, wine)
    press(chrome, "/")
    assert chrome.execute_script("return document.activeElement.id") == "find"
    press(chrome, "17", Keys.ENTER)
    assert chrome.execute_script("return state.selected") == 17
    field = chrome.find_element(By.ID, "find")
    field.clear()
    field.send_keys("WHITE")
    n_white = len([i for i in range(89) if i % 7 == 0])
    assert chrome.execute_script("return state.matches.size") == n_white
    assert text_of(chrome, "live") == f"{n_white} found"
    field.send_keys(" nothing like this")
    assert "nothing found" in text_of(chrome, "found")
    press(chrome, Keys.ESCAPE)
    assert field.get_attribute("value") == ""
    assert chrome.execute_script("return state.matches") is None


def test_keys_go_from_row_to_row(chrome, wine):
    show(chrome, wine)
    chrome.execute_script("state.maps[0].canvas.focus()")
    press(chrome, Keys.ARROW_RIGHT)
    first = chrome.execute_script("return state.selected")
    assert first >= 0
    press(chrome, Keys.ARROW_RIGHT)
    second = chrome.execute_script("return state.selected")
    points = "return [0, 1].map((i) => state.maps[0].points[2 * arguments[i]])"
    left, right = chrome.execute_script(points, first, second)
    assert left < right
    said = text_of(chrome, "live")
    assert said.startswith(f"row {second}, class")
    assert "Nearest by raw" in said
    press(chrome, Keys.ENTER)
    assert "neighbour" in chrome.execute_script("return document.activeElement.className")
    press(chrome, Keys.ESCAPE)
    assert chrome.execute_script("return document.activeElement.tagName") == "CANVAS"
    press(chrome, Keys.ESCAPE)
    assert chrome.execute_script("return state.selected") == -1


def test_every_colour_and_the_morph_draw(chrome, wine):
    show(chrome, wine)
    options = "return [...document.getElementById('colour').options].map((o) => o.value)"
    names = chrome.execute_script(options)
    assert names[:4] == ["class", "error", "confidence", "change"]
    choose = (
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('change')); s.dispatchEvent(new Event('input'));"
    )
    for name in names:
        chrome.execute_script(choose, "colour", name)
        assert text_of(chrome, "legend")
    # the errors are those of a vote among the neighbours
    page = read(wine)
    codes = unpack(page["labels"]["codes"])
    right = []
    for view in page["views"]:
        found = codes[unpack(view["neighbors"]).reshape(-1, 10)]
        counts = (found[:, :, None] == np.arange(3)).sum(axis=1)
        best = counts == counts.max(axis=1, keepdims=True)
        # of two classes with as many votes, that of the nearer row
        first = np.array([next(c for c in row if b[c]) for row, b in zip(found, best, strict=True)])
        right.append(first == codes)
    keys = chrome.execute_script("return Array.from(makeStyle('error').key)")
    np.testing.assert_array_equal(keys, 3 - right[0] - 2 * right[1])
    chrome.execute_script(choose, "layout", "morph")
    chrome.execute_script(choose, "morph", "50")
    script = "return [0, 1].map((v) => page.views[v].positions[8]).concat(state.maps[0].points[8])"
    before, after, between = chrome.execute_script(script)
    assert between == pytest.approx((before + after) / 2, abs=1e-6)
    settle(chrome)
    assert ink(chrome) > 1000
    assert not [e for e in chrome.get_log("browser") if e["level"] == "SEVERE"]


def test_the_dark_page_is_dark(chrome, wine):
    def scheme(value):
        features = [{"name": "prefers-color-scheme", "value": value}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        show(chrome, wine)
        return chrome.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " state.maps[0].context.getImageData(3, 3, 1, 1).data[0]]"
        )

    try:
        dark = scheme("dark")
    finally:
        light = scheme("light")
    assert dark[1] < 60 < 200 < light[1]
    assert dark[0] != light[0]


def test_a_map_is_drawn_at_once_when_its_size_changes(chrome, wine):
    show(chrome, wine)
    script = (
        "const map = state.maps[0]; map.resize();"
        "return Array.from(map.context.getImageData(3, 3, 1, 1).data)"
    )
    assert min(chrome.execute_script(script)) > 200  # an empty canvas is black


def test_pictures_are_shown(chrome, tmp_path):
    X, y = load_digits(return_X_y=True)
    model = FunctionTransformer().fit(X)
    path = explore(model, X[:60], y[:60], images=X[:60].reshape(-1, 8, 8), path=tmp_path / "d.html")
    show(chrome, path, place="#7")
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#panel canvas.picture")) > 20
    script = (
        "const c = document.querySelector('#panel .picture');"
        "const { data } = c.getContext('2d').getImageData(0, 0, 8, 8);"
        "return Array.from(data).filter((_, i) => !(i % 4))"
    )
    drawn = np.array(chrome.execute_script(script))
    np.testing.assert_allclose(drawn, X[7] * 255 / 16, atol=1)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_rankings(chrome, tmp_path, size):
    X, y, qid = make_ranking(n_queries=12, n_features=5, random_state=0)
    model = LocalGMMLRanker(random_state=0).fit(X, y, qid=qid)
    path = explore(model, X, y, qid=qid, path=tmp_path / "rank.html")
    show(chrome, path, size)
    assert "12 queries" in text_of(chrome, "summary")
    page = read(path)
    chrome.find_element(By.CSS_SELECTOR, "[data-query='3']").click()
    documents = chrome.find_elements(By.CSS_SELECTOR, ".document")
    start, end = page["starts"][3:5]
    assert len(documents) == end - start
    grades = unpack(page["grades"])[start:end]
    for i, document in enumerate(documents):
        is_wrong = bool((grades[i + 1 :] > grades[i]).any())
        assert ("wrong" in document.get_attribute("class").split()) == is_wrong
    documents[1].click()
    row = unpack(page["rows"])[start + 1]
    assert f"Why row {row} is at rank 2" in text_of(chrome, "panel")
    press(chrome, Keys.ARROW_DOWN)
    assert "is at rank 3" in text_of(chrome, "panel")
    chrome.find_element(By.ID, "worst").click()
    first = chrome.find_element(By.CSS_SELECTOR, "#names button")
    worst = min(q for q in page["quality"] if q is not None)
    assert f"{worst:.3f}" in first.text


def test_generated_rows(chrome, tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=50), "kind": rng.choice(["a", "b"], 50)})
    show(chrome, explore(Copies().fit(X), X, path=tmp_path / "new.html"), place="#60")
    assert "generated row 10" in text_of(chrome, "panel")
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#columns svg")) == 2
    assert "Side by side" in text_of(chrome, "why")
    shown = "return state.maps.map((m) => [m.isShown(0), m.isShown(60)])"
    assert chrome.execute_script(shown) == [[True, False], [False, True]]


# Pans and zooms both maps, one step for each frame, as fast as frames come; the seconds of each.
FRAMES = """
const done = arguments[0], times = [];
(async () => {
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < 80; i++) {
    for (const map of state.maps) {
      if (i < 40) [map.x, map.y] = [0.5 * Math.sin(i / 10), 0.5 * Math.cos(i / 10)];
      else map.zoomBy(i < 60 ? 1.06 : 1 / 1.06, 100, 100);
    }
    draw();
    const now = await new Promise(requestAnimationFrame);
    times.push((now - last) / 1000);
    last = now;
  }
  for (const map of state.maps) map.reset();
  draw();
  done(times);
})();
"""


def show_many(chrome, path, n, monkeypatch):
    from skdml.plot import _explore_rows

    def few(queries, items, own, k, metric=None):  # the search itself is tested elsewhere
        found = (own[:, None] + np.arange(1, k + 1)) % len(items)
        return found, np.ones(found.shape)

    monkeypatch.setattr(_explore_rows, "find_neighbors", few)
    rng = np.random.default_rng(0)
    y = np.arange(n) % 10
    X = rng.normal(size=(10, 8))[y] + 0.4 * rng.normal(size=(n, 8))
    show(chrome, explore(FunctionTransformer().fit(X), X, y, path=path), (1920, 1080))
    assert ink(chrome) > 10_000


# One core draws 60 frames a second of the first and 30 of the second, if it has nothing else to do.
@pytest.mark.parametrize(("n", "most"), [(10_000, 0.1), (100_000, 1.0)])
def test_frames_of_many_rows(chrome, tmp_path, monkeypatch, n, most):
    show_many(chrome, tmp_path / "many.html", n, monkeypatch)
    seconds = np.array(chrome.execute_async_script(FRAMES))
    settle(chrome)
    median, late = np.quantile(seconds, [0.5, 0.95])
    print(f"{n:,} rows: {median:.4f} s a frame, one of twenty over {late:.4f} s")
    assert median < most


def test_rows_among_many_are_found(chrome, tmp_path, monkeypatch):
    show_many(chrome, tmp_path / "big.html", 100_000, monkeypatch)
    point_at(chrome, 99_999, click=True)
    row = chrome.execute_script("return state.selected")
    assert row >= 0
    # the nearest row of all is found by the grid
    script = (
        "const m = state.maps[0], [x, y] = m.at(arguments[0]); let best = -1, least = Infinity;"
        "for (let r = 0; r < page.n; r++) {"
        " const [a, b] = m.at(r), d = Math.hypot(a - x - 3, b - y - 2);"
        " if (d < least) [best, least] = [r, d]; } return [best, m.nearest(x + 3, y + 2, 14)]"
    )
    for other in (7, 50_000, row):
        expected, found = chrome.execute_script(script, other)
        assert found == expected
