"""The demo's report: one HTML file with its pictures inside."""

from __future__ import annotations

import base64
import html
import io
import platform
from pathlib import Path

import sklearn

from .._optional import optional_import
from .._version import __version__
from ._rows import DemoRow

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>skdml demo</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
        max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .45rem .7rem; border-bottom: 1px solid #ddd; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
td.better {{ font-weight: 600; color: #00684a; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; height: auto; }}
figcaption, footer {{ color: #555; font-size: .9rem; }}
</style>
</head>
<body>
<h1>skdml: what a learned metric changes</h1>
<p>Every row fits one estimator on small data and measures it on rows that it has not seen,
next to the same measure without it.</p>
<div class="scroll"><table>
<thead><tr><th>what was learned</th><th>measure</th><th class="number">baseline</th>
<th class="number">with skdml</th><th class="number">seconds</th></tr></thead>
<tbody>
{lines}
</tbody></table></div>
{sections}
<footer><p>skdml {version}, scikit-learn {sklearn}, Python {python}.</p></footer>
</body>
</html>
"""


def write_report(rows: list[DemoRow], output: Path) -> Path:
    """Write ``index.html`` with the table and every figure inside, and return its path."""
    page = _PAGE.format(
        lines="\n".join(_line(row) for row in rows),
        sections="\n".join(_section(row) for row in rows),
        version=__version__,
        sklearn=sklearn.__version__,
        python=platform.python_version(),
    )
    path = output / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _line(row):
    better = " better" if row.learned > row.baseline else ""
    return (
        f"<tr><td><b>{html.escape(row.estimator)}</b>: {html.escape(row.task)}</td>"
        f"<td>{html.escape(row.measure)}</td>"
        f'<td class="number">{row.baseline:.3f}<br><small>{html.escape(row.baseline_name)}'
        f'</small></td><td class="number{better}">{row.learned:.3f}</td>'
        f'<td class="number">{row.seconds:.2f}</td></tr>'
    )


def _section(row):
    figures = "\n".join(_figure(caption, figure) for caption, figure in row.figures)
    return (
        f"<section><h2>{html.escape(row.estimator)}: {html.escape(row.task)}</h2>\n"
        f"<p>{html.escape(row.explanation)}</p>\n{figures}</section>"
    )


def _figure(caption, figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    optional_import("matplotlib.pyplot", "The demo").close(figure)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    text = html.escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )
