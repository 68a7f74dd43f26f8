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
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="fit every estimator on small data and write a report with pictures"
    )
    demo.add_argument(
        "--output", default="skdml-demo", help="folder of the report (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.command == "demo":
        from ._demo import run_demos

        run_demos(options.output)


if __name__ == "__main__":
    main()
