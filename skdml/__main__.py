"""Command line: ``python -m skdml demo``."""

from __future__ import annotations

import argparse


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Parameters
    ----------
    arguments : list of str, default=None
        None takes those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m skdml", description=__doc__)
    what = "fit every estimator on small data and write a report with pictures"
    parser.add_argument("command", choices=["demo"], help=what)
    where = "folder of the report (default: %(default)s)"
    parser.add_argument("--output", default="skdml-demo", help=where)
    options = parser.parse_args(arguments)
    from ._demo import run_demos

    run_demos(options.output)


if __name__ == "__main__":
    main()
