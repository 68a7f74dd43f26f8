"""AsymmetricMetricClassifier: nearest neighbours with a map for queries, one for the database."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..utils import validation as checks
from ..utils._bases import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import computed, gather_rows, lazily
from ..utils._sklearn import EstimatorMixin, Interval, StrOptions, validate_rows
from ..utils._supervision import check_weights
from ..utils._typing import MatrixLike, RandomStateLike, Request
from ._asymmetric_solver import (
    Problem,
    check_costs,
    check_feasible,
    find_voters,
    hold_out,
    train,
)
from ._large_database import draw_rows, stays_on_workers
from ._maps import check_modules, find_starts

if TYPE_CHECKING:
    from torch.nn import Module

# Attributes of one kind of fit, which a later fit of the other kind takes away; of both sides.
_OF_A_KIND = ("components_", "mean_", "module_")
# Learning rates where none is given: relative to the size of the maps, and of Adam for networks.
_LR, _MODULE_LR = 0.01, 0.002


class AsymmetricMetricClassifier(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClassifierMixin,
    EstimatorMixin,
    BaseEstimator,
):
    r"""Nearest neighbours where queries and database rows have maps of their own.

    What is asked and what is stored are often not alike: a blurred photograph against clean ones,
    half of the measurements against all of them. Here the squared distance of a query x to a
    database row z is

    .. math:: D(x, z) = \|U x - V z\|^2

    with two maps that are learned together. For every training query, the nearest set of k rows
    that its class wins must be nearer, by a margin, than any set that another class wins. Read
    more in the :ref:`user guide <asymmetric>`.

    Parameters
    ----------
    n_neighbors : int, default=5
        k, the number of neighbours that vote, in training and in `predict`. Equal rows of a class
        are one row: fewer vote where every class has fewer distinct rows.
    n_components : int, default=None
        Rows of U and V, the columns of what `transform` returns; None takes as many as `init`
        has.
    C : float, default=1.0
        What the losses of all queries count beside the norm of the maps: the smaller, the more
        regularisation.
    cost_matrix : array-like of shape (n_classes, n_classes), default=None
        Delta, the cost of answering the class of the column where that of the row is right, in
        the order of `classes_`. 0 on the diagonal, positive elsewhere; None is 1 elsewhere.
    init : {"pca", "identity"} or array-like, default="pca"
        Where both maps start: the principal axes of the database rows, or their first features;
        or an array of shape (n_components, n_features) for both, or of shape
        (2, n_components, n_features) for U and V. With a name, there is one map for both sides in
        the first half of the iterations. With a name and `X_query`, a second training starts
        from U as the regression of queries on database rows, and is kept if it is clearly better.
    symmetric : bool, default=False
        Whether U = V: one metric for both sides.
    query_module, database_module : torch.nn.Module, default=None
        Networks in the place of U and V. Copies of them are trained, from their weights on. They
        get rows as float32 and return coordinates. With `symmetric`, `query_module` alone is for
        both sides. `n_components` and `init` are not used then.
    n_candidates : int, default=64
        How many database rows each training query is compared with: half of them the nearest of
        its class, the others the nearest of other classes and some at random. They are searched
        anew in every iteration. Bounds the memory.
    max_iter : int, default=15
        Iterations at most: each is two passes over the training queries, or more where they are
        few, and a search among all database rows.
    lr : float, default=None
        The learning rate of Adam at the beginning, which falls to zero along a cosine, and is
        halved after an iteration that does not lower the objective. That of U and V is in units
        of the root mean square of their entries at the start. None is 0.01 for them and 0.002
        for modules.
    tol : float, default=1e-4
        Stop when the objective has not fallen by this share of it in 5 iterations.
    validation_fraction : float or None, default=0.2
        The share of the training queries of each class that are not trained on. Of all iterations
        the maps are kept whose votes for these queries are best, and training stops after 5
        iterations without better ones. None trains on all queries and keeps the last maps.
    n_jobs : int, default=None
        Workers that search neighbours, as in joblib.
    random_state : int, RandomState instance or None, default=None
        Seeds the order of the queries and the draw of candidates.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    query_components_ : ndarray of shape (n_components, n_features)
        U. Not there with modules.
    database_components_ : ndarray of shape (n_components, n_features)
        V. Not there with modules.
    query_mean_ : ndarray of shape (n_features,)
        Subtracted from queries before U: the mean of the training queries, or of the database
        rows if `symmetric`. Not there with modules.
    database_mean_ : ndarray of shape (n_features,)
        Subtracted from database rows before V, their mean. Not there with modules.
    query_module_, database_module_ : torch.nn.Module
        The trained modules, where modules were given.
    history_ : dict of str to list
        At the start and after each iteration: "objective", exact, of the queries that are trained
        on; "validation", the mean cost of the votes for held-out queries (their share of wrong
        votes, without `cost_matrix`), or for all queries if none are held out; "seconds" since
        the start of training. The objective never rises, as iterations that do not lower it are
        rejected; with modules this holds after the first half of `max_iter`, as networks with
        random weights start with all points in nearly one place.
    n_infeasible_ : int
        Queries that are skipped: their class is too small to win among k neighbours.
    n_iter_ : int
        Iterations.
    classes_ : ndarray of shape (n_classes,)
        The classes.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    GMMLTransformer : One linear metric, in closed form.
    NeighborhoodGerrymandering : One linear metric by the same loss, as a transformer.
    sklearn.neighbors.NeighborhoodComponentsAnalysis : One linear map for both sides.

    References
    ----------
    .. [1] "Running notes on asymmetric similarity learning", whose problem this is, with
       corrections.
    .. [2] S. Trivedi, D. McAllester, G. Shakhnarovich. "Discriminative metric learning by
       neighborhood gerrymandering", NIPS 2014.

    Examples
    --------
    Queries that have lost one half of their pixels, against whole digits:

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from skdml import AsymmetricMetricClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> halves = X.copy()
    >>> halves[:, 32:] = 0
    >>> model = AsymmetricMetricClassifier(n_components=16, max_iter=10, random_state=0)
    >>> model = model.fit(X[::2], y[::2], X_query=halves[::2], y_query=y[::2])
    >>> plain = KNeighborsClassifier().fit(X[::2], y[::2])
    >>> model.score(halves[1::2], y[1::2]) > plain.score(halves[1::2], y[1::2])
    True
    """

    _parameter_constraints: dict = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "C": [Interval(Real, 0, None, closed="neither")],
        "cost_matrix": ["array-like", None],
        "init": [StrOptions({"pca", "identity"}), "array-like"],
        "symmetric": ["boolean"],
        "query_module": "no_validation",  # without torch, its class is not known
        "database_module": "no_validation",
        "n_candidates": [Interval(Integral, 2, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    query_components_: NDArray
    database_components_: NDArray
    query_mean_: NDArray
    database_mean_: NDArray
    _neighbors: KNeighborsClassifier
    _votes: NDArray | None
    query_module_: Module
    database_module_: Module
    history_: dict[str, list[float]]
    n_infeasible_: int
    n_iter_: int
    classes_: NDArray

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_fit_request(
            self, *, X_query: Request = None, y_query: Request = None, sample_weight: Request = None
        ) -> Self: ...
        def set_score_request(self, *, sample_weight: Request = None) -> Self: ...

    def __init__(
        self,
        n_neighbors: int = 5,
        n_components: int | None = None,
        C: float = 1.0,
        cost_matrix: ArrayLike | None = None,
        init: str | ArrayLike = "pca",
        symmetric: bool = False,
        query_module: Module | None = None,
        database_module: Module | None = None,
        n_candidates: int = 64,
        max_iter: int = 15,
        lr: float | None = None,
        tol: float = 1e-4,
        validation_fraction: float | None = 0.2,
        n_jobs: int | None = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.C = C
        self.cost_matrix = cost_matrix
        self.init = init
        self.symmetric = symmetric
        self.query_module = query_module
        self.database_module = database_module
        self.n_candidates = n_candidates
        self.max_iter = max_iter
        self.lr = lr
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        *,
        X_query: MatrixLike | None = None,
        y_query: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the two maps.

        Parameters
        ----------
        X : {array-like, sparse matrix, dask array} of shape (n_samples, n_features)
            The database rows. Sparse rows are made dense. Of a dask array with more than 8 million
            cells, the maps are learned from a sample of so many; the other rows stay where they
            are, and only their coordinates are gathered.
        y : array-like of shape (n_samples,)
            Their classes, numbers or strings.
        X_query : array-like of shape (n_queries, n_features), default=None
            Training queries, where they come from another distribution than the database. Without
            them, each database row is a query to the others.
        y_query : array-like of shape (n_queries,), default=None
            Their classes, among those of y.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows of X; a weight of 0 is the same as no row. A row's vote in
            `predict` counts so much, and, where it is a training query, its loss; in training,
            all neighbours have one vote.

        Returns
        -------
        self : AsymmetricMetricClassifier
            The fitted estimator.
        """
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        if stays_on_workers(X):
            return self._fit_large(X, y, X_query, y_query, sample_weight, rng)
        return self._fit_rows(X, y, X_query, y_query, sample_weight, rng)

    def _fit_large(self, X, y, X_query, y_query, sample_weight, rng):
        """Learn from some rows of a dask array, and store the coordinates of all."""
        checks.check_given(y, type(self).__name__, " Pass the class of each row of X.")
        y, weights = checks.label_vector(computed(y), len(X)), None
        checks.encode_classes(y, len(X))
        if sample_weight is not None:
            weights = check_weights(computed(sample_weight), "sample_weight", len(X))
        rows = draw_rows(X.shape[1], y, weights, rng)
        some = gather_rows(X, rows), y[rows]
        queries = computed(X_query), computed(y_query)
        self._fit_rows(*some, *queries, None if weights is None else weights[rows], rng)
        counted = np.arange(len(y)) if weights is None else np.flatnonzero(weights)
        coordinates = computed(self.transform_database(X))[counted]
        codes = np.searchsorted(self.classes_, y[counted])
        given = coordinates, codes, None if weights is None else weights[counted]
        rows, weights, k = find_voters(*given, self.n_neighbors, self.n_candidates)
        self._neighbors = KNeighborsClassifier(k, n_jobs=self.n_jobs)
        self._neighbors.fit(coordinates[rows], codes[rows])
        self._votes = None
        if weights is not None:
            self._votes = weights[:, None] * np.eye(len(self.classes_))[codes[rows]]
        return self

    def _fit_rows(self, X, y, X_query, y_query, sample_weight, rng):
        """Learn from rows that are here, and store these."""
        problem = self._check_problem(X, y, X_query, y_query, sample_weight, rng)
        with_modules = check_modules(self.query_module, self.database_module, self.symmetric)
        for name in _OF_A_KIND:
            self.__dict__.pop(f"query_{name}", None)
            self.__dict__.pop(f"database_{name}", None)
        named = not with_modules and isinstance(self.init, str)
        n_trainings = 2 if named and not (self.symmetric or problem.same_rows) else 1
        with FitProgress(self, total=n_trainings * self.max_iter, X=X, y=y) as progress:
            fit_maps = self._fit_modules if with_modules else self._fit_linear
            training, attributes = fit_maps(problem, rng, progress)
            check_feasible(training.n_infeasible, problem)
            self.__dict__.update(attributes)
            self.history_ = training.history
            self.n_iter_ = len(training.history["objective"]) - 1
            self.n_infeasible_ = training.n_infeasible
        return self

    def _check_problem(self, X, y, X_query, y_query, sample_weight, rng):
        """Validate the input of `fit`."""
        name, hint = type(self).__name__, " Pass the class of each row of X."
        X = checks.as_dense(validate_rows(self, X, ensure_min_samples=2))
        checks.check_scale(X)
        checks.check_varies(X)
        checks.check_given(y, name, hint)
        self.classes_, codes = checks.encode_classes(y, len(X))
        rows, weights, k = find_voters(X, codes, sample_weight, self.n_neighbors, self.n_candidates)
        if len(rows) < len(X) or weights is not None:
            X = X[rows]
            checks.check_varies(X)
            used, codes = np.unique(codes[rows], return_inverse=True)
            self.classes_ = self.classes_[used]
        self._votes = None
        if weights is not None:
            self._votes = weights[:, None] * np.eye(len(self.classes_))[codes]
        if X_query is None:
            if y_query is not None:
                raise ValueError("y_query was given without X_query: pass both.")
            queries, query_codes = X, codes
        else:
            queries = self._check_rows(X_query, "X_query")
            checks.check_scale(queries, "X_query")  # squares of tiny ones would be lost
            checks.check_given(y_query, name, hint.replace("X", "X_query"), "y_query")
            query_codes = checks.encode_known(
                y_query, self.classes_, len(queries), "y_query", "X_query"
            )
        rows = queries, query_codes, X, codes
        params = "C", "n_candidates", "max_iter", "tol", "n_jobs"
        return Problem(
            *rows,
            same_rows=X_query is None,
            held_out=hold_out(query_codes, self.validation_fraction, rng),
            costs=check_costs(self.cost_matrix, len(self.classes_)),
            n_neighbors=k,
            weights=weights if X_query is None else None,
            **{name: getattr(self, name) for name in params},
        )

    def _check_rows(self, X, name="X"):
        """Validate rows of any other method than `fit`, or any other rows than X."""
        X = validate_rows(self, X, name, reset=False)
        checks.check_scale(X, name, may_be_small=True)
        return checks.as_dense(X, name)

    def _fit_linear(self, problem, rng, progress):
        """Learn U and V, of centred rows in a unit that C and lr can rely on."""
        database_mean = problem.database.mean(axis=0, dtype=np.float64)
        query_mean = database_mean
        if not self.symmetric:
            query_mean = problem.queries.mean(axis=0, dtype=np.float64)
        X = problem.database - database_mean
        unit = np.sqrt(np.mean(np.sum(X**2, axis=1)))
        queries = (problem.queries - query_mean) / unit
        scaled = replace(problem, queries=queries, database=X / unit)

        def attributes(maps):
            V = maps.V / unit
            return {
                "query_mean_": query_mean,
                "database_mean_": database_mean,
                "query_components_": maps.U / unit,
                "database_components_": V,
                "_neighbors": self._index(X @ V.T, problem),
            }

        training: Any = None
        for maps in find_starts(self.init, self.n_components, self.symmetric, scaled, unit):
            lr = _LR if self.lr is None else self.lr
            lr *= np.sqrt((np.mean(maps.U**2) + np.mean(maps.V**2)) / 2)
            n_tied = self.max_iter // 2 if maps.symmetric and not self.symmetric else None
            with np.errstate(over="ignore", invalid="ignore"):  # steps too long are an error there
                found = train(maps, scaled, lr, rng, progress, attributes, n_tied=n_tied)
            # The first is the simpler model: another one must be better by a standard error.
            if training is None or found.vote_cost < training.vote_cost - training.vote_error:
                training = found
        return training, attributes(training.maps)

    def _fit_modules(self, problem, rng, progress):
        """Train copies of the modules."""
        from ..utils._torch import seeded_torch  # these need torch
        from ._module_maps import ModuleMaps

        def attributes(maps):
            return {
                "query_module_": maps.query_module,
                "database_module_": maps.database_module,
                "_neighbors": self._index(maps.embed_database(problem.database), problem),
            }

        maps = ModuleMaps(self.query_module, self.database_module)
        maps.check_outputs(problem.queries[:2], problem.database[:2])
        with seeded_torch(int(rng.integers(2**31))):
            lr = _MODULE_LR if self.lr is None else self.lr
            n_free = self.max_iter // 2
            training = train(maps, problem, lr, rng, progress, attributes, n_free=n_free)
        return training, attributes(training.maps)

    def _index(self, coordinates, problem):
        neighbors = KNeighborsClassifier(problem.n_neighbors, n_jobs=self.n_jobs)
        return neighbors.fit(coordinates, problem.labels)

    @property
    def _n_features_out(self):
        return self._neighbors.n_features_in_

    @lazily
    def transform(self, X: MatrixLike) -> NDArray:
        """Return the coordinates of queries.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            The queries.

        Returns
        -------
        X_new : ndarray of shape (n_queries, n_components)
            Their Euclidean distances to rows of `transform_database` are the learned ones.
        """
        return self._embed(X, "query", keep_dtype=True)

    @lazily
    def transform_database(self, X: MatrixLike) -> NDArray:
        """Return the coordinates of database rows, for any Euclidean index.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows, of training or new.

        Returns
        -------
        X_new : ndarray of shape (n_rows, n_components)
            Their coordinates.
        """
        return self._embed(X, "database", keep_dtype=True)

    def _embed(self, X, side, name="X", keep_dtype=False):
        """Return the coordinates of rows of a side, "query" or "database"."""
        check_is_fitted(self)
        X = self._check_rows(X, name)
        module = getattr(self, f"{side}_module_", None)
        if module is None:
            Z = (X - getattr(self, f"{side}_mean_")) @ getattr(self, f"{side}_components_").T
        else:
            from ._module_maps import embed  # needs torch

            Z = embed(module, X, f"{side}_module")
        return Z.astype(X.dtype, copy=False) if keep_dtype else Z

    def pair_distance(self, queries: MatrixLike, database: MatrixLike) -> NDArray:
        """Return the learned distance of each query to the database row beside it.

        Parameters
        ----------
        queries : array-like of shape (n_pairs, n_features)
            One query for each pair.
        database : array-like of shape (n_pairs, n_features)
            One database row for each pair.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Not squared. The two sides are not interchangeable, and the distance of a row to
            itself is not 0.
        """
        queries = self._embed(queries, "query", "queries")
        database = self._embed(database, "database", "database")
        if len(queries) != len(database):
            raise ValueError(
                f"queries has {len(queries)} rows and database has {len(database)}: each query is "
                "compared with the database row beside it."
            )
        return np.linalg.norm(queries - database, axis=1)

    @lazily
    def predict(self, X: MatrixLike) -> NDArray:
        """Return the class that most of the nearest database rows of each query have.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            The queries.

        Returns
        -------
        y : ndarray of shape (n_queries,)
            Their classes; of classes with as many votes, the first in `classes_`.
        """
        winner = self.predict_proba(X).argmax(axis=1)
        return self.classes_[winner]

    @lazily
    def predict_proba(self, X: MatrixLike) -> NDArray:
        """Return the share of each class among the nearest database rows of each query.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            The queries.

        Returns
        -------
        probabilities : ndarray of shape (n_queries, n_classes)
            In the order of `classes_`.
        """
        Z = self._embed(X, "query")
        if self._votes is None:
            return self._neighbors.predict_proba(Z)
        votes = self._votes[self._neighbors.kneighbors(Z, return_distance=False)].sum(axis=1)
        return votes / votes.sum(axis=1, keepdims=True)

    def score(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of queries whose class is predicted.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            The queries.
        y : array-like of shape (n_queries,)
            Their classes.
        sample_weight : array-like of shape (n_queries,), default=None
            Weights of queries.

        Returns
        -------
        accuracy : float
            Between 0 and 1.
        """
        predicted = self.predict(X)
        checks.check_given(y, type(self).__name__, " Pass the class of each row of X.")
        y = checks.check_row_labels(y, len(predicted))
        kinds = y.dtype.kind, predicted.dtype.kind
        if any((kinds[0] in same) != (kinds[1] in same) for same in ("biuf", "mM")):
            raise TypeError(
                f"y (dtype {y.dtype}) and the classes of fit (dtype {predicted.dtype}) must be of "
                "the same kind, numbers or strings."
            )
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))
