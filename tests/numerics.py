"""Run the numerical tests under several OpenBLAS kernels and thread counts: `make test-numerics`.

Rounding differs from processor to processor; OPENBLAS_CORETYPE lets one processor run the kernels
of another. A kernel with instructions that this processor lacks is named in the table and left out.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

KERNELS = ("Prescott", "Haswell", "SkylakeX", "Zen")
THREADS = (1, 2)
FOLDERS = ("linear", "ranking", "asymmetric", "transport", "semisupervised", "metrics")
PATHS = (
    *(f"{top}/{folder}" for top in ("tests", "skdml") for folder in FOLDERS),
    *sorted(map(str, Path("tests/deep").glob("test_losses_*.py"))),
    "skdml/deep/losses",
)
# Prints the kernels that OpenBLAS really runs: it may have another name for one, or none.
PROBE = """
import numpy as np, scipy.linalg
from threadpoolctl import threadpool_info
for dtype in (np.float32, np.float64):
    A = np.random.default_rng(0).standard_normal((300, 300)).astype(dtype)
    for linalg in (np.linalg, scipy.linalg):
        linalg.svd(A), linalg.solve(A @ A.T + 300 * np.eye(300, dtype=dtype), A @ A[0])
found = {info.get("architecture") for info in threadpool_info() if info["user_api"] == "blas"}
print(*sorted(found - {None}), sep="+")
"""


def environment(kernel, threads):
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    chosen = {"OPENBLAS_CORETYPE": kernel, **dict.fromkeys(names, str(threads))}
    if kernel == "Prescott":  # torch too as on an old processor
        chosen |= {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    return os.environ | chosen


def run(kernel, threads):
    """Return whether the tests passed (or cannot run here), and a line for the table."""
    env = environment(kernel, threads)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    if probe.returncode == -signal.SIGILL:
        return True, "not run: this processor lacks instructions of the kernel"
    if probe.returncode:
        return False, f"failed: no BLAS, status {probe.returncode}"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        *PATHS,
        *sys.argv[1:],
    ]
    last = ""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        for last in process.stdout:
            print(last, end="", flush=True)
    return process.returncode == 0, f"{last.strip()}; ran as {probe.stdout.strip()}"


def main():
    passed, lines = [], []
    for kernel in KERNELS:
        for threads in THREADS:
            print(f"== {kernel}, threads: {threads}", flush=True)
            good, line = run(kernel, threads)
            passed.append(good)
            lines.append(f"{kernel:<9} {threads:>7}  {line}")
    print("", "kernel    threads  result", *lines, sep="\n")
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main())
