import re

import pytest
from threadpoolctl import threadpool_info

from skdml.__main__ import main
from skdml._demo import DemoRow, _runner, find_demos, run_demos
from skdml._demo._report import write_report

pytest.importorskip("matplotlib")


def test_every_estimator_has_a_demo():
    from skdml.utils.estimator_checks import all_estimators

    shown = tuple(name.replace("_", "") for name in find_demos())
    for name, _ in all_estimators():
        assert name.lower().startswith(shown), f"{name} has no demo"


@pytest.mark.timeout(900)  # twenty seconds, where nothing else runs
def test_demo_prints_one_table_and_writes_a_report_with_pages(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["demo"])
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split("  ")[0] == "what was learned"
    n_rows = sum("Transformer:" in line for line in lines)
    assert n_rows >= 5
    assert printed.err == ""  # not a terminal: no bars
    files = {path.relative_to(tmp_path / "skdml-demo").as_posix() for path in tmp_path.rglob("*.*")}
    page = (tmp_path / "skdml-demo" / "index.html").read_text(encoding="utf-8")
    assert page.count("<figure>") >= n_rows
    # nothing is loaded from anywhere, and every page to explore is there
    linked = set(re.findall(r"""(?:src|href)=["'](?!data:)(.*?)["']""", page))
    assert files == {"index.html"} | linked
    assert len(linked) >= n_rows
    assert "NCA" in page
    assert "logistic regression" in page


def test_demos_have_one_thread(tmp_path, monkeypatch, capsys):
    found = []

    def demo(verbose):
        found.extend(library["num_threads"] for library in threadpool_info())
        yield DemoRow("Estimator", "a task", "accuracy", {"NCA": 0.5}, learned=0.6, seconds=1)

    monkeypatch.setattr(_runner, "find_demos", lambda: {"estimator": demo})
    run_demos(tmp_path, verbose=0)
    assert set(found) == {1}
    assert "better" in capsys.readouterr().out


def test_a_row_that_a_simple_method_wins_says_so(tmp_path):
    options = {"estimator": "GMMLTransformer", "task": "a <task>", "measure": "accuracy"}
    baselines = {"Euclidean": 0.5, "NCA": 0.9}
    rows = [DemoRow(**options, baselines=baselines, learned=x, seconds=1) for x in (0.8, 0.9, 0.95)]
    assert [row.verdict for row in rows] == ["simpler is better", "no gain", "better"]
    assert rows[0].strongest == ("NCA", 0.9)
    page = write_report(rows, tmp_path).read_text(encoding="utf-8")
    assert '<td class="simpler">simpler is better</td>' in page
    assert "Euclidean 0.500, NCA 0.900, GMMLTransformer 0.800" in page
    assert "a &lt;task&gt;" in page


@pytest.mark.slow  # the quick test runs every demo, too
def test_demo_shows_an_improvement_over_plain_distance(tmp_path, capsys):
    rows = run_demos(tmp_path, verbose=0)
    for row in rows:
        assert row.learned > row.baselines.get("Euclidean", -1), row.task
    # Some are won by a simple method, and are shown as they are.
    assert sum(row.verdict == "better" for row in rows) > len(rows) / 2


def test_unknown_command(capsys):
    with pytest.raises(SystemExit):
        main(["dance"])
    assert "invalid choice" in capsys.readouterr().err
