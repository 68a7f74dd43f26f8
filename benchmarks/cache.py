"""Results kept as they come, so that an interrupted run goes on where it stopped.

The files are part of the project: a later run adds seeds and methods to what is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import progress

FOLDER = Path(__file__).with_name("results") / "cells"


class Cache:
    """Results in a file of JSON lines.

    Parameters
    ----------
    name : str or None
        Names the file; None keeps nothing.
    fresh : bool
        Whether to forget what is in the file.
    """

    def __init__(self, name: str | None, fresh: bool = False):
        self.path = None if name is None else FOLDER / f"{name}.jsonl"
        self.known: dict[str, dict[str, Any]] = {}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            self.path.unlink(missing_ok=True)
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.known[entry.pop("key")] = entry

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the result of a key, None if unknown."""
        return self.known.get(key)

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Keep the result of a key."""
        self.known[key] = entry
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **entry}) + "\n")

    def compute(
        self, key: Any, function: Callable[..., dict[str, Any]], *args: Any
    ) -> dict[str, Any]:
        """Return the result of a key, as JSON has it; compute and keep it where it is unknown."""
        key = json.dumps(key)
        if key not in self.known:
            progress(key)
            self.add(key, function(*args))
        return self.known[key]
