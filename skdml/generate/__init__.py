"""Generators: networks that draw new rows like those of a table.

Needs the extra `deep`.
"""

from __future__ import annotations

from .._optional import optional_import

for _package in ("torch", "ot"):
    optional_import(_package, "skdml.generate")

from ._generator import WassersteinGenerator  # noqa: E402

__all__ = ["WassersteinGenerator"]
