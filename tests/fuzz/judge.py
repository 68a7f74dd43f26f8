"""What is a defect: one case is run, and all that goes wrong is written down."""

import dataclasses
import re
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError

PACKAGE = "skdml"
# Errors of libraries, which are ValueErrors by accident.
FOREIGN_ERRORS = (np.linalg.LinAlgError, UnicodeError)
# Messages from inside numpy, scipy and torch, which say nothing of what the user gave.
FOREIGN_MESSAGES = re.compile(
    "did not converge|must not contain infs or NaNs|could not be broadcast|out of bounds|"
    "[Ss]ingular matrix|leading minor|matmul:|shapes .* not aligned|truth value of an array|"
    "setting an array element|inhomogeneous|zero-size array|object has no attribute|"
    "unsupported operand|not supported between|ufunc|object is not (iterable|subscriptable)|"
    "has no len|argument must be .* not|cannot be interpreted as an integer|unhashable|"
    "mat1 and mat2|expected scalar type|tensor|unexpected keyword argument|"
    "missing \\d+ required|could not convert string|object of type|not callable"
)
FOREIGN_WARNINGS = (
    RuntimeWarning,
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    sparse.SparseEfficiencyWarning,
    getattr(np, "exceptions", np).ComplexWarning,
)
FOREIGN_FOLDERS = re.compile(r"[/\\](numpy|scipy|torch|ot|pandas|polars|skorch)[/\\]")
SECONDS = 60.0


class Step(NamedTuple):
    """A call of a function, or of a method of the estimator; nothing follows a `fit` that fails."""

    name: str
    call: Callable[[Any, dict[str, Any]], Any]
    may_have_nan: bool = False


@dataclasses.dataclass
class Case:
    """A call of a function, or of the methods of an estimator.

    Attributes
    ----------
    make : callable or None
        Returns a new estimator from `parameters`.
    arguments : dict
        What is given to `steps`, by name.
    kinds : dict
        The kind of each argument; see `tests.fuzz.inputs`.
    parameters : dict
        Those that were set.
    names : tuple of str
        What a message may name: all arguments and parameters.
    settable : tuple of str
        The parameters that may be changed.
    steps : list of Step
        The calls. Of an estimator, the first is `fit`.
    errors : tuple of exception types
        Right for this input.
    """

    arguments: dict[str, Any]
    kinds: dict[str, str]
    parameters: dict[str, Any]
    names: tuple[str, ...]
    settable: tuple[str, ...]
    steps: list[Step]
    make: Callable[..., Any] | None = None
    errors: tuple[type[BaseException], ...] = (ValueError, TypeError)
    changes: list[str] = dataclasses.field(default_factory=list)


class Defect(NamedTuple):
    """One thing that went wrong."""

    kind: str
    where: str
    what: str


@dataclasses.dataclass
class Verdict:
    """How a case went."""

    accepted: bool = True
    warned: bool = False
    seconds: float = 0.0
    defects: list[Defect] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)


def judge(case: Case, seconds: float = SECONDS) -> Verdict:
    """Run a case, and return how it went."""
    verdict = Verdict()
    before = fingerprint([case.arguments, case.parameters])
    start = time.perf_counter()
    subject = None
    if case.make is not None:
        subject = _call(case, Step("init", lambda *_: case.make(**case.parameters)), None, verdict)
    for step in case.steps if verdict.accepted else []:
        before_fit = dict(vars(subject)) if step.name == "fit" else {}
        _call(case, step, subject, verdict)
        if step.name == "fit" and not verdict.accepted:
            _look_at_rest(subject, before_fit, verdict)
            break
        if step.name == "fit":
            _look_for_nan(step, fitted(subject), verdict)
    verdict.seconds = time.perf_counter() - start
    if verdict.seconds > seconds:
        verdict.defects.append(Defect("slow", case.steps[0].name, f"more than {seconds:.0f} s"))
    if fingerprint([case.arguments, case.parameters]) != before:
        verdict.defects.append(Defect("input changed", case.steps[0].name, _changed(case, before)))
    return verdict


def _call(case, step, subject, verdict):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = step.call(subject, case.arguments)
        except Exception as error:
            verdict.accepted = False
            verdict.errors.append("".join(traceback.format_exception(error)))
            _look_at_error(case, step, error, verdict)
            result = None
    for warning in seen:
        _look_at_warning(step, warning, verdict)
    if seen:
        verdict.warned = True
    if not step.may_have_nan:
        _look_for_nan(step, result, verdict)
    return result


