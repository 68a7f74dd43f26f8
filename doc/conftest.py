"""Pages whose code needs more than this system has."""

import os

# Ranks are forked.
collect_ignore = [] if hasattr(os, "fork") else ["guide/distributed.md"]
