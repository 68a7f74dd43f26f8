"""WassersteinGenerator: a network that draws new rows, trained by optimal transport."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._actors import start_actors
from ..metrics import energy_distance
from ..utils._bases import BaseEstimator, DensityMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import find_client, limit_threads
from ..utils._sklearn import (
    ClientMixin,
    EstimatorMixin,
    Interval,
    StrOptions,
    validate_data,
    validate_params,
)
from ..utils._supervision import check_weights, draw_weighted
from ..utils._torch import has_finite_weights, seeded_torch, warn_not_finite
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_scale
from ._columns import learn_columns, mean_deviation
from ._critics import Critic, CriticSettings
from ._generator_networks import fix_weights, make_network, mlp_critic, mlp_generator, try_network
from ._generator_training import TrainingPlan, column_spread, train

# Samples whose spread is below the first share of that of the rows have collapsed; above or below
# the second factor, they are not like the rows.
_COLLAPSED, _MAX_SPREAD = 0.01, 3.0
_N_COLLAPSE_SAMPLES = 256
_BLOCK = 4096
# Up to so many rows, a batch may be larger than the data.
_FEW_ROWS = 1000
# Of each cost: the learning rate, and the rows of a critic in an update; chosen on held-out rows.
_LR = {"euclidean": 0.002, "squared": 0.004, "learned": 0.002}
_BATCH_SIZE = {"euclidean": 256, "squared": 64, "learned": 64}
# Of the squared cost, which is not debiased.
_POINTS_PER_ROW = 3
# Critics have a smaller rate: with equal rates they run ahead, and the generator learns slower.
_CRITIC_LR_FACTOR = 0.25


class WassersteinGenerator(ClientMixin, DensityMixin, EstimatorMixin, BaseEstimator):
    """A network that draws new rows like those it was fitted on.

    Generated points are compared with batches of real rows by optimal transport. The real rows are
    split among critics, which are trained independently, and send the generator the gradient of the
    transport cost by its points. Read more in the :ref:`user guide <generator>`.

    Parameters
    ----------
    latent_dim : int, default=32
        Columns of the random vectors that the generator turns into rows.
    n_critics : int, default=1
        Among how many critics the rows are split. More critics see more rows in an update, and can
        work in processes or on machines of their own.
    cost : {"auto", "euclidean", "squared", "learned"}, default="auto"
        The transport cost. "euclidean" is the distance of scaled rows, for tables. "squared" is
        its square, which cannot be debiased: its samples are typical rows, but too much alike.
        "learned" is the distance of features that each critic learns, such that real and
        generated rows are far apart, for images. "auto" is "learned" where `critic_module` is
        given, and "euclidean" otherwise.
    coupling : {"auto", "shared", "separate"}, default="auto"
        Whether points are compared with the rows of all critics together, or with those of each
        critic on its own. "auto" is "separate" where the Euclidean cost is debiased, as batches of
        rows and points must be of one size there, and "shared" otherwise.
    debias : bool or "auto", default="auto"
        Whether to subtract the transport costs of real rows to other real rows, and of points to
        other points, from those of rows to points, all in independent batches. Without, small
        batches make samples less varied than rows. "auto" is True, but for the squared cost: its
        debiased value sees little but the means, so that the spread of the samples runs away.
    n_critic_steps : int, default=1
        Steps of a critic's network for one of the generator; with a learned cost only.
    n_potential_steps : int, default=5
        Gradient steps on the shared potentials in an update, with the shared coupling only. Each
        takes one round of messages.
    module : class, callable or torch.nn.Module, default=None
        The generator: a subclass of ``torch.nn.Module`` or a function that returns a module. It
        gets `latent_dim` and `n_features`, as far as it has such parameters. The module maps
        tensors of shape (n, latent_dim) to (n, n_features). Of a module that exists already, a
        copy is trained. None is a network with three hidden layers.
    critic_module : class, callable or torch.nn.Module, default=None
        The network of a critic, made in the same way. It maps (n, n_features) to features of any
        shape. The slope of its linear and convolution layers is bounded by spectral norms.
    scaling : {"auto", "common", "columns"}, default="auto"
        "common" takes all values to [-1, 1] by one scale, for columns of one unit, such as pixels.
        "columns" gives each column mean 0 and variance 1. "auto" takes the first if no column is
        ten times as wide as the median column.
    max_iter : int, default=1500
        Updates of the generator.
    batch_size : int or "auto", default="auto"
        Rows of each critic in an update; a critic with fewer rows takes all of them. With `debias`
        they are two independent batches. "auto" is 256 with the Euclidean cost and 64 with
        others. Generated points are as many: only batches of one size are comparable. With the
        squared cost they are three times as many.
    lr : float or "auto", default="auto"
        The learning rate of the generator, which falls to zero along a cosine unless the cost is
        learned. "auto" is 0.004 with the squared cost and 0.002 with others. Critics have a
        quarter of it.
    n_jobs : int, default=None
        Processes for the critics; None is 1 unless in a :obj:`joblib.parallel_config` context.
        The result does not depend on it. Each process works on one thread.
    client : distributed.Client, default=None
        A dask cluster for the critics; None takes that of joblib's active dask backend, if there
        is one. It is not stored with the estimator.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, batches and latent vectors.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    generator_ : torch.nn.Module
        The generator. It returns scaled rows: use `sample`.
    critics_ : list of torch.nn.Module
        The critics' networks; empty unless the cost is learned.
    history_ : dict of list
        Per update: "wasserstein", the transport cost of its points and rows, debiased or not, of
        a squared cost the root; with the common scaling and a cost that is not learned in units of
        X. "seconds" since the start of training.
    potentials_ : ndarray of shape (n_points,) or (n_critics, n_points)
        The potentials of the points of the last update; with the shared coupling one for all
        critics.
    masses_ : ndarray of shape (n_points,)
        The masses of the cells of these points, 1 where a cell has its share of the rows.
    traffic_ : dict
        Bytes between the generator and one critic in an update: "update" for training,
        "checkpoint" for restarts. "all_reduce" is that of data-parallel training of both networks.
    n_iter_ : int
        Updates done.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where X has such names.

    See Also
    --------
    sklearn.mixture.GaussianMixture : A density as a sum of Gaussians, which can be sampled.
    sklearn.neighbors.KernelDensity : A density as a sum of kernels, one for each row.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import WassersteinGenerator
    >>> X, _ = load_iris(return_X_y=True)
    >>> model = WassersteinGenerator(max_iter=200, random_state=0).fit(X)
    >>> model.sample(3, random_state=0).shape
    (3, 4)
    >>> model.score(X) > -0.1
    True
    """

    _parameter_constraints: dict = {
        "latent_dim": [Interval(Integral, 1, None, closed="left")],
        "n_critics": [Interval(Integral, 1, None, closed="left")],
        "cost": [StrOptions({"auto", "euclidean", "squared", "learned"})],
        "coupling": [StrOptions({"auto", "shared", "separate"})],
        "debias": ["boolean", StrOptions({"auto"})],
        "n_critic_steps": [Interval(Integral, 1, None, closed="left")],
        "n_potential_steps": [Interval(Integral, 0, None, closed="left")],
        "module": [callable, None],
        "critic_module": [callable, None],
        "scaling": [StrOptions({"auto", "common", "columns"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 2, None, closed="left"), StrOptions({"auto"})],
        "lr": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "n_jobs": [Integral, None],
        "client": "no_validation",
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    generator_: torch.nn.Module
    critics_: list[torch.nn.Module]
    history_: dict[str, list]
    potentials_: NDArray
    masses_: NDArray
    traffic_: dict[str, float]
    n_iter_: int

    def __init__(
        self,
        latent_dim: int = 32,
        n_critics: int = 1,
        cost: str = "auto",
        coupling: str = "auto",
        debias: bool | str = "auto",
        n_critic_steps: int = 1,
        n_potential_steps: int = 5,
        module: Callable[..., Any] | None = None,
        critic_module: Callable[..., Any] | None = None,
        scaling: str = "auto",
        max_iter: int = 1500,
        batch_size: int | str = "auto",
        lr: float | str = "auto",
        n_jobs: int | None = None,
        client: Any = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.latent_dim = latent_dim
        self.n_critics = n_critics
        self.cost = cost
        self.coupling = coupling
        self.debias = debias
        self.n_critic_steps = n_critic_steps
        self.n_potential_steps = n_potential_steps
        self.module = module
        self.critic_module = critic_module
        self.scaling = scaling
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.lr = lr
        self.n_jobs = n_jobs
        self.client = client
        self.random_state = random_state
        self.verbose = verbose

    # Fit

    @fit_method
    def fit(self, X: MatrixLike, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train the generator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row is drawn, among those that samples should be like; a weight of 0 is
            the same as no row. Scales and bounds of columns are those of all rows that count.

        Returns
        -------
        self : WassersteinGenerator
            The fitted estimator.
        """
        given = X
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        X, weights = self._choose_rows(X, sample_weight)
        check_scale(X)
        seed = int(check_random_state(self.random_state).randint(2**31))
        self._dtype, self._seed = X.dtype, seed
        self._columns = learn_columns(X, self.scaling)
        order = np.random.default_rng(seed).permutation(len(X))
        rows = self._columns.encode(X)[order]
        plan = self._make_plan(rows, seed)
        settings = self._critic_settings(plan)
        shards = np.array_split(rows, self.n_critics)
        parts: list[Any] = [None] * len(shards)
        if weights is not None:
            parts = np.array_split(weights[order], self.n_critics)
            plan = dataclasses.replace(plan, shares=[float(part.sum()) for part in parts])
        given_to_each = [
            (number, shard, settings, part)
            for number, (shard, part) in enumerate(zip(shards, parts, strict=True))
        ]
        workers = {"n_jobs": self.n_jobs, "client": find_client(self.client)}
        critics = start_actors(Critic, given_to_each, name="critics", **workers)
        with (
            FitProgress(self, total=self.max_iter, X=given, y=y, description="update") as progress,
            limit_threads(1),
        ):
            generator = self._make_generator(settings, plan.seed)

            def report(value, network):
                return progress.step(lambda: {"generator_": network()}, distance=value)

            with critics:
                project = self._columns.project
                trained = train(generator, critics, plan, project, progress.begin, report)
            self.n_iter_ = len(trained.history["seconds"])
            if trained.error is not None:
                warn_not_finite(trained.error, self.n_iter_, "update", plan.lr, stacklevel=5)
            if not has_finite_weights(generator):
                raise ValueError(
                    f"the generator has weights that are not finite after {self.n_iter_} updates: "
                    f"try a smaller lr than {plan.lr}."
                )
            self.generator_ = generator
            self._set_attributes(trained, critics, settings, plan)
            if weights is not None:
                rng = np.random.default_rng(plan.seed)
                rows = rows[draw_weighted(weights[order], _N_COLLAPSE_SAMPLES, rng)]
            self._check_spread(rows, plan)
        return self

    def _choose_rows(self, X, sample_weight):
        """Return the rows that count, and their weights, None where these are the same."""
        if sample_weight is None:
            return X, None
        weights = check_weights(sample_weight, "sample_weight", len(X))
        X, weights = X[weights > 0], weights[weights > 0]
        if len(X) < 2:
            raise ValueError("sample_weight leaves one row that counts: two are needed.")
        return X, weights / weights.mean() if np.ptp(weights) else None

    def _make_plan(self, rows, seed):
        """Check parameters against each other, and return them with "auto" resolved."""
        n_rows = len(rows)
        cost = self.cost
        if cost == "auto":
            cost = "euclidean" if self.critic_module is None else "learned"
        debias = cost != "squared" if self.debias == "auto" else bool(self.debias)
        if debias and cost == "squared":
            raise ValueError(
                "debias=True with cost='squared' sees little but the means of the columns, so that "
                "the spread of the samples runs away: use cost='euclidean', or debias=False."
            )
        coupling = self.coupling
        if coupling == "auto":
            coupling = "separate" if debias and cost == "euclidean" else "shared"
        learned = cost == "learned"
        for name, default, is_used, other in (
            ("critic_module", None, learned, "cost='learned'"),
            ("n_critic_steps", 1, learned, "cost='learned'"),
            ("n_potential_steps", 5, coupling == "shared", "coupling='shared'"),
        ):
            if not is_used and getattr(self, name) != default:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with cost={self.cost!r} and "
                    f"coupling={self.coupling!r}: leave it at {default!r}, or give {other}."
                )
        n_least = 2 if debias else 1
        if self.n_critics * n_least > n_rows:
            raise ValueError(
                f"n_critics={self.n_critics} critics need {n_least} of the rows of X each, but X "
                f"has {n_rows}: give fewer critics."
            )
        batch_size = _BATCH_SIZE[cost] if self.batch_size == "auto" else int(self.batch_size)
        if batch_size > max(n_rows, _FEW_ROWS):
            raise ValueError(
                f"batch_size={batch_size} is more than the {n_rows} rows of X: give at most "
                f"{max(n_rows, _FEW_ROWS)}."
            )
        n_points = _POINTS_PER_ROW * batch_size if cost == "squared" else batch_size
        if debias:
            n_points = min(batch_size, n_rows // self.n_critics)
        is_shared = coupling == "shared" and self.n_critics > 1
        return TrainingPlan(
            learned=learned,
            power=2 if cost == "squared" else 1,
            debias=debias,
            spread=column_spread(rows),
            lr=_LR[cost] if self.lr == "auto" else float(self.lr),
            batch_size=batch_size,
            n_points=n_points,
            latent_dim=int(self.latent_dim),  # True is a number, too
            n_critic_steps=int(self.n_critic_steps),
            n_potential_steps=self.n_potential_steps if is_shared else None,
            max_iter=self.max_iter,
            seed=seed,
        )

    def _critic_settings(self, plan):
        make = None
        if plan.learned:
            maker = mlp_critic if self.critic_module is None else self.critic_module
            sizes = {"n_features": self.n_features_in_}
            make = functools.partial(make_network, maker, "critic_module", **sizes)
        lr = _CRITIC_LR_FACTOR * plan.lr
        return CriticSettings(make, plan.power, plan.debias, plan.batch_size, lr, plan.seed)

    def _make_generator(self, settings, seed):
        """Return a new generator, after a forward pass of both kinds of networks."""
        with seeded_torch(seed):
            maker = mlp_generator if self.module is None else self.module
            sizes = {"latent_dim": self.latent_dim, "n_features": self.n_features_in_}
            generator = make_network(maker, "module", **sizes)
            try_network(generator, self.latent_dim, "module", self.n_features_in_)
            if settings.make_network is not None:
                try_network(settings.make_network(), self.n_features_in_, "critic_module")
        return generator

    def _set_attributes(self, trained, critics, settings, plan):
        networks = [
            Critic(number, np.empty((0, 0)), settings, checkpoint=checkpoint).network
            for number, checkpoint in enumerate(critics.checkpoints)
        ]
        self.critics_ = [fix_weights(network) for network in networks if network is not None]
        self.history_ = trained.history
        if not plan.learned:
            values = np.array(self.history_["wasserstein"])
            values = values if plan.power == 1 else np.sqrt(np.maximum(values, 0))
            self.history_["wasserstein"] = (values * self._columns.unit).tolist()
        potentials = [part.potentials for part in trained.parts]
        is_shared = plan.n_potential_steps is not None
        self.potentials_ = potentials[0] if is_shared else np.stack(potentials)
        masses = [part.masses for part in trained.parts]
        self.masses_ = np.average(masses, axis=0, weights=plan.shares)
        traffic = dict(critics.traffic)
        checkpoints = traffic.pop("checkpoint", 0)
        weights = sum(p.numel() for p in self.generator_.parameters())
        if self.critics_:
            weights += plan.n_critic_steps * sum(p.numel() for p in self.critics_[0].parameters())
        self.traffic_ = {
            "update": sum(traffic.values()) / self.n_iter_,
            "checkpoint": checkpoints / self.n_iter_,
            # Gradients of float32 go out, and their mean comes back.
            "all_reduce": 2 * 4 * weights,
        }

    def _check_spread(self, rows, plan):
        """Warn of samples that spread more or less than the rows."""
        samples = self._draw(_N_COLLAPSE_SAMPLES, np.random.RandomState(plan.seed))
        samples = self._columns.project(samples)
        if not np.isfinite(samples).all():
            message = (
                f"the generator's samples are not all finite: try a smaller lr than {plan.lr}."
            )
            warnings.warn(message, ConvergenceWarning, stacklevel=5)
            return
        spread, expected = mean_deviation(samples), mean_deviation(rows)
        if expected / _MAX_SPREAD <= spread <= _MAX_SPREAD * expected:
            return
        problem = "'s samples spread too much" if spread > expected else "'s samples are too alike"
        if spread < _COLLAPSED * expected:
            problem = " collapsed: its samples are all equal, or nearly so"
        more = "" if plan.debias else ", cost='euclidean' with debias=True"
        message = (
            f"the generator{problem}. Their columns vary by {spread:.2g} and those of X by "
            f"{expected:.2g}, scaled. Try max_iter above {self.n_iter_}, a smaller lr than "
            f"{plan.lr}, a batch_size above {plan.batch_size}{more}, or another module."
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=5)

    # Use

    def _draw(self, n_samples, random_state):
        """Return scaled samples."""
        latents = random_state.standard_normal((int(n_samples), int(self.latent_dim)))
        parts = torch.from_numpy(latents.astype(np.float32)).split(_BLOCK)
        with torch.no_grad():
            return np.concatenate([self.generator_(part).numpy() for part in parts])

    @validate_params(
        {
            "n_samples": [Interval(Integral, 1, None, closed="left")],
            "random_state": ["random_state"],
        },
        prefer_skip_nested_validation=True,
    )
    def sample(self, n_samples: int = 1, random_state: RandomStateLike = None) -> NDArray:
        """Draw new rows.

        Columns of whole numbers, columns with bounds and constant columns come back as such.

        Parameters
        ----------
        n_samples : int, default=1
            How many.
        random_state : int, RandomState instance or None, default=None
            Seeds the latent vectors.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            The rows, in the units of the training rows.
        """
        check_is_fitted(self)
        Z = self._draw(n_samples, check_random_state(random_state))
        rows = self._columns.decode(Z).astype(self._dtype)
        if not np.isfinite(rows).all():
            raise ValueError(
                "the generator draws rows that are not finite, so its training diverged: fit it "
                f"again with an lr below {self.lr!r}."
            )
        return rows

    def score(self, X: MatrixLike, y: None = None) -> float:
        """Return the negative energy distance of rows to as many samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, best such that were not fitted on.
        y : None
            Ignored.

        Returns
        -------
        score : float
            The higher the better, about 0 for samples like the rows: the unbiased energy distance
            of scaled rows, times -1. The samples are the same in every call.
        """
        check_is_fitted(self)
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], reset=False, ensure_min_samples=2
        )
        samples = self.sample(len(X), random_state=self._seed)
        return -energy_distance(self._columns.encode(X), self._columns.encode(samples))
