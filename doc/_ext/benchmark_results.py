"""Put the stored benchmark results, if there are any, into the page about the benchmarks."""

import re
from pathlib import Path

PAGE = "benchmarks"
# All results but those that have a place of their own, such as <!-- result: leaderboard -->.
PLACE = "<!-- results -->"
OWN_PLACE = re.compile(r"<!-- result: ([\w-]+) -->")
NONE = "No results are stored in this checkout: run a benchmark to make some."


def insert_results(app, docname, source):
    if docname != PAGE:
        return
    folder = Path(app.srcdir).parent / "benchmarks" / "results"
    shown = {}
    for table in sorted(folder.glob("*.md")):
        app.env.note_dependency(str(table))
        shown[table.stem] = table.read_text(encoding="utf-8")
        picture = table.with_suffix(".png")
        if picture.is_file():
            shown[table.stem] += (
                f"\n![Result of {table.stem}](../benchmarks/results/{picture.name})\n"
            )
    text = OWN_PLACE.sub(lambda place: shown.pop(place[1], NONE), source[0])
    parts = "\n".join(f"### {name}\n\n{result}" for name, result in shown.items())
    source[0] = text.replace(PLACE, parts or NONE)


def setup(app):
    app.connect("source-read", insert_results)
    # The page is read anew at every build: results may have come or gone.
    app.connect("env-get-outdated", lambda app, env, *changes: [PAGE])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
