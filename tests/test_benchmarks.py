"""The benchmark harness: command line, measuring, child processes, reports."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import environments
from benchmarks.child import read_values, write_values
from benchmarks.harness import (
    METRIC_LEARN,
    ChildError,
    Column,
    Measured,
    Options,
    PeerEnvironment,
    Report,
    Target,
    add_ratios,
    compare,
    measure,
    peak_memory,
    run_child,
)

ROOT = Path(__file__).resolve().parents[1]

PEER_SCRIPT = """
import os
import subprocess
import sys
import numpy as np

def double(X, names, factor=2):
    return {"X": X * factor, "names": names, "rows": np.int64(len(X)), "none": None}

def number():
    return 3.5

def objects():
    return {"bad": np.array([object()])}

def fail():
    print("before the end", file=sys.stderr)
    raise ZeroDivisionError("a message from the peer")

def sleep(seconds):
    subprocess.run(["sleep", str(seconds)])

def allocate(megabytes):
    np.ones(megabytes * 2**17)

def threads():
    return os.environ["OMP_NUM_THREADS"]
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "example_peer.py"
    path.write_text(PEER_SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def peer():
    return PeerEnvironment("example", executable=sys.executable)


def example_report(**changes):
    rows = [
        {"side": "skdml", "seconds": 0.5, "ok": True},
        {"side": "peer", "seconds": np.float64(2.0), "ok": False},
        {"side": "peer (not run: a | b)", "seconds": np.nan},
    ]
    add_ratios(rows, "seconds", "ratio", base="skdml")
    columns = [
        Column("side", "side"),
        Column("seconds", "seconds", ".2f", plot=True),
        Column("ratio", "x", ".1f"),
        Column("ok", "ok"),
    ]
    targets = [
        Target.at_most("seconds", 1.0, 0.5, unit="s", column="seconds"),
        Target.at_least("ratio", 5.0, np.nan),
    ]
    values = {"name": "a", "title": "b", "columns": columns, "rows": rows, "targets": targets}
    return Report(**values | changes)


def read_results(folder, name):
    """Return a run's JSON, after a look at the files that lie beside it."""
    endings = ("json", "md", "png")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.{e}" for e in endings]
    written = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert written["parameters"]["quick"] is True
    assert written["parameters"]["repeats"] == 1
    return written


class TestCommand:
    def test_list_names_all_with_their_first_lines(self, capsys):
        assert command.main(["--list"]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert lines.keys() == command.find_benchmarks().keys() >= {"import", "retrieval"}
        assert all(line.endswith(".") for line in lines.values())

    def test_names_have_hyphens(self, tmp_path, monkeypatch):
        (tmp_path / "bench_deep_losses.py").write_text('"""First line.\n\nMore."""\n')
        monkeypatch.setattr(command, "FOLDER", tmp_path)
        found = command.find_benchmarks()
        assert list(found) == ["deep-losses"]
        assert command.first_line(found["deep-losses"]) == "First line."

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["retreival"], "there is no benchmark 'retreival'; did you mean retrieval"),
            (["zzz"], "there is no benchmark 'zzz'; --list shows all"),
            ([], "give the NAME"),
            (["import", "--repeats", "0"], "must be at least 1"),
            (["import", "--unknown"], "unrecognized arguments: --unknown"),
        ],
    )
    def test_wrong_arguments(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err

    def test_quick_run_of_import(self, tmp_path, capfd):
        assert command.main(["import", "--quick", "--output", str(tmp_path)]) == 0
        printed = capfd.readouterr()
        assert "import skdml after it" in printed.out
        assert "import skdml after it: repeat 1 of 1" in printed.err
        seconds, optional = read_results(tmp_path, "import")["targets"]
        assert seconds["measured"] > 0
        assert optional["reached"], optional["measured"]

    def test_quick_run_of_retrieval_without_a_peer(self, tmp_path, monkeypatch):
        from benchmarks import bench_retrieval

        monkeypatch.setattr(bench_retrieval, "find_spec", lambda name: None)
        assert command.main(["retrieval", "--quick", "--output", str(tmp_path)]) == 0
        ours, plain, peer = read_results(tmp_path, "retrieval")["rows"]
        assert ours["recall"] == plain["recall"]
        assert ours["peak_mb"] > ours["growth_mb"] >= 0
        assert "not run" in peer["side"]

    @pytest.mark.slow
    def test_quick_run_from_the_shell(self, tmp_path):
        pytest.importorskip("pytorch_metric_learning")
        line = [sys.executable, "-m", "benchmarks", "retrieval", "--quick", "--output", tmp_path]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ours, _, peer = read_results(tmp_path, "retrieval")["rows"]
        assert peer["recall"] == pytest.approx(ours["recall"])

    def test_failing_child_is_told_without_traceback(self, tmp_path, capsys):
        class Module:
            @staticmethod
            def run(options):
                assert (options.repeats, options.extra) == (4, {"size": 3})
                raise ChildError("the peer is not there")

        parsed = {"name": "some", "list": False, "quick": False, "repeats": 4}
        assert command.run(Module, parsed | {"output": tmp_path, "size": 3}) == 1
        assert "some: the peer is not there" in capsys.readouterr().err


class TestTiming:
    def test_sides_take_turns(self):
        calls = []
        sides = {name: lambda name=name: calls.append(name) for name in "AB"}
        timings = compare(sides, repeats=3, warmup={"B": 1})
        assert calls == ["B", *"ABABAB"]
        assert all(len(timing.times) == 3 for timing in timings.values())

    def test_median_of_what_sides_measured_themselves(self):
        seconds = iter([100.0, 1.0, 5.0, 2.0])
        timing = compare({"side": lambda: Measured(next(seconds))}, repeats=3)["side"]
        assert timing.times == [1.0, 5.0, 2.0]
        assert timing.seconds == 2.0

    def test_missed_side_is_not_run_again(self):
        calls = []

        def slow():
            calls.append("slow")
            return Measured(None, missed=True)

        timings = compare({"slow": slow, "fast": lambda: 1}, repeats=3, warmup=0)
        assert calls == ["slow"]
        assert timings["slow"].missed
        assert timings["slow"].seconds is None
        assert not timings["fast"].missed

    def test_measure_returns_seconds_and_value(self):
        timing = measure(lambda a, b: time.sleep(0.01) or a + b, 1, b=2, repeats=2)
        assert timing.value == 3
        assert timing.seconds >= 0.01

    def test_one_thread(self):
        import threadpoolctl

        libraries = measure(threadpoolctl.threadpool_info, repeats=1).value
        assert {library["num_threads"] for library in libraries} <= {1}

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"repeats": 0}, "at least 1"), ({"warmup": {"x": 1}}, "do not exist: \\['x'\\]")],
    )
    def test_wrong_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            compare({"A": int}, **options)


