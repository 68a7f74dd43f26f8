"""Kill and interrupt fits at random moments, over all distributed modes: `make kill-matrix`.

Workers, ranks and critics that are killed may cost time, not the result. A killed scheduler is one
error that names it. An interrupt ends the fit, and the next one works. A killed main process leaves
no process and no file that stays.
"""

import argparse
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil

# Mode, what is fitted, on a cluster or not, and what can be killed there.
MODES = {
    "embedder, ranks here": ("embedder", False, ("rank", "main")),
    "embedder, ranks on dask": ("embedder", True, ("rank", "worker", "scheduler")),
    "generator, processes": ("generator", False, ("critic", "main")),
    "generator, dask": ("generator", True, ("worker", "scheduler")),
    "DITML, dask": ("ditml", True, ("worker", "scheduler")),
    "GMML, dask arrays": ("gmml", True, ("worker", "scheduler")),
    "ranker, dask": ("ranker", True, ("worker", "scheduler")),
}
COMMANDS = {
    "rank": "skdml.deep.distributed._worker",
    "critic": "popen_loky",
    "worker": "spawn_main",
}
PATIENCE = 150
_MAX_TRIES = 5
CLUSTER = """
import time
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(2, threads_per_worker=1, dashboard_address=":0")
    print(cluster.scheduler_address, flush=True)
    time.sleep(10**6)
"""


class Process:
    """A process whose lines can be waited for."""

    def __init__(self, arguments, folder):
        self._errors = open(folder / f"errors-{time.monotonic_ns()}", "w")  # noqa: SIM115
        self.process = psutil.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("gone")

    def tell(self):
        self.process.stdin.write("fit\n")
        self.process.stdin.flush()

    def wait(self, seconds=PATIENCE):
        """Return the next line, "hangs" if there is none for too long."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return "hangs"

    def close(self):
        family = [self.process, *self.children()]
        for one in family:
            with _gone():
                one.kill()
        psutil.wait_procs(family, timeout=30)
        self._errors.close()

    def children(self):
        with _gone():
            return self.process.children(recursive=True)
        return []


class _gone:
    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        return kind is not None and issubclass(kind, (psutil.Error, ProcessLookupError))


class Mode:
    """One distributed mode: a process that fits, and perhaps a cluster."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.fit, self.has_cluster, self.victims = MODES[name]
        self.cluster = self.driver = None
        self.expected = None

    def start(self):
        self.close()
        arguments = []
        if self.has_cluster:
            script = self.folder / "cluster.py"
            script.write_text(CLUSTER)
            self.cluster = Process([str(script)], self.folder)
            arguments = [self.cluster.wait()]
        self.driver = Process(["-m", "tests.kills.drive", self.fit, *arguments], self.folder)
        if self.driver.wait() != "ready":
            raise RuntimeError(f"{self.name} does not start: look into {self.folder}")
        for _ in range(2):  # the first fit also imports and compiles
            begin = time.monotonic()
            outcome = self.run(lambda: None)
            self.seconds = time.monotonic() - begin
        if not outcome.startswith("end") or outcome != (self.expected or outcome):
            raise RuntimeError(f"{self.name} does not work unharmed: {outcome}")
        self.expected = outcome

    def run(self, harm):
        self.driver.tell()
        if (line := self.driver.wait()) != "begin":
            return line
        harm()
        return self.driver.wait()

    def close(self):
        for process in (self.driver, self.cluster):
            if process is not None:
                process.close()
        self.driver = self.cluster = None

    def find(self, kind):
        """Return the processes of a kind that live now."""
        if kind == "main":
            return [self.driver.process]
        if kind == "scheduler":
            return [self.cluster.process]
        roots = [self.driver, self.cluster] if self.has_cluster else [self.driver]
        found = []
        for process in (child for root in roots for child in root.children()):
            with _gone():
                command = " ".join(process.cmdline())
                if COMMANDS[kind] in command and "resource_tracker" not in command:
                    found.append(process)
        return found

    def harm(self, kind, rng):
        """Kill or interrupt; "too late" where the fit had ended before."""
        return self.interrupt(rng) if kind == "interrupt" else self.kill(kind, rng)

    def kill(self, kind, rng):
        """Kill one of a kind at a random moment of a fit, and tell how that went."""
        killed = []

        def harm():
            time.sleep(rng.uniform(0, self.seconds))
            end = time.monotonic() + 5
            while not (found := self.find(kind)) and time.monotonic() < end:
                time.sleep(0.01)
            if found:
                killed.append(rng.choice(found))
                with _gone():
                    killed[0].kill()

        family = self.driver.children() if kind == "main" else []
        begin = time.monotonic()
        watcher = threading.Timer(0, lambda: None)
        if kind == "main":
            watcher = _Family(self.driver)
        watcher.start()
        outcome = self.run(harm)
        seconds = time.monotonic() - begin
        watcher.cancel()
        if not killed:
            return "too late", seconds
        if kind == "main":
            return self._after_main(outcome, family, watcher), seconds
        if kind == "scheduler":
            outcome = self._after_scheduler(outcome)
            self.start()
            return outcome, seconds
        verdict = "same result" if outcome == self.expected else f"WRONG: {outcome}"
        if verdict != "same result" or not self._is_whole():
            self.start()
        return verdict, seconds

    def _is_whole(self):
        """Wait for workers that come back."""
        end = time.monotonic() + 30
        while self.has_cluster and len(self.find("worker")) < 2:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def _after_main(self, outcome, family, watcher):
        left = psutil.wait_procs([*family, *watcher.found], timeout=30)[1]
        self.start()  # whose fits remove what was left
        if outcome == self.expected:
            return "too late"
        folders = [path for path in self.folder.glob("skdml-*") if not self._is_used(path)]
        if outcome != "gone" or left or folders:
            return f"WRONG: {outcome}, left {left} {folders}"
        return "nothing left"

    def _is_used(self, folder):
        return self.driver.process.is_running() and not (folder / "lock").exists()

    def _after_scheduler(self, outcome):
        if outcome == self.expected:
            return "too late"
        is_clear = outcome.startswith("error RuntimeError") and "tcp://127.0.0.1" in outcome
        return "clear error" if is_clear else f"WRONG: {outcome}"

    def interrupt(self, rng):
        """Interrupt a fit as Ctrl-C does, then fit again."""

        def harm():
            time.sleep(rng.uniform(0, self.seconds))
            self.driver.process.send_signal(signal.SIGINT)

        begin = time.monotonic()
        outcome = self.run(harm)
        seconds = time.monotonic() - begin
        if outcome == "interrupted":
            left = self.find("rank") + (self.find("critic") if self.fit == "generator" else [])
            left = psutil.wait_procs(left, timeout=10)[1]
            again = self.run(lambda: None)
            if again == self.expected and not left:
                return "ended, next works", seconds
            self.start()
            return f"WRONG: then {again}, left {left}", seconds
        if outcome == self.expected:
            self.start()  # the signal came after the fit: the process may have ended by it
            return "too late", seconds
        self.start()
        return f"WRONG: {outcome}", seconds


