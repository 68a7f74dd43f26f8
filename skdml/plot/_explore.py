"""A page to look at what was learned: rows, rankings and generated rows, in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from .._version import __version__
from ..utils._parallel import computed
from ..utils._typing import MatrixLike
from ..utils.validation import check_count
from ._explore_rows import rows_page
from ._explore_tables import generated_page, ranking_page


def explore(
    estimator: Any,
    X: MatrixLike,
    y: ArrayLike | None = None,
    images: Any = None,
    texts: Any = None,
    path: str | os.PathLike[str] = "explore.html",
    *,
    qid: ArrayLike | None = None,
    gallery: MatrixLike | None = None,
    gallery_labels: ArrayLike | None = None,
    feature_names: Any = None,
    n_neighbors: int = 10,
    title: str | None = None,
    random_state: Any = 0,
) -> Path:
    """Write one page that shows rows, their neighbours and why they are neighbours.

    The page is one file that needs no network: open it in a browser. What it shows depends on the
    estimator:

    - a metric learner or any other transformer: a map of the rows before and after, the nearest
      neighbours of a row under both metrics beside each other, and for linear maps how much of a
      distance is due to each column. *Before* is what the learner itself is given: in a pipeline,
      what the steps before it return;
    - a ranker: the documents of each query in its order, and what puts each of them there;
    - a generator: real rows beside generated ones, the nearest rows of both kinds, and columns side
      by side.

    Rows that the estimator was fitted on look better than they are. Explore others.

    Parameters
    ----------
    estimator : estimator
        Fitted, with `transform`, `sample` or `explain`; a pipeline may end in a classifier. Of a
        search over parameters the best estimator is taken.
    X : array-like of shape (n_samples, ...) or list of str
        Rows, as the estimator takes them.
    y : array-like of shape (n_samples,), default=None
        Their classes, or numbers; grades of documents; for a generator, the classes of the rows
        that it draws.
    images : array-like of shape (n_samples, height, width[, 3]) or list of paths, default=None
        Pictures of the rows, or PNG, JPEG, GIF and WebP files. Where X is pictures already, they
        are shown. For a generator the shape (height, width) of a row that is a picture.
    texts : list of str, default=None
        A text for each row, to show and to search.
    path : path, default="explore.html"
        The file to write.
    qid : array-like of shape (n_samples,), default=None
        The query of each document, for a ranker; None: all are of one query.
    gallery : array-like of shape (n_gallery, ...), default=None
        Rows to search, mapped by `transform_database` where the estimator has it; None: X itself.
        Images and texts are then those of X and of the gallery, one after the other.
    gallery_labels : array-like of shape (n_gallery,), default=None
        Their classes.
    feature_names : list of str, default=None
        Names of the columns; None takes those of a frame.
    n_neighbors : int, default=10
        How many neighbours of each row are shown.
    title : str, default=None
        Above the page; None is the name of the estimator.
    random_state : int, RandomState instance or None, default=0
        Seeds generated rows.

    Returns
    -------
    path : Path
        The file.

    Notes
    -----
    A page holds 100,000 rows; where their cells are more than eight million, values and reasons
    are left out, and larger pictures are made smaller. Neighbours are exact, found when the page is
    written, which takes most of the time where there are many rows.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdml import GMMLTransformer
    >>> from skdml.plot import explore
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> model = make_pipeline(StandardScaler(), GMMLTransformer(random_state=0))
    >>> model = model.fit(X[::2], y[::2])
    >>> page = explore(model, X[1::2], y[1::2], path=Path(tempfile.mkdtemp()) / "wine.html")
    >>> page.name
    'wine.html'
    """
    options = {
        "images": images,
        "texts": texts,
        "feature_names": feature_names,
        "n_neighbors": check_count(n_neighbors, "n_neighbors"),
        "random_state": check_random_state(random_state),
    }
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title must be a string, got {title!r}.")
    X, gallery = computed(X), computed(gallery)
    kind = kind_of(estimator)
    for name, given, wanted in (("qid", qid, "ranking"), ("gallery", gallery, "rows")):
        if given is not None and kind != wanted:
            raise ValueError(f"{name} is not used with {type(estimator).__name__}: leave it out.")
    if kind == "ranking":
        page = ranking_page(estimator, X, computed(y), qid, options)
    elif kind == "generated":
        page = generated_page(estimator, X, computed(y), options)
    else:
        page = rows_page(estimator, X, computed(y), gallery, gallery_labels, options)
    best = getattr(estimator, "best_estimator_", estimator)
    page["title"] = title or f"What {_name(best)} has learned"
    path = Path(path)
    path.write_text(render(page), encoding="utf-8")
    return path


def kind_of(estimator: Any) -> str:
    """Return which page an estimator gets: "ranking", "generated" or "rows"."""
    if isinstance(estimator, type):
        raise TypeError(f"estimator must be fitted, got the class {estimator.__name__}.")
    if hasattr(estimator, "explain") and hasattr(estimator, "predict"):
        return "ranking"
    return "generated" if hasattr(estimator, "sample") else "rows"


def _name(estimator):
    steps = getattr(estimator, "steps", None)
    if not steps:
        return type(estimator).__name__
    learners = [step for _, step in steps if hasattr(step, "transform")] or [steps[-1][1]]
    return type(learners[-1]).__name__


def render(page: dict[str, Any]) -> str:
    """Return a page as HTML, with its data, style and script inside.

    Texts of users are in the JSON alone, where no "<" can end the script; the page's policy lets no
    script run but its own, and nothing be loaded.
    """
    folder = resources.files(__package__)
    script, style, skeleton = (
        (folder / f"explore.{kind}").read_text(encoding="utf-8") for kind in ("js", "css", "html")
    )
    page = {**page, "version": __version__}
    content = json.dumps(page, allow_nan=False, separators=(",", ":"))
    content = content.replace("<", "\\u003c")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(page["title"]),
        "POLICY": f"default-src 'none'; script-src 'sha256-{digest}'; "
        "style-src 'unsafe-inline'; img-src data:",
        "STYLE": style,
        "SCRIPT": script,
        "DATA": content,
    }
    # In one pass: what is put in is not searched again.
    pieces = skeleton.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))