class TestChildren:
    def test_peak_memory_sees_an_allocation(self, script):
        # Larger than what the child needs: its peak must not start from the parent's size.
        held = np.ones(2**25)
        result = peak_memory(f"{script}:allocate", {"megabytes": 100})
        assert result.growth_mb == pytest.approx(100, abs=5)
        assert result.peak_mb == result.baseline_mb + result.growth_mb
        assert result.baseline_mb < held.nbytes / 2**20
        assert result.seconds > 0

    def test_peak_memory_takes_functions_that_can_be_imported(self):
        result = peak_memory(np.linalg.norm, {"x": np.array([3.0, 4.0])})
        assert result.outputs == {"value": 5.0}
        with pytest.raises(ValueError, match="at the top of a module"):
            peak_memory(lambda: 0)

    def test_one_thread(self, script):
        assert run_child(f"{script}:threads").outputs == {"value": "1"}

    def test_objects_are_refused(self, tmp_path):
        with pytest.raises(TypeError, match="'y' is an array of Python objects"):
            write_values(tmp_path, "values", {"y": np.array(["a", None])})
        with pytest.raises(TypeError, match="a set cannot be exchanged"):
            write_values(tmp_path, "values", {"y": {1, 2}})

    def test_values_come_back(self, tmp_path):
        values = {"file": np.arange(3), "text": np.array(["a", "bc"]), "n": np.float32(0.5)}
        write_values(tmp_path, "values", values)
        back = read_values(tmp_path, "values")
        np.testing.assert_array_equal(back["file"], values["file"])
        np.testing.assert_array_equal(back["text"], values["text"])
        assert back["n"] == 0.5


