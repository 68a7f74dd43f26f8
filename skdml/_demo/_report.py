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


_LINE = """<tr><td><b>{estimator}</b>: {task}</td><td>{measure}</td>
<td class="number">{baseline:.3f}<br><small>{baseline_name}</small></td>
<td class="number{better}">{learned:.3f}</td><td class="number">{seconds:.2f}</td></tr>"""
_SECTION = """<section><h2>{estimator}: {task}</h2>
<p>{explanation}</p>
{pictures}</section>"""
_FIGURE = """<figure><img alt="{caption}" src="data:image/png;base64,{data}">
<figcaption>{caption}</figcaption></figure>"""


def write_report(rows: list[DemoRow], output: Path) -> Path:
    """Write ``index.html`` with the table and every figure inside, and return its path."""
    lines, sections = [], []
    for row in rows:
        shown = {k: html.escape(v) if isinstance(v, str) else v for k, v in vars(row).items()}
        better = " better" if row.learned > row.baseline else ""
        lines.append(_LINE.format(better=better, **shown))
        pictures = "\n".join(_figure(caption, figure) for caption, figure in row.figures)
        sections.append(_SECTION.format(pictures=pictures, **shown))
    page = _PAGE.format(
        lines="\n".join(lines),
        sections="\n".join(sections),
        version=__version__,
        sklearn=sklearn.__version__,
        python=platform.python_version(),
    )
    path = output / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _figure(caption, figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    optional_import("matplotlib.pyplot", "The demo").close(figure)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return _FIGURE.format(caption=html.escape(caption), data=data)