class _Family(threading.Thread):
    """Notes all children that a process ever has."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.root, self.found, self._end = process, set(), threading.Event()

    def run(self):
        while not self._end.wait(0.02):
            self.found.update(self.root.children())

    def cancel(self):
        self._end.set()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--interrupts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", default="", help="words, one of which is in a mode's name")
    options = parser.parse_args()
    words = options.modes.split() or [""]
    names = [name for name in MODES if any(word in name for word in words)]
    kinds = [(name, kind) for name in names for kind in MODES[name][2]]
    # Processes that do work die more often than schedulers, which need a new cluster each time.
    weights = [1 if kind in ("scheduler", "main") else 3 for _, kind in kinds]
    rng = random.Random(options.seed)
    plan = [
        kinds[i % len(kinds)] if i < len(kinds) else rng.choices(kinds, weights)[0]
        for i in range(options.kills)
    ]
    plan += [(names[i % len(names)], "interrupt") for i in range(options.interrupts)]
    table, folder = defaultdict(list), Path(tempfile.mkdtemp(prefix="kills-"))
    for name in names:
        mode = Mode(name, folder)
        try:
            mode.start()
            for kind in [kind for other, kind in plan if other == name]:
                for _ in range(_MAX_TRIES):
                    verdict, seconds = mode.harm(kind, rng)
                    if verdict != "too late":
                        break
                table[name, kind].append((verdict, seconds))
                print(f"{name}: {kind}: {verdict} ({seconds:.1f} s)", flush=True)
        finally:
            mode.close()
    shutil.rmtree(folder, ignore_errors=True)
    print("\n| mode | killed | times | outcome | longest |\n|---|---|---|---|---|")
    for (name, kind), rows in table.items():
        outcomes = defaultdict(int)
        for verdict, _ in rows:
            outcomes[verdict] += 1
        text = ", ".join(f"{count} {verdict}" for verdict, count in outcomes.items())
        print(f"| {name} | {kind} | {len(rows)} | {text} | {max(s for _, s in rows):.0f} s |")
    n_wrong = sum(verdict.startswith("WRONG") for rows in table.values() for verdict, _ in rows)
    print(f"\n{sum(map(len, table.values()))} in all, {n_wrong} wrong")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
