import base64
import hashlib
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skdml import AsymmetricMetricClassifier, GMMLTransformer, LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.metrics import column_similarity, ndcg_by_query
from skdml.plot import explore
from skdml.plot._explore_blocks import pack_columns, pack_images, unpack
from skdml.plot._explore_rows import find_linear_map, find_neighbors, turn


def read(path):
    """The data of a page."""
    page = path.read_text(encoding="utf-8")
    found = re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), GMMLTransformer(random_state=0), KNeighborsClassifier())
    return model.fit(X[::2], y[::2]), X[1::2], y[1::2]


@pytest.fixture(scope="module")
def wine_page(wine, tmp_path_factory):
    model, X, y = wine
    return read(explore(model, X, y, path=tmp_path_factory.mktemp("page") / "wine.html"))


def test_neighbours_are_those_of_the_scaled_rows_and_of_the_learned_ones(wine, wine_page):
    model, X, _ = wine
    scaled = model[0].transform(X)
    for rows, view in zip((scaled, model[1].transform(scaled)), wine_page["views"], strict=True):
        distances = cdist(rows, rows)
        np.fill_diagonal(distances, np.inf)
        found = unpack(view["neighbors"]).reshape(len(X), 10)
        np.testing.assert_array_equal(found[:, 0], distances.argmin(axis=1))
        expected = np.sort(distances, axis=1)[:, :10]
        np.testing.assert_allclose(unpack(view["distances"]).reshape(-1, 10), expected, rtol=1e-4)
        assert 0 < view["variance"] < 1


def test_parts_of_the_columns_sum_up_to_the_squared_distance(wine, wine_page):
    X = wine[1]
    columns = wine_page["columns"]
    cells = unpack(wine_page["cells"]).reshape(len(X), -1)
    values = cells * [c["step"] for c in columns] + [c["low"] for c in columns]
    np.testing.assert_allclose(values, X, rtol=1e-3, atol=1e-3 * np.ptp(X, axis=0).min())
    for view, metric in zip(wine_page["views"], wine_page["metrics"], strict=True):
        if "diagonal" in metric:
            matrix = np.diag(unpack(metric["diagonal"]))
        else:
            matrix = unpack(metric["matrix"]).reshape(13, 13)
        neighbors = unpack(view["neighbors"]).reshape(len(X), 10)
        difference = values - values[neighbors[:, 4]]
        parts = difference * (difference @ matrix)
        distances = unpack(view["distances"]).reshape(len(X), 10)[:, 4]
        np.testing.assert_allclose(parts.sum(axis=1), distances**2, rtol=0.02)


def test_scaled_rows_have_a_diagonal_metric(wine_page):
    assert [list(metric) for metric in wine_page["metrics"]] == [["diagonal"], ["matrix"]]


def test_a_map_that_is_not_linear_has_no_parts():
    X = np.random.default_rng(0).normal(size=(50, 3))
    matrix = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(find_linear_map(lambda Z: 5 + Z @ matrix, X), matrix, atol=1e-9)
    assert find_linear_map(np.square, X) is None

    def picky(Z):
        raise ValueError("other rows")

    assert find_linear_map(picky, X) is None


def test_equal_rows_are_not_their_own_neighbours():
    X = np.zeros((6, 2))
    found, distances = find_neighbors(X, X, np.arange(6), 3)
    assert (found != np.arange(6)[:, None]).all()
    assert not distances.any()
    assert all(len(set(row)) == 3 for row in found.tolist())