def _look_at_error(case, step, error, verdict):
    message = str(error)
    where = f"{step.name}, {_place(error)}"
    what = f"{type(error).__name__}: {message}"
    if isinstance(error, MemoryError) and "GiB" in message:
        return  # what was asked for is too large, and the message says how large it is
    if not isinstance(error, case.errors) or isinstance(error, FOREIGN_ERRORS):
        verdict.defects.append(Defect("wrong exception", where, what))
    elif not isinstance(error, NotFittedError) and not is_clear(message, case.names):
        verdict.defects.append(Defect("unclear message", where, what))


def is_clear(message: str, names: tuple[str, ...]) -> bool:
    """Tell whether a message names an argument and is not that of another library."""
    named = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in names]
    if "a" in names:  # which is an article, too
        named[names.index("a")] = r"(^|\W)a(=|:| must| has)"
    first = message.split("\n")[0]
    if len(message.split()) < 4 or not any(re.search(pattern, message) for pattern in named):
        return False
    # It may be quoted behind what names the argument.
    found = FOREIGN_MESSAGES.search(first)
    return not found or any(re.search(pattern, first[: found.start()]) for pattern in named)


def _place(error):
    """Return the innermost function of the package that was left by an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if PACKAGE in Path(f.filename).parts or "tests" in f.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"


def _look_at_warning(step, warning, verdict):
    path = Path(warning.filename)
    foreign = FOREIGN_FOLDERS.search(warning.filename)
    if issubclass(warning.category, FOREIGN_WARNINGS) or foreign:
        where = f"{step.name}, {path.name}:{warning.lineno}"
        what = f"{warning.category.__name__}: {warning.message}"
        verdict.defects.append(Defect("leaked warning", where, what))


def _look_for_nan(step, result, verdict):
    if not verdict.warned and not all_finite(result):
        verdict.defects.append(Defect("NaN without warning", step.name, _summary(result)))


def _look_at_rest(subject, before, verdict):
    added = [name for name in vars(subject) if name not in before]
    if added:
        verdict.defects.append(Defect("left after an error", "fit", ", ".join(sorted(added))))


def fitted(estimator: Any) -> dict[str, Any]:
    """Return the fitted attributes, without those that may be NaN or infinite."""
    left_out = {"traffic_", "timing_"}
    if getattr(estimator, "gamma", None) == np.inf:  # without slack, any violation
        left_out |= {"duality_gap_", "gamma_"}
    return {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and not name.startswith("_") and name not in left_out
    }


def all_finite(value: Any) -> bool:
    """Tell whether the numbers in a result are finite, as far as it has numbers."""
    if isinstance(value, Mapping):
        return all(map(all_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(all_finite, value))
    if sparse.issparse(value):
        return all_finite(value.data)
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, (float, complex, np.ndarray, np.generic)):
        value = np.asarray(value)
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    return True


def fingerprint(value: Any) -> Any:
    """Return what changes with a value, and can be compared."""
    if isinstance(value, Mapping):
        return {repr(key): fingerprint(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(fingerprint, value)]
    if isinstance(value, np.ma.MaskedArray):
        return [fingerprint(value.data), fingerprint(np.ma.getmaskarray(value))]
    if isinstance(value, np.ndarray):
        # A long double has unused bytes.
        exact = value.dtype.kind != "O" and value.dtype != np.longdouble
        data = value.tobytes() if exact else repr(value.tolist())
        return [value.dtype.str, value.shape, data]
    if sparse.issparse(value):
        names = ("data", "indices", "indptr", "row", "col", "offsets", "rows")
        arrays = [getattr(value, name, None) for name in names]
        own = value.items() if value.format == "dok" else ()
        return [value.format, value.shape, fingerprint(arrays), repr(list(own))]
    if hasattr(value, "detach"):
        return fingerprint(value.detach().numpy())
    if hasattr(value, "dask"):
        return fingerprint(value.compute())
    if hasattr(value, "columns"):
        own = [repr(list(value.columns)), repr(list(value.dtypes))]
        return [*own, repr(value.to_numpy().tolist()), repr(getattr(value, "index", None))]
    if hasattr(value, "to_numpy"):
        return [repr(value.dtype), repr(value.to_numpy().tolist())]
    return repr(value)


def _changed(case, before):
    after = fingerprint([case.arguments, case.parameters])
    names = [
        name
        for old, new in zip(before[1:], after[1:], strict=True)
        for name in old
        if old[name] != new[name]
    ]
    return ", ".join(names)


def _summary(value):
    if isinstance(value, Mapping):
        return ", ".join(name for name, entry in value.items() if not all_finite(entry))
    return re.sub(r"\s+", " ", repr(value))[:80]
