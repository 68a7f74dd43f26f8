"""Put the stored benchmark results, if there are any, into the page about the benchmarks."""

from pathlib import Path

PAGE = "benchmarks"
PLACE = "<!-- results -->"
NONE = "No results are stored in this checkout: run a benchmark to make some."


def insert_results(app, docname, source):
    if docname != PAGE:
        return
    folder = Path(app.srcdir).parent / "benchmarks" / "results"
    parts = []
    for table in sorted(folder.glob("*.md")):
        app.env.note_dependency(str(table))
        parts.append(f"### {table.stem}\n\n{table.read_text(encoding='utf-8')}")
        picture = table.with_suffix(".png")
        if picture.is_file():
            parts.append(f"![Result of {table.stem}](../benchmarks/results/{picture.name})\n")
    source[0] = source[0].replace(PLACE, "\n".join(parts) or NONE)


def setup(app):
    app.connect("source-read", insert_results)
    # The page is read anew at every build: results may have come or gone.
    app.connect("env-get-outdated", lambda app, env, *changes: [PAGE])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
