"""Checks for estimators of metric learning, beside those of scikit-learn.

scikit-learn's `check_estimator` calls `fit(X, y)` and what is known of transformers and
classifiers. The checks here see the rest: supervision by pairs, queries and partly missing
labels, seeds, pickles, interrupted fits, leftover references to the training data, and whether
an error names the problem and the parameter.

A check runs if the estimator has what it is about, as told by signatures, methods and tags:

==========================================  =====================================================
the estimator has                           so it is checked for
==========================================  =====================================================
any                                         seeds, copies, data, interruption, bad rows, pipelines
tag ``target_tags.required``                missing, short and one-class y
`pairs` in the signature of `fit`           index pairs and their labels
`n_constraints` among the parameters        pairs drawn by `make_pairs` as good as labels
`qid` in the signature of `fit`             queries; y is then relevance, not a class
`get_metric`, `pair_distance`, ...          distances that agree with one another
`transform_database`                        distances of queries to database rows
``transformer_tags.preserves_dtype``        output of those dtypes
`sample`                                    seeded samples
tags ``input_tags``: not `two_d_array`,     pairs of rows as samples: vectors and indices, their
but `three_d_array`                         labels, folds of pairs, thresholds; none about rows
==========================================  =====================================================

What -1 in y means is said by the class attribute ``_accepts_unlabelled``: True, a row without a
label; False, an error that names an estimator which takes such rows; absent, a class as any
other.

The checks fit often, on 40 rows of 5 features: give them an instance with quick settings if the
estimator is slow. It is always cloned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _checks_fit as fit
from . import _checks_input as given
from . import _checks_output as output
from . import _checks_pairs as pairs
from ._checks_common import takes_pair_samples

__all__ = [
    "all_estimators",
    "check_skdml_estimator",
    "missing_estimators",
    "parametrize_with_skdml_checks",
    "skdml_checks",
]

# Their functions `check_...` are the checks.
_MODULES = (fit, given, output)
# For estimators whose samples are pairs.
_PAIR_MODULES = (fit, pairs)


def all_estimators() -> list[tuple[str, type]]:
    """List the public estimators of this package that can be imported.

    Returns
    -------
    estimators : list of (name, class)
        Without those of extras that are not installed: see `missing_estimators`.

    Examples
    --------
    >>> from skdml.utils.estimator_checks import all_estimators
    >>> dict(all_estimators())["GMMLTransformer"]
    <class 'skdml.linear._gmml.GMMLTransformer'>
    """
    return [(name, found) for name, found in _public_classes() if hasattr(found, "fit")]


def missing_estimators() -> list[tuple[str, str]]:
    """List the public estimators of this package whose extra is not installed.

    Returns
    -------
    estimators : list of (name, reason)
        The reason is the message of the ImportError.

    Examples
    --------
    >>> from skdml.utils.estimator_checks import missing_estimators
    >>> for name, reason in missing_estimators():
    ...     print(f"{name} is not checked: {reason}")
    """
    return [(name, str(found)) for name, found in _public_classes() if isinstance(found, Exception)]


def _public_classes() -> Iterator[tuple[str, Any]]:
    """Yield the name of each public class with the class, or with its ImportError."""
    import skdml

    for name in skdml.__all__:
        if name[0].isupper():  # the others are modules
            try:
                yield name, getattr(skdml, name)
            except ImportError as error:
                yield name, error


def skdml_checks(estimator: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the checks that concern an estimator.

    Parameters
    ----------
    estimator : estimator instance
        What to check.

    Yields
    ------
    name : str
        The name of the check.
    check : callable
        ``check(estimator)`` raises where the estimator is wrong.

    Examples
    --------
    >>> from skdml import GMMLTransformer
    >>> from skdml.utils.estimator_checks import skdml_checks
    >>> checks = dict(skdml_checks(GMMLTransformer()))
    >>> checks["check_one_class"](GMMLTransformer())
    >>> "check_bad_pairs" in checks, "check_bad_qid" in checks
    (True, False)
    """
    for module in _PAIR_MODULES if takes_pair_samples(estimator) else _MODULES:
        for name, check in vars(module).items():
            own = name.startswith("check_") and check.__module__ == module.__name__
            applies = getattr(check, "applies", None)  # by the decorator `only_for`
            if own and (applies is None or applies(estimator)):
                yield name, check


def check_skdml_estimator(estimator: Any) -> None:
    """Run every check that concerns an estimator.

    Parameters
    ----------
    estimator : estimator instance
        What to check; it is cloned, not fitted.

    Raises
    ------
    AssertionError
        Names the estimator and all checks that failed, each with its reason.

    Examples
    --------
    >>> from skdml import GMMLTransformer
    >>> from skdml.utils.estimator_checks import check_skdml_estimator
    >>> check_skdml_estimator(GMMLTransformer())
    """
    failures = []
    for name, check in skdml_checks(estimator):
        try:
            check(estimator)
        except Exception as error:
            failures.append((name, error))
    if failures:
        reasons = [f"{name}: {type(error).__name__}: {error}" for name, error in failures]
        raise AssertionError(
            f"{estimator!r} fails {len(failures)} checks.\n" + "\n".join(reasons)
        ) from failures[0][1]


def parametrize_with_skdml_checks(estimators: Iterable[Any]) -> Any:
    """Decorate a pytest function to run once per estimator and check.

    Parameters
    ----------
    estimators : iterable of estimator instances
        What to check.

    Returns
    -------
    decorator : pytest.mark.parametrize
        For a function with the arguments `estimator` and `check`.

    Examples
    --------
    >>> from skdml import GMMLTransformer
    >>> from skdml.utils.estimator_checks import parametrize_with_skdml_checks
    >>> @parametrize_with_skdml_checks([GMMLTransformer()])
    ... def test_estimator(estimator, check):
    ...     check(estimator)
    """
    import pytest

    cases = [
        pytest.param(estimator, check, id=f"{type(estimator).__name__}-{name}")
        for estimator in estimators
        for name, check in skdml_checks(estimator)
    ]
    return pytest.mark.parametrize(("estimator", "check"), cases)
