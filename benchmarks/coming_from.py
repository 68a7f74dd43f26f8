"""Pages for users of other packages, whose examples run in the environments of these."""

from __future__ import annotations

import re
from pathlib import Path

from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

from benchmarks.environments import PeerEnvironment

PAGES = Path(__file__).parents[1] / "doc" / "coming_from"
SCRIPT = "code_blocks.py"


def code_blocks(text: str, caption: str) -> list[tuple[int, str]]:
    """Return the blocks of code with a caption, each with the number of its first line."""
    pattern = rf"(?ms)^```\{{code-block\}} python\n:caption: {re.escape(caption)}\n(.*?)^```$"
    return [
        (text.count("\n", 0, found.start(1)) + 1, found[1]) for found in re.finditer(pattern, text)
    ]


def run_page(page: str, caption: str, peer: PeerEnvironment) -> tuple[int, dict[int, str]]:
    """Run the blocks of a peer one after the other.

    Parameters
    ----------
    page : str
        The name of a file in doc/coming_from.
    caption : str
        Of the blocks.
    peer : PeerEnvironment
        Where they run. `X` and `y` are the scaled rows and the classes of the wine data.

    Returns
    -------
    n_blocks : int
        How many blocks there are.
    errors : dict of int to str
        The errors of those that failed, by the number of their first line.
    """
    blocks = code_blocks((PAGES / page).read_text(encoding="utf-8"), caption)
    X, y = load_wine(return_X_y=True)
    inputs = {"blocks": [code for _, code in blocks], "X": scale(X), "y": y}
    result = peer.call(SCRIPT, "run_blocks", inputs, timeout=600)
    if result.missed:
        raise TimeoutError(f"the blocks of {page} took more than ten minutes")
    errors = result.outputs["errors"]
    return len(blocks), {blocks[int(number)][0]: error for number, error in errors.items()}


def names_without_mention(page: str, package: str, peer: PeerEnvironment) -> list[str]:
    """Return names of classes, methods and parameters that a page has in no left column."""
    text = (PAGES / page).read_text(encoding="utf-8")
    left = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    quoted = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", left))))
    found = peer.call(SCRIPT, "public_names", {"package": package}).outputs
    return [name for name in (*found["classes"], *found["members"]) if name not in quoted]
