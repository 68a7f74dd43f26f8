"""Processes that end with their parent: ``python -P _processes.py PARENT MODULE ARGUMENTS``.

Run as a script, this runs a module that dies when the process PARENT is gone. Only the standard
library is imported: heavy packages come after the promise is given.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def command_of_child(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a process which ends with this one."""
    return [sys.executable, "-P", __file__, str(os.getpid()), module, *arguments]


def end_with_parent(parent: int) -> None:
    """Let this process be killed when its parent is gone, however that came about.

    Parameters
    ----------
    parent : int
        The process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before it could be told
            os._exit(1)
        return

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