def test_a_gallery_is_searched_through_its_own_map(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 2 * np.eye(4)[y]
    queries = -X[:20] + 0.1
    options = {"n_components": 2, "max_iter": 2, "random_state": 0}
    model = AsymmetricMetricClassifier(**options).fit(X, y, X_query=-X, y_query=y)
    path = tmp_path / "page.html"
    page = read(explore(model, queries, y[:20], gallery=X, gallery_labels=y, path=path))
    assert page["n"] == 80
    assert [part["start"] for part in page["parts"]] == [0, 20]
    found = unpack(page["views"][1]["neighbors"]).reshape(80, 10)
    expected = cdist(model.transform(queries), model.transform_database(X))
    np.testing.assert_array_equal(found[:20, 0] - 20, expected.argmin(axis=1))
    assert found.min() == 20
    assert (found[20:] != np.arange(20, 80)[:, None]).all()
    assert "metrics" not in page
    # without a gallery a row is searched among the stored maps of all others
    page = read(explore(model, X, y, path=path))
    distances = cdist(model.transform(X), model.transform_database(X))
    np.fill_diagonal(distances, np.inf)
    found = unpack(page["views"][1]["neighbors"]).reshape(60, 10)
    np.testing.assert_array_equal(found[:, 0], distances.argmin(axis=1))


def test_texts_of_users_cannot_become_html(tmp_path):
    evil = '</script><script>alert("x")</script><!-- @@DATA@@ '
    X = pd.DataFrame({evil: [0.0, 1, 2, 3], "b": [1.0, 5, 2, 0]})
    model = FunctionTransformer().fit(X)
    path = explore(
        model, X, [evil, evil, "b", "b"], texts=[evil] * 4, title=evil, path=tmp_path / "x.html"
    )
    page = path.read_text(encoding="utf-8")
    assert "alert(" not in page.replace("&lt;script&gt;alert(", "").replace(
        "u003cscript>alert(", ""
    )
    assert page.count("<script") == 2
    assert read(path)["texts"] == [evil] * 4
    script = re.search(r"(?s)<script>(.*)</script>", page)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page  # no other script runs
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import|fetch\(""", page)


def test_cells_come_back():
    columns = [
        np.array([3, 70_000, 5]),
        np.array([0.5, np.nan, -2.25]),
        np.array(["a", None, "b"], dtype=object),
        np.array(["2024-01-01", "NaT", "2024-01-03"], dtype="datetime64[D]"),
        np.array([True, False, True]),
        np.array([1e300, -1e300, 0.0]),
    ]
    packed = pack_columns(list("abcdef"), columns)
    cells = unpack(packed["cells"]).reshape(3, 6)
    meanings = packed["columns"]
    assert [m["kind"] for m in meanings] == [
        "number", "number", "category", "date", "category", "number"]  # fmt: skip
    numbers = [
        [None if c == 65535 else m["low"] + m["step"] * int(c) for c in cells[:, j]]
        for j, m in enumerate(meanings)
        if "step" in m
    ]
    np.testing.assert_allclose(numbers[0], columns[0], atol=1)
    assert numbers[1][1] is None
    np.testing.assert_allclose([numbers[1][0], numbers[1][2]], [0.5, -2.25], atol=1e-4)
    assert numbers[2] == [1704067200000.0, None, 1704240000000.0]
    assert [meanings[2]["labels"][c] for c in (cells[0, 2], cells[2, 2])] == ["a", "b"]
    assert cells[1, 2] == 65535
    assert meanings[4]["labels"] == ["False", "True"]
    # whole numbers are exact as far as 16 bits go
    few = pack_columns(["a"], [np.array([-7.0, 60_000, 3])])
    assert (unpack(few["cells"]) - 7.0).tolist() == [-7, 60_000, 3]


def test_positions_turn_towards_one_another():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(200, 2)) * [3, 1]
    angle = np.deg2rad(100)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = turn(first @ rotation * [1, -1], first)
    assert np.corrcoef(turned[:, 0], first[:, 0])[0, 1] > 0.999
    assert np.abs(turned).max() < 1.5


def test_pictures_are_pixels_or_files(tmp_path):
    pixels = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    packed = pack_images(pixels, 2)
    assert [packed[name] for name in ("height", "width", "channels")] == [4, 6, 1]
    found = unpack(packed["pixels"])
    assert (found[0], found[-1]) == (0, 255)
    first = pack_images(np.ones((3, 3, 8, 8), dtype=np.uint8), 3)  # channels first
    assert [first[name] for name in ("height", "width", "channels")] == [8, 8, 3]
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n")
    assert pack_images([file, str(file)], 2)["urls"][0].startswith("data:image/png;base64,")
    (tmp_path / "a.svg").write_text("<svg onload=alert(1)>")
    with pytest.raises(ValueError, match=r"images: .*a.svg is no PNG"):
        pack_images([tmp_path / "a.svg"], 1)


def test_large_pictures_are_made_smaller(monkeypatch):
    from skdml.plot import _explore_blocks

    monkeypatch.setattr(_explore_blocks, "MAX_IMAGE_BYTES", 5 * 8 * 8)
    packed = pack_images(np.kron(np.arange(5 * 64).reshape(5, 8, 8), np.ones((2, 2))), 5)
    assert (packed["height"], packed["width"]) == (8, 8)
    np.testing.assert_allclose(unpack(packed["pixels"]), np.arange(320) * 255 / 319, atol=0.51)


def test_a_ranking_is_in_the_order_of_its_scores(tmp_path):
    X, y, qid = make_ranking(n_queries=20, n_features=5, random_state=0)
    qid = qid[::-1] * 7  # queries stand in the order of the rows
    model = LocalGMMLRanker(random_state=0).fit(X, y, qid=qid)
    page = read(explore(model, X, y, qid=qid, path=tmp_path / "rank.html"))
    rows, scores = unpack(page["rows"]), unpack(page["scores"])
    assert sorted(rows) == list(range(len(X)))
    expected = model.predict(X, qid=qid)
    np.testing.assert_allclose(scores, expected[rows], rtol=1e-4, atol=1e-4)
    added = unpack(page["added"]).reshape(len(X), len(page["reasons"]))
    np.testing.assert_allclose(added.sum(axis=1), scores, rtol=1e-3, atol=1e-3)
    assert page["queries"] == [str(q) for q in dict.fromkeys(qid)]
    names, quality = ndcg_by_query(y, expected, qid, 10)
    found = dict(zip(page["queries"], page["quality"], strict=True))
    for name, value in zip(names, quality, strict=True):
        if not np.isnan(value):
            assert found[str(name)] == pytest.approx(value, abs=1e-6)
    for query, (start, end) in enumerate(zip(page["starts"], page["starts"][1:], strict=False)):
        assert (np.diff(scores[start:end]) <= 1e-6).all()
        assert {str(q) for q in qid[rows[start:end]]} == {page["queries"][query]}
    np.testing.assert_array_equal(unpack(page["grades"]), y[rows])


def test_queries_that_do_not_fit_are_left_out(tmp_path, monkeypatch):
    from skdml.plot import _explore_tables

    X, y, qid = make_ranking(n_queries=20, n_features=5, random_state=0)
    model = LocalGMMLRanker(random_state=0).fit(X, y, qid=qid)
    n_reasons = 5 + len(model.anchors_)
    monkeypatch.setattr(_explore_tables, "MAX_CELLS", (qid < 3).sum() * n_reasons)
    page = read(explore(model, X, y, qid=qid, path=tmp_path / "rank.html"))
    assert page["queries"] == ["0", "1", "2"]
    assert page["n"] == (qid < 3).sum()
    assert page["notes"] == ["The first 3 of 20 queries: more do not fit a page."]


class Copies(BaseEstimator):
    """A generator whose rows are those of the fit, in another order."""

    def fit(self, X):
        self.rows_ = X.iloc[::-1]
        return self

    def sample(self, n_samples, random_state=None):
        return self.rows_[:n_samples]


def test_generated_rows_stand_beside_real_ones(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=30), "kind": rng.choice(["a", "b"], 30)})
    page = read(explore(Copies().fit(X), X, path=tmp_path / "new.html"))
    assert page["n"] == 60
    generated = unpack(page["views"][1]["neighbors"]).reshape(60, 10)
    np.testing.assert_array_equal(generated[:30, 0], np.arange(59, 29, -1))  # each has its copy
    real = unpack(page["views"][0]["neighbors"]).reshape(60, 10)
    np.testing.assert_array_equal(real[30:, 0], np.arange(29, -1, -1))
    assert (real[:30] != np.arange(30)[:, None]).all()
    assert page["similarity"] == column_similarity(X, X).tolist()
    assert page["columns"][1]["labels"] == ["a", "b"]


def test_numbers_and_missing_classes(tmp_path):
    X = np.random.default_rng(0).normal(size=(8, 2))
    model, path = FunctionTransformer().fit(X), tmp_path / "x.html"
    page = read(explore(model, X, X[:, 0], path=path))
    assert list(page["labels"]) == ["values"]
    page = read(explore(model, X, ["a", None, "b", "a"] * 2, path=path, n_neighbors=100))
    assert unpack(page["labels"]["codes"]).tolist() == [0, -1, 1, 0] * 2
    assert page["k"] == 7
    assert read(explore(model, X, path=path))["labels"] is None


def test_too_many_cells_are_left_out_and_the_page_says_so(tmp_path, monkeypatch):
    from skdml.plot import _explore_rows

    monkeypatch.setattr(_explore_rows, "MAX_CELLS", 10)
    X = np.random.default_rng(0).normal(size=(8, 2))
    page = read(explore(FunctionTransformer().fit(X), X, path=tmp_path / "x.html"))
    assert "cells" not in page
    assert "too many cells" in page["notes"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": [0, 1]}, "y must have one entry per row: expected 6, got 2"),
        ({"texts": ["a"]}, "texts must have one entry for each of 6 rows, got 1"),
        ({"texts": [1] * 6}, "texts must hold strings, got 1 for row 0"),
        ({"texts": "abcdef"}, "texts must be a list"),
        ({"images": np.zeros((5, 4, 4))}, "images must be one for each of 6 rows, got 5"),
        ({"images": np.zeros((6, 4))}, "images must be numbers of shape"),
        ({"images": np.full((6, 4, 4), np.nan)}, "images must have no NaN"),
        ({"feature_names": ["a"]}, "feature_names must have one name for each of the 2 columns"),
        ({"n_neighbors": 0}, "n_neighbors must be at least 1"),
        ({"title": 3}, "title must be a string"),
        ({"qid": [0] * 6}, "qid is not used with FunctionTransformer"),
        ({"gallery_labels": [0] * 6}, "gallery_labels is given without gallery"),
        ({"gallery": np.zeros((4, 3))}, "gallery must have the 2 columns of X, got 3"),
        (
            {"y": [0] * 6, "gallery": np.zeros((4, 2)), "gallery_labels": [0]},
            "gallery_labels must have one entry per row: expected 4, got 1",
        ),
        ({"y": [{}] * 6}, "y must hold classes or numbers"),
        ({"X": np.full((6, 2), 1e30)}, "X before the metric has values above 1e"),
        ({"X": np.zeros((1, 2))}, "X must have at least two rows"),
        ({"X": 3.0}, "X must be rows, got float"),
        ({"X": np.full((6, 2), np.nan)}, "X before the metric contains NaN"),
        ({"estimator": KNeighborsClassifier().fit([[0], [1]], [0, 1])}, "must have transform"),
        ({"estimator": StandardScaler}, "estimator must be fitted, got the class"),
        ({"estimator": StandardScaler()}, "not fitted"),
    ],
)
def test_errors_name_the_parameter(options, message, tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    given = {"estimator": FunctionTransformer().fit(X), "X": X, "path": tmp_path / "x.html"}
    with pytest.raises((ValueError, TypeError), match=message):
        explore(**{**given, **options})
    assert not list(tmp_path.iterdir())
