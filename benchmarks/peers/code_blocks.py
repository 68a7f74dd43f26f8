"""Code of a page and names of a package; runs in the environment of a peer."""

import importlib
import inspect
import traceback

from sklearn.base import BaseEstimator


def run_blocks(blocks, X, y):
    """Run blocks of code one after the other, with X and y; return the errors by number."""
    namespace = {"X": X, "y": y}
    errors = {}
    for number, code in enumerate(blocks):
        try:
            exec(compile(code, f"block {number}", "exec"), namespace)
        except Exception:
            errors[str(number)] = traceback.format_exc(limit=-1)
    return {"errors": errors}


def public_names(package):
    """Return names of public classes of a package, and of what its estimators have of their own."""
    classes = dict(inspect.getmembers(importlib.import_module(package), inspect.isclass))
    members = set()
    for cls in classes.values():
        members |= {name for name in dir(cls) if name[0] != "_" and "_request" not in name}
        members |= set(inspect.signature(cls).parameters)
    plain = {*dir(BaseEstimator), "set_output", "partial_labels"}
    return {"classes": sorted(classes), "members": sorted(members - plain)}
