"""The demo: every estimator at work on small data, as one table and one HTML page.

An estimator's demo lies beside its code, in a module named ``_demo_<name>.py`` with a function
``demo()`` that yields `DemoRow` objects. The runner finds them by that name; nothing is
registered anywhere else.
"""

from __future__ import annotations

from ._rows import DemoRow
from ._runner import find_demos, run_demos

__all__ = ["DemoRow", "find_demos", "run_demos"]
