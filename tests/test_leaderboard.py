"""The leaderboard: sets that are found and passed over, paired tests, ranks."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import bench_leaderboard, leaderboard_methods
from benchmarks.leaderboard_sets import find_sets, kind_of


def make_rows(n_rows=60, n_features=4, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % n_classes
    return rng.normal(size=(n_rows, n_features)) + 2 * y[:, None], y


def write_set(path, **more):
    X, y = make_rows()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{"X": X, "y": y, **more})


def load_all(home, folders=None):
    said = []
    sets = [load() for _, load in find_sets(home, folders, say=said.append)]
    return {data.name: data for data in sets if data is not None}, said


def test_sets_of_all_layouts_are_found(tmp_path):
    X, y = make_rows()
    write_set(tmp_path / "one.npz")
    write_set(tmp_path / "deep/er/two.npz", qid=np.repeat([2, 1], 30), fold=np.zeros(60))
    np.savez(
        tmp_path / "deep/parts.npz", X_train=X[:40], y_train=y[:40], X_test=X[40:], y_test=y[40:]
    )
    np.savez(tmp_path / "images.npz", X=np.full((4, 5, 6, 3), 255, np.uint8), y=[0, 0, 1, 1])
    np.savez(tmp_path / "graded.npz", X=X, y=y, pairs=[[0, 1]])
    with gzip.open(tmp_path / "tab_people.csv.gz", "wt") as file:
        file.write("Class,age,job\nyes,3,a\nno,4,b\n")
    (tmp_path / "last.csv").write_text("a,b,amount\n1,2,0.5\n3,4,1.5\n")
    (tmp_path / "notes.bin").write_bytes(b"0")
    (tmp_path / "letor").mkdir()
    for part in (1, 2):
        (tmp_path / f"letor/S{part}.txt").write_text(
            f"1 qid:{part} 1:0.5 2:1\n0 qid:{part} 1:0.1\n"
        )
    sets, said = load_all(tmp_path)
    kinds = {name: data.kind for name, data in sets.items()}
    assert kinds == {
        "one": "classes",
        "two": "ranking",
        "parts": "classes",
        "images": "classes",
        "people": "classes",
        "last": "numbers",
        "letor": "ranking",
    }
    assert sets["two"].qid.tolist() == sorted(sets["two"].qid)
    assert np.array_equal(sets["two"].X, np.float32(np.concatenate([X[30:], X[:30]])))
    assert len(sets["parts"].y) == 60
    assert sets["images"].X.shape == (4, 3, 5, 6)
    assert sets["images"].X.max() == pytest.approx(1)
    assert list(sets["people"].X) == ["age", "job"]
    assert sets["last"].y.tolist() == [0.5, 1.5]
    assert sets["letor"].X.shape == (4, 2)
    assert len(said) == 2  # the grades of pairs, and the notes


def test_reserve_is_left_out_unless_it_is_named(tmp_path):
    write_set(tmp_path / "open.npz")
    write_set(tmp_path / "reserve/secret.npz")
    write_set(tmp_path / "mine/reserve/secret2.npz")
    write_set(tmp_path / "mine/own.npz")
    assert list(load_all(tmp_path)[0]) == ["open", "own"]
    assert list(load_all(tmp_path, ["mine"])[0]) == ["own"]
    assert list(load_all(tmp_path, ["reserve"])[0]) == ["secret"]
    with pytest.raises(SystemExit, match="absent not in"):
        load_all(tmp_path, ["absent"])


def test_a_reserve_that_is_left_out_is_not_even_listed(tmp_path, monkeypatch):
    write_set(tmp_path / "open.npz")
    write_set(tmp_path / "mine/reserve/secret.npz")
    write_set(tmp_path / "reserve/secret.npz")
    listed, iterdir = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: (listed.append(path.name), iterdir(path))[1])
    assert list(load_all(tmp_path)[0]) == ["open"]
    assert listed == [tmp_path.name, "mine"]


def test_kinds_of_targets():
    rng = np.random.default_rng(0)
    assert kind_of(rng.integers(3, size=100)) == "classes"
    assert kind_of(rng.integers(3, size=100).astype(float)) == "classes"
    assert kind_of(np.array(list("abab"))) == "classes"
    assert kind_of(rng.normal(size=100)) == "numbers"
    assert kind_of(np.array([0.5, 1.5, 0.5])) == "numbers"
    assert kind_of(np.arange(300)) == "numbers"
    assert kind_of(np.arange(300) % 60) == "many classes"


def test_paired_tests_tell_wins_ties_and_losses():
    right = np.ones(40)
    wrong = np.where(np.arange(40) < 12, 0.0, 1.0)
    assert bench_leaderboard.paired(right, wrong) == 1
    assert bench_leaderboard.paired(wrong, right) == -1
    assert bench_leaderboard.paired(right, right) == 0
    few = np.where(np.arange(40) < 5, 0.0, 1.0)  # five of five: p = 1/16
    assert bench_leaderboard.paired(right, few) == 0
    rng = np.random.default_rng(0)
    grades = rng.random(50)
    assert bench_leaderboard.paired(grades + 0.1 + 0.05 * rng.random(50), grades) == 1
    assert bench_leaderboard.paired(grades, grades + rng.normal(size=50)) == 0
    assert bench_leaderboard.paired([np.nan, 1.0], [0.0, np.nan]) == 0


def fake(units):
    return {"units": None if units is None else list(units), "seconds": 1.0, "error": "no"}


def test_ranks_are_means_over_sets_and_what_failed_is_last():
    ones, halves, zeros = np.ones(20), np.arange(20) % 2, np.zeros(20)
    found = {
        "a": {"kNN": fake(zeros), "forest": fake(halves), "skdml.X": fake(ones)},
        "b": {"kNN": fake(zeros), "forest": fake(ones), "skdml.X": fake(None)},
    }
    rows = {row["method"]: row for row in bench_leaderboard.summarise("classes", found)}
    assert [row["rank"] for row in rows.values()] == [1.5, 2.0, 2.5]
    assert list(rows) == ["forest", "skdml.X", "kNN"]
    assert rows["skdml.X"]["outcome"] == "1 / 0 / 1"
    assert rows["skdml.X"]["failed"] == 1
    assert rows["kNN"]["outcome"] == "0 / 0 / 2"
    assert rows["kNN"]["against"] == "forest"
    assert "outcome" not in rows["forest"]
    assert rows["skdml.X"]["score"] == 1.0


def test_critical_distance_is_that_of_the_table():
    # Demsar (2006): q is 2.569 for four methods, 3.164 for ten.
    assert bench_leaderboard.critical_distance(4, 20) == pytest.approx(
        2.569 * (1 / 6) ** 0.5, abs=1e-3
    )
    assert bench_leaderboard.critical_distance(10, 30) == pytest.approx(
        3.164 * (110 / 180) ** 0.5, abs=1e-3
    )
    assert bench_leaderboard.cliques([1, 1.5, 2.6, 3], 1) == [(0, 1), (2, 3)]
    assert bench_leaderboard.cliques([1, 2, 3], 5) == [(0, 2)]


def test_parts_are_the_same_for_all_and_apart():
    from benchmarks.leaderboard_sets import DataSet

    X, y = make_rows(200)
    split = leaderboard_methods.split_rows(DataSet("a", "classes", X, y), 0)
    assert len(split.y) == len(split.y_test) == 100
    rows = {tuple(row) for row in split.raw}
    assert not rows & {tuple(row) for row in split.raw_test}
    many = DataSet("b", "many classes", np.repeat(X, 2, axis=0), np.repeat(np.arange(100), 4))
    split = leaderboard_methods.split_classes(many, 0)
    assert not set(split.y) & set(split.y_test)
    ranked = DataSet("c", "ranking", X, y, np.repeat(np.arange(20), 10))
    split = leaderboard_methods.split_queries(ranked, 0)
    assert not set(split.qid) & set(split.qid_test)


def test_quick_run_on_a_folder(tmp_path):
    write_set(tmp_path / "data/one.npz")
    write_set(tmp_path / "data/reserve/secret.npz")
    arguments = ["--home", str(tmp_path / "data"), "--parts", "pairs"]
    output = ["--output", str(tmp_path / "out")]
    assert command.main(["leaderboard", "--quick", *arguments, *output]) == 0
    report = json.loads((tmp_path / "out/leaderboard.json").read_text(encoding="utf-8"))
    assert report["parameters"]["sets"] == {"pairs": ["one"]}
    assert [row["failed"] for row in report["rows"]] == [0] * 4
    with pytest.raises(SystemExit, match="parts: wrong not among"):
        command.main(["leaderboard", "--quick", "--parts", "wrong", *output])
