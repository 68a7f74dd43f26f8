"""The demo's report: one HTML file with its pictures inside, and pages to explore beside it."""

from __future__ import annotations

import base64
import html
import io
import platform
from pathlib import Path

import sklearn

from .._optional import optional_import
from .._version import __version__
from ..plot import explore
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
        max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .45rem .7rem; border-bottom: 1px solid #ddd; }}
td.number, th.number {{ text-align: right; }} td.number > small {{ color: #555; }}
td.better {{ font-weight: 600; color: #00684a; }} td.simpler {{ font-weight: 600; color: #a84300; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; height: auto; }}
figcaption, footer {{ color: #555; font-size: .9rem; }}
@media (max-width: 40rem) {{
  table {{ font-size: .85rem; }} th, td {{ padding: .35rem .25rem; }}
  td:first-child {{ overflow-wrap: anywhere; }}
  th:nth-child(2), td:nth-child(2), th:nth-child(6), td:nth-child(6) {{ display: none; }}
}}
</style>
</head>
<body>
<h1>skdml: what a learned metric changes</h1>
<p>Every row fits one estimator on small data and measures it on rows that it has not seen, beside
strong simple methods on the same rows. More is better. Where a simple method is as good, take that
one.</p>
<div class="scroll"><table>
<thead><tr><th>what was learned</th><th>measure</th><th class="number">strongest simple method</th>
<th class="number">with skdml</th><th>here</th><th class="number">seconds</th></tr></thead>
<tbody>
{lines}
</tbody></table></div>
{sections}
<footer><p>skdml {version}, scikit-learn {sklearn}, Python {python}.</p></footer>
</body>
</html>
"""


_LINE = """<tr><td><b>{estimator}</b>: {task}</td><td>{measure}</td>
<td class="number">{best:.3f}<br><small>{name}</small></td>
<td class="number">{learned:.3f}</td><td class="{kind}">{verdict}</td>
<td class="number">{seconds:.2f}</td></tr>"""
_SECTION = """<section><h2>{estimator}: {task}</h2>
<p>{explanation}</p>
<p>{measure}: {figures}. {link}</p>
{pictures}</section>"""
_FIGURE = """<figure><img alt="{caption}" src="data:image/png;base64,{data}">
<figcaption>{caption}</figcaption></figure>"""


def write_report(rows: list[DemoRow], output: Path) -> Path:
    """Write ``index.html`` and pages to explore beside it, and return the path of the first."""
    lines: list[str] = []
    sections: list[str] = []
    for row in rows:
        name, best = row.strongest
        shown = {key: html.escape(getattr(row, key)) for key in ("estimator", "task", "measure")}
        figures = {**row.baselines, row.estimator: row.learned}
        shown |= {
            "kind": row.verdict.split()[0],
            "verdict": row.verdict,
            "name": html.escape(name),
            "explanation": html.escape(row.explanation),
            "figures": ", ".join(f"{html.escape(k)} {value:.3f}" for k, value in figures.items()),
            "link": _explore(row, output, len(lines)),
        }
        lines.append(_LINE.format(best=best, learned=row.learned, seconds=row.seconds, **shown))
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


def _explore(row, output, number):
    """Write the page of a row to explore, and return a link to it."""
    if row.explore is None:
        return ""
    title = f"{row.estimator}: {row.task}"
    path = explore(title=title, path=output / f"explore-{number + 1}.html", **row.explore)
    return f'<a href="{path.name}">Explore it: rows, neighbours, and why.</a>'


def _figure(caption, figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    optional_import("matplotlib.pyplot", "The demo").close(figure)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return _FIGURE.format(caption=html.escape(caption), data=data)