class TestPeerEnvironment:
    def test_call(self, peer, script):
        X = np.arange(6, dtype=np.float32).reshape(3, 2)
        inputs = {"X": X, "names": ["a", "b"]}
        result = peer.call(script, "double", inputs, repeats=3, warmup=1)
        np.testing.assert_array_equal(result.outputs.pop("X"), 2 * X)
        assert result.outputs == {"names": ["a", "b"], "rows": 3, "none": None}
        assert len(result.times) == 3
        assert result.seconds == np.median(result.times) > 0

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            ("fail", "before the end(?s:.)*a message from the peer"),
            ("objects", "'bad' is an array of Python objects"),
            ("absent", "has no attribute 'absent'"),
        ],
    )
    def test_child_errors_come_back(self, peer, script, function, message):
        with pytest.raises(ChildError, match=message):
            peer.call(script, function)

    def test_time_cap_is_a_miss(self, peer, script):
        start = time.perf_counter()
        result = peer.call(script, "sleep", {"seconds": 60}, timeout=1)
        assert time.perf_counter() - start < 30
        assert result.missed
        assert result.seconds is None

    def test_side(self, peer, script):
        timing = compare({"peer": peer.side(script, "number")}, repeats=1, warmup=0)["peer"]
        assert timing.value.outputs == {"value": 3.5}
        assert timing.seconds == timing.value.seconds

    def test_absent_script(self, peer):
        with pytest.raises(FileNotFoundError, match=r"absent_peer\.py does not exist"):
            peer.call("absent_peer.py", "f")

    def test_folder_depends_on_requirements(self):
        folders = {PeerEnvironment("p", [f"x=={n}"]).folder.name for n in (1, 2)}
        assert len(folders) == 2
        assert all("==" in requirement for requirement in METRIC_LEARN.requirements)

    def test_venv_is_made_once_and_again_after_a_failure(self, tmp_path, monkeypatch):
        commands = []
        monkeypatch.setattr(environments, "VENVS", tmp_path)
        monkeypatch.setattr(PeerEnvironment, "_run", lambda self, line: commands.append(line))
        for _ in range(2):
            environment = PeerEnvironment("p", ["x==1"])
            with pytest.raises(FileNotFoundError):
                environment.executable()
        assert len(commands) == 4
        environment.folder.mkdir()
        (environment.folder / "complete").touch()
        assert environment.executable().startswith(str(environment.folder))
        assert len(commands) == 4
        assert commands[1][-1] == "x==1"

    def test_failed_installation_names_the_peer(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environments, "VENVS", tmp_path)
        broken = tmp_path / "broken.py"
        environment = PeerEnvironment("p", ["x==1"])
        with pytest.raises(ChildError, match=r"environment of p could not be made(?s:.)*broken"):
            environment._run([sys.executable, str(broken)])


