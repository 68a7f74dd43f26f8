"""Run one benchmark: ``python -m benchmarks NAME``."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ChildError, Options

FOLDER = Path(__file__).parent
PREFIX = "bench_"
REPEATS = 5


def find_benchmarks() -> dict[str, Path]:
    """Return the names of the benchmarks and their files."""
    files = sorted(FOLDER.glob(f"{PREFIX}*.py"))
    return {path.stem.removeprefix(PREFIX).replace("_", "-"): path for path in files}


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, without importing the module."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]


def positive(text: str) -> int:
    """Return `text` as a number of repeats."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def make_parser(**kwargs) -> argparse.ArgumentParser:
    """Return the parser of what all benchmarks understand."""
    parser = argparse.ArgumentParser("python -m benchmarks", allow_abbrev=False, **kwargs)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--repeats", type=positive, help="timed calls of each side")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repeat")
    parser.add_argument(
        "--output", type=Path, default=Options.output, help="folder for the results"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    benchmarks = find_benchmarks()
    # The name alone first: a benchmark may have arguments of its own.
    known, _ = make_parser(add_help=False).parse_known_args(arguments)
    parser = make_parser()
    if known.list or known.name is None:
        parser.parse_args(arguments)
        if not known.list:
            parser.error("give the NAME of a benchmark, or --list")
        width = max(map(len, benchmarks))
        for name, path in benchmarks.items():
            print(f"{name:{width}}  {first_line(path)}")
        return 0
    if known.name not in benchmarks:
        near = difflib.get_close_matches(known.name, benchmarks, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "--list shows all"
        parser.error(f"there is no benchmark {known.name!r}; {hint}")
    module = importlib.import_module(f"benchmarks.{benchmarks[known.name].stem}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    parsed = vars(parser.parse_args(arguments))
    return run(module, parsed)


def run(module, parsed: dict) -> int:
    """Run one benchmark module, print its report and write its files."""
    del parsed["list"]
    name = parsed.pop("name")
    quick = parsed.pop("quick")
    repeats = parsed.pop("repeats") or (1 if quick else getattr(module, "REPEATS", REPEATS))
    options = Options(repeats, quick, parsed.pop("output"), extra=parsed)
    print(f"{name}: running", file=sys.stderr)
    try:
        report = module.run(options)
    except ChildError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    report.parameters = {"repeats": repeats, "quick": quick, **report.parameters}
    if quick:
        report.notes = [*report.notes, "A quick run on small inputs: no result to quote."]
    paths = report.write(options.output)
    print(report.text())
    print("\nwritten: " + ", ".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
