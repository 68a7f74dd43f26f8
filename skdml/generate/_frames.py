"""Columns of arrays and of pandas or polars frames as plain values, and back with their dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._optional import optional_import


@dataclass
class Layout:
    """What a table looks like from outside.

    Attributes
    ----------
    library : {"numpy", "pandas", "polars"}
        Where it comes from.
    labels : list
        Of the columns; numbers from 0 for arrays.
    dtypes : list of str
        Names of the dtypes.
    kinds : list of {"number", "date", "category"}
        How the columns are read.
    details : list of dict
        What a name does not say: levels and order of categories, unit and zone of times.
    """

    library: str
    labels: list
    dtypes: list[str]
    kinds: list[str]
    details: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What to call the table in errors."""
        return "array" if self.library == "numpy" else f"{self.library} frame"


def is_frame(X: Any) -> bool:
    """Tell whether rows are a pandas or polars frame."""
    return _library(X) in ("pandas", "polars") and hasattr(X, "columns")


def _library(X):
    return type(X).__module__.partition(".")[0]


def read_table(X: Any) -> tuple[Layout, list[NDArray]]:
    """Return the layout and the columns of an array of numbers or of a frame.

    Returns
    -------
    layout : Layout
        By which `write_table` makes such a table again.
    columns : list of ndarray of shape (n_samples,)
        Numbers and dates as float64 with NaN for missing cells; categories as objects with None.
    """
    if not is_frame(X):
        n_columns = X.shape[1]
        dtypes, kinds = [X.dtype.str] * n_columns, ["number"] * n_columns
        layout = Layout("numpy", list(range(n_columns)), dtypes, kinds, [{}] * n_columns)
        return layout, list(np.asarray(X, dtype=np.float64).T)
    library = _library(X)
    read = _read_pandas if library == "pandas" else _read_polars
    labels = list(X.columns)
    if len(set(labels)) < len(labels):
        raise ValueError("X must have columns with different names.")
    dtypes, kinds, details, columns = zip(*(read(X[label], label) for label in labels), strict=True)
    return Layout(library, labels, list(dtypes), list(kinds), list(details)), list(columns)


def write_table(layout: Layout, columns: list[NDArray]) -> Any:
    """Return columns as a table of a layout."""
    if layout.library == "numpy":
        return np.column_stack(columns).astype(layout.dtypes[0])
    package = optional_import(layout.library, "sample")
    write = _write_pandas if layout.library == "pandas" else _write_polars
    parts = zip(columns, layout.dtypes, layout.kinds, layout.details, strict=True)
    series = [write(package, *part) for part in parts]
    return package.DataFrame(dict(zip(layout.labels, series, strict=True)))


def _unknown(label, dtype):
    return TypeError(
        f"X has a column {label!r} of dtype {dtype}, of which no rows can be drawn: leave it out, "
        "or make it numbers, categories, booleans or dates."
    )


def _objects(values, is_missing):
    found = np.empty(len(values), dtype=object)
    found[:] = [None if gone else value for value, gone in zip(values, is_missing, strict=True)]
    return found


# pandas


def _read_pandas(series, label):
    types = optional_import("pandas", "fit").api.types
    dtype, name = series.dtype, str(series.dtype)
    if types.is_bool_dtype(dtype) and not isinstance(dtype, types.CategoricalDtype):
        return name, "category", {}, _objects(series.tolist(), series.isna())
    if types.is_complex_dtype(dtype):
        raise _unknown(label, name)
    if types.is_numeric_dtype(dtype):
        return name, "number", {}, series.to_numpy(dtype=np.float64, na_value=np.nan)
    if types.is_datetime64_any_dtype(dtype):
        zone = None if getattr(dtype, "tz", None) is None else str(dtype.tz)
        times = series.dt.tz_convert("UTC").dt.tz_localize(None) if zone else series
        times = times.to_numpy()
        unit = np.datetime_data(times.dtype)[0]
        numbers, step = _steps(times.astype(np.int64), np.isnat(times))
        return name, "date", {"unit": unit, "zone": zone, "step": step}, numbers
    if isinstance(dtype, types.CategoricalDtype):
        levels = {"levels": dtype.categories.tolist(), "ordered": bool(dtype.ordered)}
        return "category", "category", levels, _objects(series.tolist(), series.isna())
    if types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
        return name, "category", {}, _objects(series.tolist(), series.isna())
    raise _unknown(label, name)


def _write_pandas(pandas, values, dtype, kind, details):
    if "levels" in details:
        levels, ordered = details["levels"], details["ordered"]
        return pandas.Series(pandas.Categorical(values, categories=levels, ordered=ordered))
    if kind == "date":
        series = pandas.Series(_times(values, details["unit"], details["step"]))
        zone = details["zone"]
        return series.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else series
    if kind == "number" and dtype[0] in "IU":  # integers that know missing cells
        return pandas.Series(pandas.array(values, dtype="Float64")).astype(dtype)
    return pandas.Series(values).astype(dtype)


def _steps(ticks, is_missing):
    """Return times as numbers of the largest step between all of them, as of a day, and the step.

    Samples are whole numbers of steps, so that dates without hours come back as such.
    """
    known = ticks[~is_missing]
    step = max(1, int(np.gcd.reduce(known))) if len(known) else 1
    return np.where(is_missing, np.nan, (ticks // step).astype(np.float64)), step


def _times(values, unit, step):
    """Return numbers of steps as times, and NaN as no time."""
    whole = np.where(np.isnan(values), 0, np.round(values)).astype(np.int64) * step
    times = whole.astype(f"datetime64[{unit}]")
    times[np.isnan(values)] = np.datetime64("NaT")
    return times


# polars


def _read_polars(series, label):
    polars = optional_import("polars", "fit")
    dtype, name = series.dtype, str(series.dtype).partition("(")[0]
    if dtype.is_numeric():
        return name, "number", {}, series.cast(polars.Float64).fill_null(np.nan).to_numpy()
    if name in ("Date", "Datetime"):
        ticks = series.to_physical().cast(polars.Int64).fill_null(0).to_numpy()
        numbers, step = _steps(ticks, series.is_null().to_numpy())
        details = {"step": step}
        if name == "Datetime":
            details |= {"unit": dtype.time_unit, "zone": dtype.time_zone}
        return name, "date", details, numbers
    if name in ("Boolean", "String", "Categorical", "Enum"):
        details = {"levels": dtype.categories.to_list()} if name == "Enum" else {}
        return name, "category", details, _objects(series.to_list(), series.is_null().to_list())
    raise _unknown(label, dtype)


def _write_polars(polars, values, dtype, kind, details):
    if kind == "category":
        found = polars.Enum(details["levels"]) if dtype == "Enum" else getattr(polars, dtype)
        return polars.Series(list(values), dtype=found)
    series = polars.Series(values).fill_nan(None)
    if kind == "number":
        return series.cast(getattr(polars, dtype))
    whole = series.round().cast(polars.Int64) * details["step"]
    if dtype == "Date":
        return whole.cast(polars.Int32).cast(polars.Date)
    return whole.cast(polars.Datetime(details["unit"], details["zone"]))