class TestReport:
    def test_text(self):
        lines = example_report(targets=()).text().splitlines()
        assert lines[0] == "a: b"
        assert lines[2:6] == [
            "side                   seconds    x  ok",
            "skdml                     0.50  1.0  yes",
            "peer                      2.00  4.0  no",
            "peer (not run: a | b)        –    –  –",
        ]

    def test_targets(self):
        reached, missed, absent = (
            Target.at_most("seconds", 3.0, 2.0, unit="s"),
            Target.at_least("ratio", 5.0, np.nan),
            Target.at_most("seconds", 3.0, None),
        )
        assert reached.words() == ("seconds at most 3 s", "2 s", "reached")
        assert missed.words() == ("ratio at least 5", "–", "not reached")
        assert not absent.reached
        text = example_report(targets=[reached, missed]).text()
        assert "  reached      seconds at most 3 s  measured 2 s\n" in text
        assert "  not reached  ratio at least 5     measured –\n" in text

    def test_written_files(self, tmp_path):
        report = example_report(notes=["A note."])
        report.write(tmp_path)
        paths = report.write(tmp_path)
        assert [path.name for path in paths] == ["a.json", "a.md", "a.png"]

        def refuse(constant):
            raise AssertionError(f"{constant} is not strict JSON")

        written = json.loads(paths[0].read_text(encoding="utf-8"), parse_constant=refuse)
        assert written["rows"][2]["seconds"] is None
        assert {"python", "numpy", "scikit-learn", "skdml", "blas", "cpu", "cores", "date"} <= set(
            written["environment"]
        )
        markdown = paths[1].read_text(encoding="utf-8")
        assert "| peer (not run: a \\| b) | – | – | – |" in markdown
        assert "A note." in markdown
        assert paths[2].read_bytes().startswith(b"\x89PNG")

    def test_plots(self, tmp_path):
        drawn = []
        example_report(plot=lambda report, figure: drawn.append(figure.subplots())).write(tmp_path)
        assert len(drawn) == 1
        with pytest.raises(ValueError, match="mark a column with plot=True"):
            example_report(columns=[Column("side", "side")]).write(tmp_path)

    def test_ratios_within_groups(self):
        rows = [
            {"side": side, "data": data, "s": seconds}
            for side, data, seconds in [("a", 1, 2.0), ("b", 1, 4.0), ("a", 2, 0.0), ("b", 2, 1.0)]
        ]
        add_ratios(rows, "s", "ratio", base="a", by=["data"])
        assert [row["ratio"] for row in rows] == [1.0, 2.0, None, None]
        with pytest.raises(ValueError, match="no row has side = 'c'"):
            add_ratios(rows, "s", "ratio", base="c")

    def test_parts_that_are_not_run_keep_their_rows(self, tmp_path):
        def run(parts, value, quick=False):
            runners = {
                part: lambda part=part: [{"part": part, "side": value, "seconds": 1.0}]
                for part in ("first", "second")
            }
            options = Options(quick=quick, output=tmp_path, extra={"parts": parts})
            rows = options.run_parts("a", runners)
            columns = [Column("side", "side"), Column("seconds", "seconds", plot=True)]
            example_report(columns=columns, rows=rows).write(tmp_path)
            return [(row["part"], row["side"]) for row in rows]

        assert run("second", "old") == [("second", "old")]
        assert run("first", "new") == [("first", "new"), ("second", "old")]
        assert run("second,first", "newer") == [("first", "newer"), ("second", "newer")]
        assert run("first", "quick", quick=True) == [("first", "quick")]
        with pytest.raises(SystemExit, match="third not among first, second"):
            run("third", "new")


def fold_results(*accuracies, seconds=1.0):
    """Results of a method in folds with these accuracies, a point less for k = 5."""
    return [{"accuracy": {"1": a, "5": a - 0.01}, "seconds": seconds} for a in accuracies]


