"""WassersteinGenerator: a network that draws new rows, trained by optimal transport."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._parallel import find_client, limit_threads
from ..metrics import wasserstein_distance
from ..utils._bases import BaseEstimator, DensityMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._sklearn import (
    EstimatorMixin,
    Interval,
    StrOptions,
    validate_data,
    validate_params,
)
from ..utils._torch import has_finite_weights, seeded_torch
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_scale
from ._columns import learn_columns, mean_deviation
from ._critics import Critic, CriticSettings
from ._generator_networks import (
    fix_weights,
    make_network,
    mlp_critic,
    mlp_generator,
    try_network,
)
from ._generator_training import train
from ._generator_workers import make_crew

# Samples that vary less than this share of what the rows do are called equal.
_COLLAPSED = 0.01
# Samples that vary by so many times as much, or by such a share, are not like the rows.
_MOST_SPREAD = 3.0
_N_LOOKED_AT = 256
_BLOCK = 4096
# Up to so many rows, a batch may be larger than the data.
_FEW_ROWS = 1000
# Chosen on training digits and images that were held out.
_LR = {"euclidean": 0.004, "learned": 0.002}
_POINTS_PER_ROW = 3
# Critics step by less than the generator: with equal rates they run ahead, and it learns slower.
_CRITIC_SHARE = 0.25


class WassersteinGenerator(DensityMixin, EstimatorMixin, BaseEstimator):
    """A network that draws new rows like those it was fitted on.

    Points that the network generates are compared with batches of real rows by optimal transport:
    what it would cost to move the one to the other. The real rows are split among critics, which
    work apart from each other and tell the generator only in which direction each of its points
    should move. Read more in the :ref:`user guide <generator>`.

    Parameters
    ----------
    latent_dim : int, default=32
        Columns of the random vectors that the generator turns into rows.
    n_critics : int, default=4
        Among how many critics the rows are split. More critics see more rows in an update.
    cost : {"auto", "euclidean", "learned"}, default="auto"
        What it costs to move a row. "euclidean" is the squared distance of scaled rows, for
        tables. "learned" is the distance of features that each critic learns, such that real and
        generated rows are far apart, for images. "auto" is "learned" where `critic_module` is
        given, and "euclidean" otherwise.
    coupling : {"shared", "separate"}, default="shared"
        Whether points are compared with the rows of all critics together, or with those of each
        critic on its own.
    debias : bool or "auto", default="auto"
        Whether to take off what it costs to move real rows to other real rows, and points to
        other points. Without, small batches make samples less varied than rows. "auto" does so
        with a learned cost.
    n_critic_steps : int, default=1
        Steps of a critic's network for one of the generator.
    n_potential_steps : int, default=5
        Steps towards the shared potentials in an update, with the shared coupling. Each takes one
        round of messages.
    module : class, callable or torch.nn.Module, default=None
        The generator: a subclass of ``torch.nn.Module`` or a function that returns a module. It
        gets `latent_dim` and `n_features`, as far as it has such parameters. The module maps
        tensors of shape (n, latent_dim) to (n, n_features). Of a module that exists already, a
        copy is trained. None is a network with two hidden layers.
    critic_module : class, callable or torch.nn.Module, default=None
        The network of a critic, made in the same way. It maps (n, n_features) to features of any
        shape. The slope of its linear and convolution layers is bounded by spectral norms.
    scaling : {"auto", "common", "columns"}, default="auto"
        "common" takes all values to [-1, 1] by one scale, for columns of one unit, such as pixels.
        "columns" gives each column mean 0 and variance 1. "auto" takes the first if no column is
        ten times as wide as the median column.
    max_iter : int, default=1500
        Updates of the generator.
    batch_size : int, default=64
        Rows of each critic in an update; a critic with fewer rows takes all of them. Generated
        points are three times as many with the Euclidean cost, and as many with a learned one or
        with `debias`: only batches of one size are comparable.
    lr : float or "auto", default="auto"
        The learning rate of the generator. "auto" is 0.004 with the Euclidean cost and 0.002 with
        a learned one. Critics have a quarter of it.
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
        The critics' networks; empty with the Euclidean cost.
    wasserstein_curve_ : ndarray of shape (`n_iter_`,)
        The distance of points and rows in each update, on the batches of that update; with the
        common scaling and the Euclidean cost in units of X.
    seconds_curve_ : ndarray of shape (`n_iter_`,)
        Seconds from the start of training to the end of each update.
    potentials_ : ndarray of shape (n_points,) or (n_critics, n_points)
        The potentials of the points of the last update; with the shared coupling one for all
        critics.
    masses_ : ndarray of shape (n_points,)
        The masses of the cells of these points, 1 where a cell has its share of the rows.
    traffic_ : dict
        Bytes between the generator and one critic in an update: "update" for what training needs,
        "checkpoint" for what a restart needs. "all_reduce" is what it would take to keep copies
        of both networks equal.
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
    >>> model.score(X) > -1
    True
    """

    _parameter_constraints: dict = {
        "latent_dim": [Interval(Integral, 1, None, closed="left")],
        "n_critics": [Interval(Integral, 1, None, closed="left")],
        "cost": [StrOptions({"auto", "euclidean", "learned"})],
        "coupling": [StrOptions({"shared", "separate"})],
        "debias": ["boolean", StrOptions({"auto"})],
        "n_critic_steps": [Interval(Integral, 1, None, closed="left")],
        "n_potential_steps": [Interval(Integral, 0, None, closed="left")],
        "module": [callable, None],
        "critic_module": [callable, None],
        "scaling": [StrOptions({"auto", "common", "columns"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "n_jobs": [Integral, None],
        "client": "no_validation",
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    generator_: torch.nn.Module
    critics_: list[torch.nn.Module]
    wasserstein_curve_: NDArray
    seconds_curve_: NDArray
    potentials_: NDArray
    masses_: NDArray
    traffic_: dict[str, float]
    n_iter_: int

    def __init__(
        self,
        latent_dim: int = 32,
        n_critics: int = 4,
        cost: str = "auto",
        coupling: str = "shared",
        debias: bool | str = "auto",
        n_critic_steps: int = 1,
        n_potential_steps: int = 5,
        module: Callable[..., Any] | None = None,
        critic_module: Callable[..., Any] | None = None,
        scaling: str = "auto",
        max_iter: int = 1500,
        batch_size: int = 64,
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

    # A client belongs to its process: clones share it, and nothing that is stored has it.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        bare = copy.copy(self)
        clone = super(WassersteinGenerator, bare).__sklearn_clone__()
        clone.client = self.client
        return clone

    # Fit

    @fit_method
    def fit(self, X: MatrixLike, y: None = None) -> Self:
        """Train the generator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows.
        y : None
            Ignored.

        Returns
        -------
        self : WassersteinGenerator
            The fitted estimator.
        """
        given = X
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_scale(X)
        self._check_cost(len(X))
        self._dtype = X.dtype
        self._columns = learn_columns(X, self.scaling)
        self._seed = int(check_random_state(self.random_state).randint(2**31))
        rows = np.random.default_rng(self._seed).permutation(self._columns.encode(X))
        settings = self._critic_settings()
        shards = np.array_split(rows, self.n_critics)
        with (
            FitProgress(self, total=self.max_iter, X=given, y=y, description="update") as progress,
            limit_threads(1),
        ):
            self.generator_ = self._make_generator(settings)
            with make_crew(shards, settings, self.n_jobs, find_client(self.client)) as crew:
                trained = self._train(crew, progress)
            self._keep(trained, crew, settings)
            self._look_for_collapse(rows)
        return self

    def _check_cost(self, n_rows):
        """Check that parameters go together, and set what "auto" means."""
        learned = self.cost == "learned" or (self.cost == "auto" and self.critic_module is not None)
        if self.critic_module is not None and not learned:
            raise ValueError(
                "critic_module is the network of a learned cost, but cost='euclidean' has none: "
                "give cost='learned', or no critic_module."
            )
        self._cost = "learned" if learned else "euclidean"
        self._debias = learned if self.debias == "auto" else bool(self.debias)
        self._lr = _LR[self._cost] if self.lr == "auto" else float(self.lr)
        least = 2 if self._debias else 1
        if self.n_critics * least > n_rows:
            raise ValueError(
                f"n_critics={self.n_critics} critics need {least} of the rows of X each, but X has "
                f"{n_rows}: give fewer critics."
            )
        if self.batch_size > max(n_rows, _FEW_ROWS):
            raise ValueError(
                f"batch_size={self.batch_size} is more than the {n_rows} rows of X: give at most "
                f"{max(n_rows, _FEW_ROWS)}."
            )
        self._n_points = self.batch_size
        if self._debias:
            self._n_points = min(self.batch_size, n_rows // self.n_critics)
        elif not learned:
            self._n_points = _POINTS_PER_ROW * self.batch_size

    def _critic_settings(self):
        maker = None
        if self._cost == "learned":
            given = self.critic_module is not None
            maker = functools.partial(
                make_network,
                self.critic_module if given else mlp_critic,
                "critic_module",
                n_features=self.n_features_in_,
            )
        lr = _CRITIC_SHARE * self._lr
        return CriticSettings(maker, self._debias, self.batch_size, lr, self._seed)

    def _make_generator(self, settings):
        """Return a new generator, after a try of both kinds of networks."""
        with seeded_torch(self._seed):
            generator = make_network(
                mlp_generator if self.module is None else self.module,
                "module",
                latent_dim=self.latent_dim,
                n_features=self.n_features_in_,
            )
            try_network(generator, self.latent_dim, "module", self.n_features_in_)
            if settings.make_network is not None:
                try_network(settings.make_network(), self.n_features_in_, "critic_module")
        return generator

    @property
    def _is_shared(self):
        return self.coupling == "shared" and self.n_critics > 1

    def _train(self, crew, progress):
        trained = train(
            self.generator_,
            crew,
            latent_dim=int(self.latent_dim),  # True is a number, too
            n_points=self._n_points,
            n_critic_steps=self.n_critic_steps if self._cost == "learned" else 1,
            n_potential_steps=self.n_potential_steps if self._is_shared else None,
            lr=self._lr,
            max_iter=self.max_iter,
            seed=self._seed,
            begin=progress.begin,
            report=lambda value, network: progress.step(
                lambda: {"generator_": network()}, distance=value
            ),
        )
        if not trained.values:
            raise ValueError(f"{trained.stopped}: try a smaller lr than {self._lr}.")
        if not has_finite_weights(self.generator_):
            raise ValueError(
                f"the generator has weights that are not finite after {len(trained.values)} "
                f"updates: try a smaller lr than {self._lr}."
            )
        return trained

    def _keep(self, trained, crew, settings):
        """Set the fitted attributes."""
        if trained.stopped:
            warnings.warn(
                f"{trained.stopped}; training stopped there. Try a smaller lr than {self._lr}.",
                ConvergenceWarning,
                stacklevel=5,
            )
        networks = [
            Critic(number, np.empty((0, 0)), settings, checkpoint).network
            for number, checkpoint in enumerate(crew.checkpoints)
        ]
        self.critics_ = [fix_weights(network) for network in networks if network is not None]
        self.n_iter_ = len(trained.values)
        values = np.array(trained.values)
        if self._cost == "euclidean":  # a squared distance
            values = np.sqrt(np.maximum(values, 0)) * self._columns.unit
        self.wasserstein_curve_ = values
        self.seconds_curve_ = np.array(trained.seconds)
        potentials = [part.potentials for part in trained.parts]
        self.potentials_ = potentials[0] if self._is_shared else np.stack(potentials)
        self.masses_ = np.mean([part.masses for part in trained.parts], axis=0)
        self.traffic_ = self._measure_traffic(crew)

    def _measure_traffic(self, crew):
        total = dict(crew.traffic)
        checkpoints = total.pop("checkpoint", 0)
        weights = sum(p.numel() for p in self.generator_.parameters())
        if self.critics_:
            steps = self.n_critic_steps
            weights += steps * sum(p.numel() for p in self.critics_[0].parameters())
        return {
            "update": sum(total.values()) / self.n_iter_,
            "checkpoint": checkpoints / self.n_iter_,
            # Gradients of float32 go out, and their mean comes back.
            "all_reduce": 2 * 4 * weights,
        }

    def _look_for_collapse(self, rows):
        samples = self._draw(_N_LOOKED_AT, np.random.RandomState(self._seed))
        samples = self._columns.encode(self._columns.decode(samples))
        if not np.isfinite(samples).all():
            warnings.warn(
                f"the generator's samples are not all finite: try a smaller lr than {self._lr}.",
                ConvergenceWarning,
                stacklevel=4,
            )
            return
        spread, expected = mean_deviation(samples), mean_deviation(rows)
        if expected / _MOST_SPREAD <= spread <= _MOST_SPREAD * expected:
            return
        problem = "'s samples spread too much" if spread > expected else "'s samples are too alike"
        if spread < _COLLAPSED * expected:
            problem = " collapsed: its samples are all equal, or nearly so"
        more = "" if self._debias else ", debias=True"
        warnings.warn(
            f"the generator{problem}. Their columns vary by {spread:.2g} and those of X by "
            f"{expected:.2g}, scaled. Try max_iter above {self.n_iter_}, a smaller lr than "
            f"{self._lr}, a batch_size above {self.batch_size}{more}, or another module.",
            ConvergenceWarning,
            stacklevel=5,
        )

    # Use

    def _draw(self, n_samples, random_state):
        """Return scaled samples."""
        blocks = []
        with torch.no_grad():
            for first in range(0, n_samples, _BLOCK):
                shape = min(_BLOCK, n_samples - first), int(self.latent_dim)
                latents = random_state.standard_normal(shape).astype(np.float32)
                blocks.append(self.generator_(torch.from_numpy(latents)).numpy())
        return np.concatenate(blocks)

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
        return self._columns.decode(Z).astype(self._dtype)

    def score(self, X: MatrixLike, y: None = None) -> float:
        """Return the negative distance of rows to as many samples, in the units of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, best such that were not fitted on.
        y : None
            Ignored.

        Returns
        -------
        score : float
            The higher the better, 0 at most: the exact 2-Wasserstein distance, times -1. The
            samples are the same in every call.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return -wasserstein_distance(X, self.sample(len(X), random_state=self._seed))
