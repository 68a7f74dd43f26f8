"""Examples of other packages on the pages "Coming from ..." are found, and run where they can."""

import sys
from types import SimpleNamespace

import pytest

from benchmarks.coming_from import PAGES, code_blocks, names_without_mention, run_page
from benchmarks.environments import METRIC_LEARN, PeerEnvironment
from benchmarks.peers import code_blocks as code_blocks_script

TEXT = """\
# A page

````{container} sides
```{code-block} python
:caption: theirs
a = X.shape

b = y
```

```{code-block} python
:caption: ours
>>> 1
```
````

```{code-block} python
:caption: theirs
a + (1 / 0,)
```

```{code-block} python
:caption: theirs
assert len(a) == 2
assert len(b) == a[0]
```

| theirs | ours |
| --- | --- |
| `PairTool(n_pairs=3)` | `nothing` |
"""


def test_blocks_are_found_by_their_caption():
    blocks = code_blocks(TEXT, "theirs")
    assert [line for line, _ in blocks] == [6, 19, 24]
    assert blocks[0][1] == "a = X.shape\n\nb = y\n"
    assert code_blocks(TEXT, "ours") == [(13, ">>> 1\n")]
    assert code_blocks(TEXT, "their") == []


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(TEXT)
    monkeypatch.setattr("benchmarks.coming_from.PAGES", tmp_path)
    return "page.md"


def test_blocks_run_in_order_and_errors_have_their_line(page):
    here = PeerEnvironment("here", executable=sys.executable)
    n_blocks, errors = run_page(page, "theirs", here)
    assert n_blocks == 3
    assert list(errors) == [19]
    assert "ZeroDivisionError" in errors[19]


class Here:
    """Calls the script of a peer in this process."""

    def call(self, script, function, inputs):
        assert script == "code_blocks.py"
        return SimpleNamespace(outputs=getattr(code_blocks_script, function)(**inputs))


def test_names_that_no_table_has_on_the_left(page, tmp_path, monkeypatch):
    tool = "class PairTool:\n    def __init__(self, n_pairs, nothing): ...\n    def go(self): ...\n"
    (tmp_path / "pair_tools.py").write_text(tool)
    monkeypatch.syspath_prepend(tmp_path)
    assert names_without_mention(page, "pair_tools", Here()) == ["go", "nothing"]


def test_examples_have_two_sides():
    text = (PAGES / "metric_learn.md").read_text(encoding="utf-8")
    theirs, ours = (code_blocks(text, caption) for caption in ("metric-learn", "skdml"))
    assert len(theirs) == len(ours) >= 7
    assert all(">>>" not in code for _, code in theirs)


has_metric_learn = pytest.mark.skipif(
    not (METRIC_LEARN.folder / "complete").exists(),
    reason="needs metric-learn's environment, which `make bench BENCH=metric-learn` makes",
)


@pytest.mark.slow
@has_metric_learn
def test_examples_of_metric_learn_run():
    n_blocks, errors = run_page("metric_learn.md", "metric-learn", METRIC_LEARN)
    assert n_blocks >= 7
    assert errors == {}


@pytest.mark.slow
@has_metric_learn
def test_tables_have_every_name_of_metric_learn():
    assert names_without_mention("metric_learn.md", "metric_learn", METRIC_LEARN) == []