class TestLinear:
    @pytest.fixture
    def found(self):
        others = {"metric-learn LMNN": "time cap of 1 s", "GMML": fold_results(0.9, 0.9)}
        table = {
            "Euclidean": fold_results(0.80, 0.80),
            "NCA": fold_results(0.85, 0.87, seconds=4.0),
            "DITML": fold_results(0.86, 0.90, seconds=2.0),
            **others,
        }
        genes = dict.fromkeys(("Euclidean", "NCA", "GMML random"), "not run") | others
        genes["DITML"] = fold_results(0.6, 0.8)
        genes["DITML random"] = fold_results(0.7, 0.8)
        return {
            "balance": table,
            "letter": table | {"metric-learn LMNN": fold_results(0.88, 0.88)},
            "sonar": table | {"DITML": fold_results(0.79, 0.799)},
            "alon": genes,
        }

    SHAPES = {"balance": (625, 4), "letter": (4000, 16), "sonar": (208, 60), "alon": (62, 2000)}

    def test_targets_compare_where_both_have_results(self, found):
        from benchmarks.bench_linear import find_targets

        nca, lmnn, below, seconds, gmml, ditml = find_targets(found, self.SHAPES)
        assert nca.measured == pytest.approx((0.02 + 0.02 - 0.0655) / 3)
        assert not nca.reached
        assert "1 tables" in lmnn.text
        assert lmnn.measured == pytest.approx(0)
        assert (below.measured, below.reached) == (2, False)
        assert (seconds.measured, seconds.reached) == (0.5, True)
        assert gmml.measured is None
        # Differences of -0.1 and 0: their mean is one standard error below 0.
        assert ditml.target == pytest.approx(-0.05)
        assert ditml.measured == pytest.approx(-0.05)

    def test_half_a_point_below_is_tolerated(self):
        from benchmarks.bench_linear import below_plain

        assert below_plain({"sonar": np.array([[0.795 - 0.8, 0.7949 - 0.8]])}) == [
            "sonar (k = 5, -0.005)"
        ]

    def test_misses_have_no_mean_and_rank_last(self, found):
        from benchmarks.bench_linear import group_rows

        peer = "metric-learn LMNN"
        methods = ["Euclidean", "NCA", peer, "DITML"]
        *_, mean, part, rank = group_rows("tables", found, self.SHAPES, methods, 1)
        assert mean["Euclidean"] == pytest.approx(0.8)
        assert np.isnan(mean[peer])
        assert part["set"] == "mean of the 1 tables without a miss"
        assert part[peer] == pytest.approx(0.88)
        assert rank[peer] == pytest.approx((4 + 1.5 + 4) / 3)

    def test_results_of_others_outlive_a_new_version_of_ours(self, monkeypatch):
        from benchmarks import bench_linear

        def keys():
            return [bench_linear.cache_key("alon", 0, 9, name) for name in ("NCA", "DITML")]

        nca, ditml = keys()
        another = replace(bench_linear.METHODS["DITML"], version="another")
        monkeypatch.setitem(bench_linear.METHODS, "DITML", another)
        assert keys()[0] == nca
        assert keys()[1] != ditml

    def test_time_caps_of_stored_results(self):
        from benchmarks.bench_linear import find
        from benchmarks.cache import Cache

        cache = Cache(None)
        cache.add("late", {"cap": 10, "miss": "time cap of 10 s"})
        cache.add("done", {"accuracy": {}, "seconds": 20.0})
        assert find(cache, "late", 30) is None
        assert find(cache, "late", 5) == find(cache, "done", 5) == {"miss": "time cap of 5 s"}
        assert find(cache, "done", 30) == cache.find("done")
        assert find(cache, "unknown", 30) is None

    @pytest.mark.slow
    @pytest.mark.needs_data
    @pytest.mark.parametrize(
        ("name", "folders"), [("linear", ("uci", "microarray")), ("embeddings", ("embeddings",))]
    )
    def test_quick_run(self, name, folders, tmp_path):
        from benchmarks.data import data_home

        if not all((data_home() / folder).is_dir() for folder in folders):
            pytest.skip(f"needs the folders {folders} in the data home (set SKDML_DATA)")
        assert command.main([name, "--quick", "--output", str(tmp_path)]) == 0
        assert read_results(tmp_path, name)["targets"]
