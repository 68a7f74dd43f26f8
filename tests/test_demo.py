import re

import pytest

from skdml.__main__ import main
from skdml._demo import find_demos, run_demos

pytest.importorskip("matplotlib")


def test_every_estimator_has_a_demo():
    from skdml.utils.estimator_checks import all_estimators

    shown = tuple(name.replace("_", "") for name in find_demos())
    for name, _ in all_estimators():
        assert name.lower().startswith(shown), f"{name} has no demo"


def test_demo_prints_one_table_and_writes_one_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["demo"])
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split("  ")[0] == "what was learned"
    n_rows = sum("Transformer:" in line for line in lines)
    assert n_rows >= 5
    assert printed.err == ""  # not a terminal: no bars
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "skdml-demo" / "index.html"]
    page = files[0].read_text(encoding="utf-8")
    assert page.count("<figure>") >= n_rows
    # self-contained: nothing is loaded from anywhere
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)


@pytest.mark.slow  # the quick test runs every demo, too
def test_demo_shows_an_improvement(tmp_path, capsys):
    for row in run_demos(tmp_path, verbose=0):
        assert row.learned > row.baseline, row.task


def test_unknown_command(capsys):
    with pytest.raises(SystemExit):
        main(["dance"])
    assert "invalid choice" in capsys.readouterr().err
