"""What some tests need of the system, and a signal that ends a process on each of them."""

import os
import signal

import pytest

# Windows has no SIGKILL: there `os.kill` ends a process at once, whatever the number.
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="ranks are forked, which Windows cannot"
)
