"""Checks of parameters, rows, weights, targets and conditions of a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d

from ..utils._supervision import check_weights, draw_weighted
from ..utils.validation import check_scale
from ._frames import Layout
from ._tables import TableEncoder, learn_table

# Targets of more different whole numbers than this are numbers, not classes.
_MOST_CLASSES = 200
# Codes that are kept, to draw from where samples of any class are asked for.
_MOST_CODES = 10_000
# Up to so many rows, a batch may be larger than the data.
_FEW_ROWS = 1000
# Parameters of critics, and their defaults.
_OF_CRITICS = {
    "latent_dim": 32,
    "n_critics": 1,
    "cost": "auto",
    "coupling": "auto",
    "debias": "auto",
    "n_critic_steps": 1,
    "n_potential_steps": 5,
    "module": None,
    "critic_module": None,
}


def choose_method(model: Any) -> str:
    """Return the method of an estimator, "critics" where a parameter of critics is given."""
    found = {
        name: getattr(model, name)
        for name, default in _OF_CRITICS.items()
        if getattr(model, name) is not default and getattr(model, name) != default
    }
    if model.method == "flow" and found:
        name, value = next(iter(found.items()))
        raise ValueError(
            f"{name}={value!r} has no effect with method='flow': leave it at "
            f"{_OF_CRITICS[name]!r}, or give method='critics'."
        )
    if model.method == "auto":
        return "critics" if found else "flow"
    return model.method


def check_batch_size(model: Any, n_rows: int, default: int) -> int:
    """Return the batch size of an estimator; one that is much more than the rows is an error."""
    batch_size = default if model.batch_size == "auto" else int(model.batch_size)
    if batch_size > max(n_rows, _FEW_ROWS):
        raise ValueError(
            f"batch_size={batch_size} is more than the {n_rows} rows of X: give at most "
            f"{max(n_rows, _FEW_ROWS)}."
        )
    return batch_size


def find_categorical(layout: Layout, names: Sequence[Any] | None) -> list[int]:
    """Return the places of columns that are categories whatever their dtype."""
    places = {label: place for place, label in enumerate(layout.labels)}
    missing = [label for label in names or () if label not in places]
    if missing:
        raise ValueError(
            f"categorical_features has {missing[0]!r}, which is no column of X: give names of "
            "columns, or for an array their numbers from 0."
        )
    return [places[label] for label in names or ()]


def check_table(layout: Layout, table: Sequence[NDArray], n_least: int) -> None:
    """Check the number of rows of a frame, and that its numbers are finite or missing."""
    n_rows = len(table[0]) if table else 0
    if n_rows < n_least:
        raise ValueError(
            f"Found array with {n_rows} sample(s) in X, while a minimum of {n_least} is required."
        )
    for label, kind, column in zip(layout.labels, layout.kinds, table, strict=True):
        if kind != "category":
            if np.isinf(column).any():
                raise ValueError(f"X contains infinity, in column {label!r}.")
            check_scale(column[~np.isnan(column)][:, None])


def choose_rows(n_rows: int, sample_weight: Any) -> tuple[NDArray | slice, NDArray | None]:
    """Return the rows that count, and their weights, None where these are the same."""
    if sample_weight is None:
        return slice(None), None
    weights = check_weights(sample_weight, "sample_weight", n_rows)
    chosen = np.flatnonzero(weights > 0)
    weights = weights[chosen]
    if len(chosen) < 2:
        raise ValueError("sample_weight leaves one row that counts: two are needed.")
    return chosen, weights / weights.mean() if np.ptp(weights) else None


def learn_target(y: Any, n_rows: int, chosen: NDArray | slice) -> tuple[TableEncoder, NDArray]:
    """Return the encoder of classes or numbers, and those of the chosen rows."""
    values = _values(y)
    if len(values) != n_rows:
        raise ValueError(
            f"y must have a value for each of the {n_rows} rows of X, got {len(values)}."
        )
    values = values[chosen]
    is_number = values.dtype.kind == "f" and (values != np.round(values)).any()
    if values.dtype.kind in "iuf" and len(np.unique(values)) > _MOST_CLASSES:
        is_number = True
    kind = "number" if is_number else "category"
    layout = Layout("numpy", ["y"], [values.dtype.str], [kind], [{}])
    column = values.astype(np.float64) if is_number else values
    return learn_table(layout, [column], "columns"), column


def _values(y):
    values = column_or_1d(y, warn=False)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("y contains NaN or infinity.")
    if values.dtype.kind == "O" and any(v is None or v != v for v in values):
        raise ValueError("y contains NaN or None: every row needs a class.")
    return values


def encode_target(target: TableEncoder, y: Any, n_samples: int) -> NDArray:
    """Return codes of classes or numbers, one for each sample."""
    values = np.full(n_samples, y) if np.ndim(y) == 0 else _values(y)
    if len(values) != n_samples:
        raise ValueError(
            f"y must be one value, or one for each of {n_samples} rows, got {len(values)}."
        )
    if target.categories:
        known = target.categories[0]
        new = sorted(set(values.tolist()) - set(known), key=str)
        if new:
            raise ValueError(f"y has the class {new[0]!r}, which was not seen in fit.")
        return target.encode([values])
    return target.encode([values.astype(np.float64)])


def draw_codes(codes: NDArray | None, weights: NDArray | None, seed: int) -> NDArray | None:
    """Return codes from which those of samples are drawn, each as often as its rows count."""
    if codes is None or (weights is None and len(codes) <= _MOST_CODES):
        return codes
    rng = np.random.default_rng(seed)
    if weights is None:
        return codes[rng.choice(len(codes), _MOST_CODES, replace=False)]
    return codes[draw_weighted(weights, _MOST_CODES, rng)]


def make_condition(
    encoder: TableEncoder, conditions: dict[Any, Any]
) -> Callable[[list[NDArray]], NDArray]:
    """Return a function from columns of samples to whether each row meets the conditions."""
    labels = encoder.layout.labels
    for label, value in conditions.items():
        if label not in labels:
            raise ValueError(f"conditions has {label!r}, which is no column of the rows.")
        place = labels.index(label)
        if place in encoder.categories:
            known = encoder.categories[place]
            if value not in known:
                raise ValueError(
                    f"conditions has the value {value!r} of {label!r}, but its values are "
                    f"{', '.join(map(repr, known[:10]))}."
                )
        elif not encoder.columns.is_integer[encoder.numbers.index(place)]:
            raise ValueError(
                f"conditions has {label!r}, whose numbers are not whole: no two "
                "samples are equal. Give the column to fit as y."
            )
    places = [(labels.index(label), value) for label, value in conditions.items()]

    def accepts(table: list[NDArray]) -> NDArray:
        return np.logical_and.reduce([_equals(table[place], value) for place, value in places])

    return accepts


def _equals(column, value):
    if value is None:
        return np.array([v is None or v != v for v in column.tolist()])
    return np.array(column == value, dtype=bool)
