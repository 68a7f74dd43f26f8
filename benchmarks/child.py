"""Run one function in a process of its own and measure it; started by `benchmarks.children`.

Only the standard library and numpy are used, so that it also runs in a peer's environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np


def write_values(folder, name, values):
    """Write a dictionary of arrays and JSON values to `name`.npz and `name`.json."""
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(
                f"{key!r} is an array of Python objects; only numbers and fixed-width text "
                "can be exchanged with a child process"
            )
    plain = {key: value for key, value in values.items() if key not in arrays}
    np.savez(Path(folder, name + ".npz"), *arrays.values())
    text = json.dumps({"arrays": list(arrays), "plain": plain}, default=_plain)
    Path(folder, name + ".json").write_text(text, encoding="utf-8")


def read_values(folder, name):
    """Read what `write_values` wrote."""
    described = json.loads(Path(folder, name + ".json").read_text(encoding="utf-8"))
    values = dict(described["plain"])
    with np.load(Path(folder, name + ".npz"), allow_pickle=False) as stored:
        for position, key in enumerate(described["arrays"]):
            values[key] = stored[f"arr_{position}"]
    return values


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"a {type(value).__name__} cannot be exchanged with a child process: "
        "use arrays, numbers, text, lists and dictionaries"
    )


def load_function(target):
    """Return the function that "module:function" or "file.py:function" names."""
    source, _, name = target.rpartition(":")
    if source.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(source).stem, source)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(source)
    return getattr(module, name)


def memory_mb():
    """Return the resident memory of this process, now and at its peak, in MB of 2**20 bytes."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak /= 2**20 if sys.platform == "darwin" else 2**10
        return peak, peak
    # Not ru_maxrss: on Linux it starts from the size of the process that started this one.
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[field].split()[0]) / 2**10 for field in ("VmRSS", "VmHWM"))


def forget_peak():
    """Let the peak start again from the current size, where the system can do so."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure_here(function, inputs, repeats, warmup):
    """Call `function` and return what it returned last, and what was measured."""
    for _ in range(warmup):
        function(**inputs)
    gc.collect()
    forget_peak()
    baseline, _ = memory_mb()
    times = []
    value = None
    for _ in range(repeats):
        value = None
        gc.collect()
        start = time.perf_counter()
        value = function(**inputs)
        times.append(time.perf_counter() - start)
    _, peak = memory_mb()
    return value, {"times": times, "baseline_mb": baseline, "peak_mb": max(peak, baseline)}


def main(folder):
    """Run the task that lies in `folder` and leave the results there."""
    # As a script, this folder would stand before installed packages of the same names.
    sys.path.pop(0)
    task = json.loads(Path(folder, "task.json").read_text(encoding="utf-8"))
    function = load_function(task["target"])
    inputs = read_values(folder, "inputs")
    value, measured = measure_here(function, inputs, task["repeats"], task["warmup"])
    if not isinstance(value, dict):
        value = {"value": value}
    write_values(folder, "outputs", value)
    Path(folder, "measured.json").write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
