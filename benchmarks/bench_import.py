"""Seconds that `import skdml` adds to `import sklearn`, and what it must not load.

Each import happens in a fresh process; skdml is imported where scikit-learn already is.
"""

import json
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.children import child_environment
from benchmarks.harness import ChildError, Column, Measured, Report, Target, add_ratios, compare

REPEATS = 11
PLAIN, OURS = "import sklearn", "import skdml after it"
OPTIONAL = ("torch", "skorch", "dask", "distributed", "matplotlib", "ot")
SCRIPT = """
import json, sys, time
{before}
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(sys.modules)]))
"""


@dataclass
class Import(Measured):
    """One import in a fresh process, and the modules that were loaded after it."""

    modules: tuple[str, ...] = ()


def import_freshly(statement, before=""):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=statement, before=before)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ChildError(f"{statement} failed:\n{done.stderr.strip()}")
    seconds, modules = json.loads(done.stdout)
    return Import(seconds=seconds, modules=tuple(modules))


def run(options):
    sides = {
        PLAIN: lambda: import_freshly(PLAIN),
        OURS: lambda: import_freshly("import skdml", before=PLAIN),
    }
    timings = compare(sides, repeats=options.repeats, warmup=options.pick(1, 0))
    rows = []
    for side, timing in timings.items():
        modules = timing.value.modules
        optional = [name for name in OPTIONAL if name in modules]
        rows.append(
            {
                "side": side,
                "seconds": timing.seconds,
                "times": timing.times,
                "n_modules": len(modules),
                "optional": ", ".join(optional) or "none",
            }
        )
    add_ratios(rows, "seconds", "ratio", base=PLAIN)
    ours = rows[1]
    return Report(
        name="import",
        title="import of scikit-learn, then of skdml, in fresh processes",
        columns=[
            Column("side", "side"),
            Column("seconds", "seconds", ".3f", plot=True),
            Column("ratio", "x scikit-learn's", ".2f"),
            Column("n_modules", "modules loaded", "d", plot=True),
            Column("optional", "optional packages loaded"),
        ],
        rows=rows,
        targets=[
            Target.at_most("seconds added", 0.3, ours["seconds"], unit="s", column="seconds"),
            Target(
                f"loaded of {', '.join(OPTIONAL)}:",
                target="none",
                measured=ours["optional"],
                reached=ours["optional"] == "none",
            ),
        ],
    )
