"""WassersteinGenerator: a network that draws new rows, by a flow or by optimal transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..metrics import energy_distance
from ..utils._bases import BaseEstimator, DensityMixin
from ..utils._fit import FitProgress, fit_method
from ..utils._parallel import limit_threads
from ..utils._sklearn import (
    ClientMixin,
    EstimatorMixin,
    Interval,
    StrOptions,
    validate_data,
    validate_params,
)
from ..utils._supervision import draw_weighted
from ..utils._torch import has_finite_weights, warn_not_finite
from ..utils._typing import MatrixLike, RandomStateLike
from ..utils.validation import check_scale
from ._calibration import Calibration, calibrate
from ._critics_fit import count_latents, fit_critics, make_plan
from ._flow import Moments, column_moments, integrate, make_flow_plan, train_flow
from ._frames import is_frame, read_table
from ._generator_input import (
    check_table,
    choose_method,
    choose_rows,
    draw_codes,
    encode_target,
    find_categorical,
    learn_target,
)
from ._generator_sampling import check_spread, draw_blocks, draw_conditioned
from ._tables import TableEncoder, learn_table

# Samples by which a fit is looked at, and columns of a flow are calibrated.
_N_LOOK, _N_CALIBRATION = 256, 4096


class WassersteinGenerator(ClientMixin, DensityMixin, EstimatorMixin, BaseEstimator):
    """A network that draws new rows like those it was fitted on.

    For tables a network learns a flow that carries noise to rows. For images, and wherever rows are
    spread over machines, a generator is trained against critics: generated points are compared with
    batches of real rows by optimal transport, the real rows are split among critics, and these send
    the generator the gradient of the transport cost by its points. Rows may have numbers,
    categories, booleans, dates and missing cells. No privacy is promised. Read more in the
    :ref:`user guide <generator>`.

    Parameters
    ----------
    method : {"auto", "flow", "critics"}, default="auto"
        "flow" is flow matching, "critics" optimal transport. "auto" is "critics" where one of the
        parameters from `latent_dim` to `critic_module`, which are of critics alone, is given, and
        "flow" otherwise.
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
        copy is trained. None is a network with three hidden layers. With categories and missing
        cells `n_features` is that of the encoded rows; after y, the last of its input columns say
        of which class a row is.
    critic_module : class, callable or torch.nn.Module, default=None
        The network of a critic, made in the same way. It maps (n, n_features) to features of any
        shape. The slope of its linear and convolution layers is bounded by spectral norms.
    scaling : {"auto", "common", "columns", "quantile"}, default="auto"
        "common" takes all values to [-1, 1] by one scale, for columns of one unit, such as pixels.
        "columns" gives each column mean 0 and variance 1. "quantile" takes the normal scores of a
        column's quantiles, for heavy tails. "auto" is the first if all columns are numbers and none
        is ten times as wide as the median column, and the second otherwise. A flow scales columns
        once more, by their ranges where they have one unit, and in the end gives each the
        quantiles of the rows.
    categorical_features : sequence of column names or numbers, default=None
        Columns of numbers whose values are categories. Text, booleans and categories of a frame
        are so by their dtype.
    max_iter : int or "auto", default="auto"
        Updates of the network; "auto" is for a flow four for each row, but 150 at least and 6,500
        at most, and 1,500 with critics.
    batch_size : int or "auto", default="auto"
        Rows of each critic in an update; a critic with fewer rows takes all of them. With `debias`
        they are two independent batches. "auto" is 128 with a flow, 256 with the Euclidean cost
        and 64 with others. Generated points are as many: only batches of one size are comparable.
        With the squared cost they are three times as many.
    lr : float or "auto", default="auto"
        The learning rate of the network, which falls to zero along a cosine unless the cost is
        learned. "auto" is 0.003 with a flow, 0.004 with the squared cost and 0.002 with others.
        Critics have a quarter of it.
    device : str, default="auto"
        Where networks are trained: "cpu", "cuda", or any device of torch; "auto" is a GPU where
        there is one. Those of the fitted estimator are on the CPU; `sample` draws where
        `generator_` is.
    n_jobs : int, default=None
        Processes for the critics; None is 1 unless in a :obj:`joblib.parallel_config` context.
        The result does not depend on it. Each process works on one thread. A flow is trained in
        this process.
    client : distributed.Client, default=None
        A dask cluster for the critics; None takes that of joblib's active dask backend, if there
        is one. It is not stored with the estimator.
    random_state : int, RandomState instance or None, default=None
        Seeds weights, batches and latent vectors.
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    method_ : {"flow", "critics"}
        The method that was used.
    generator_ : torch.nn.Module
        The generator, or the network of the flow. It knows scaled rows only: use `sample`.
    critics_ : list of torch.nn.Module
        The critics' networks; empty unless the cost is learned. After a flow there are no
        `critics_`, `potentials_`, `masses_` and `traffic_`.
    history_ : dict of list
        Per update: "loss" of a flow, or "wasserstein", the transport cost of its points and rows,
        debiased or not, of a squared cost the root; with the common scaling and a cost that is not
        learned in units of X. "seconds" since the start of training.
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
        "method": [StrOptions({"auto", "flow", "critics"})],
        "latent_dim": [Interval(Integral, 1, None, closed="left")],
        "n_critics": [Interval(Integral, 1, None, closed="left")],
        "cost": [StrOptions({"auto", "euclidean", "squared", "learned"})],
        "coupling": [StrOptions({"auto", "shared", "separate"})],
        "debias": ["boolean", StrOptions({"auto"})],
        "n_critic_steps": [Interval(Integral, 1, None, closed="left")],
        "n_potential_steps": [Interval(Integral, 0, None, closed="left")],
        "module": [callable, None],
        "critic_module": [callable, None],
        "scaling": [StrOptions({"auto", "common", "columns", "quantile"})],
        "categorical_features": ["array-like", None],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 2, None, closed="left"), StrOptions({"auto"})],
        "lr": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "device": [str],
        "n_jobs": [Integral, None],
        "client": "no_validation",
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    method_: str
    generator_: torch.nn.Module
    critics_: list[torch.nn.Module]
    history_: dict[str, list]
    potentials_: NDArray
    masses_: NDArray
    traffic_: dict[str, float]
    n_iter_: int
    _encoder: TableEncoder
    _target: TableEncoder | None
    _calibration: Calibration | None
    _codes: NDArray | None
    _moments: Moments
    _seed: int

    def __init__(
        self,
        method: str = "auto",
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
        categorical_features: Sequence[Any] | None = None,
        max_iter: int | str = "auto",
        batch_size: int | str = "auto",
        lr: float | str = "auto",
        device: str = "auto",
        n_jobs: int | None = None,
        client: Any = None,
        random_state: RandomStateLike = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
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
        self.categorical_features = categorical_features
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.lr = lr
        self.device = device
        self.n_jobs = n_jobs
        self.client = client
        self.random_state = random_state
        self.verbose = verbose

    # Fit

    @fit_method
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the generator.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            The rows: numbers, or a pandas or polars frame with numbers, categories, text that
            repeats, booleans and dates. Cells may be missing.
        y : array-like of shape (n_samples,), default=None
            Classes or numbers of the rows, by which `sample` draws rows of a given class. They are
            no column of the samples. Whole numbers are classes, unless there are more than 200.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row is drawn, among those that samples should be like; a weight of 0 is
            the same as no row. Scales and bounds of columns are those of all rows that count.

        Returns
        -------
        self : WassersteinGenerator
            The fitted estimator.
        """
        given = X
        layout, table = self._read(X, reset=True)
        n_rows = len(table[0])
        chosen, weights = choose_rows(n_rows, sample_weight)
        table = [column[chosen] for column in table]
        seed = int(check_random_state(self.random_state).randint(2**31))
        self._seed = seed
        self.method_ = choose_method(self)
        categorical = find_categorical(layout, self.categorical_features)
        self._encoder = learn_table(layout, table, self.scaling, categorical)
        self._target, codes = None, None
        if y is not None:
            self._target, target = learn_target(y, n_rows, chosen)
            codes = self._target.encode([target])
        self._codes = draw_codes(codes, weights, seed)
        rows = self._encoder.encode(table)
        if self.method_ == "flow":
            plan: Any = make_flow_plan(self, len(rows), seed)
        else:
            plan = make_plan(self, rows, 0 if codes is None else codes.shape[1], seed)
        self._calibration = None
        with (
            FitProgress(self, total=plan.max_iter, X=given, y=y, description="update") as progress,
            limit_threads(1),
        ):

            def report(value, network):
                return progress.step(lambda: {"generator_": network()}, distance=value)

            if self.method_ == "flow":
                is_common = self._encoder.columns.is_common
                self._moments = column_moments(rows, self._encoder.blocks, is_common)
                scaled, spreads = self._moments.scale(rows), self._moments.spreads
                trained = train_flow(scaled, spreads, codes, weights, plan, progress.begin, report)
                network, attributes = trained.network, dict[str, Any]()
            else:
                network, trained, attributes = fit_critics(
                    self, plan, rows, codes, weights, progress.begin, report
                )
            self.n_iter_ = len(trained.history["seconds"])
            if trained.error is not None:
                warn_not_finite(trained.error, self.n_iter_, "update", plan.lr, stacklevel=5)
            if not has_finite_weights(network):
                raise ValueError(
                    f"the generator has weights that are not finite after {self.n_iter_} updates: "
                    f"try a smaller lr than {plan.lr}."
                )
            self.generator_ = network
            self.history_ = trained.history
            for name, value in attributes.items():
                setattr(self, name, value)
            if weights is not None:
                rng = np.random.default_rng(seed)
                rows = rows[draw_weighted(weights, max(len(rows), _N_CALIBRATION), rng)]
            if self.method_ == "flow":
                samples = self._draw(_N_CALIBRATION, np.random.RandomState(seed))
                self._calibration = calibrate(samples, rows, self._encoder)
            samples = self._encoder.project(self._draw(_N_LOOK, np.random.RandomState(seed)))
            check_spread(samples, rows, plan, self.n_iter_)
        return self

    def _read(self, X, reset):
        """Return layout and columns of rows, after scikit-learn's checks of names and numbers."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            layout, table = read_table(X)
            check_table(layout, table, 2)
            return layout, table
        X = validate_data(
            self,
            X,
            dtype=[np.float64, np.float32],
            reset=reset,
            ensure_min_samples=2,
            ensure_all_finite="allow-nan",
        )
        check_scale(X)
        return read_table(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Use

    def _draw(self, n_samples, random_state, codes=None):
        """Return encoded samples; without codes, those of the training rows are drawn."""
        if codes is None and self._codes is not None:
            codes = self._codes[random_state.randint(len(self._codes), size=n_samples)]
        is_flow = self.method_ == "flow"
        n_codes = 0 if codes is None else codes.shape[1]
        width = self._encoder.width if is_flow else count_latents(self, n_codes)
        latents = random_state.standard_normal((n_samples, width)).astype(np.float32)
        if is_flow:
            moments = self._moments
            samples = moments.unscale(integrate(self.generator_, latents, moments.spreads, codes))
            if self._calibration is not None:
                samples = self._calibration.apply(samples, self._encoder)
            return samples
        if codes is not None:
            latents = np.concatenate([latents, codes], axis=1)
        device = next(self.generator_.parameters()).device
        with torch.no_grad():
            return self.generator_(torch.from_numpy(latents).to(device)).numpy(force=True)

    @validate_params(
        {
            "n_samples": [Interval(Integral, 1, None, closed="left")],
            "random_state": ["random_state"],
            "y": "no_validation",
            "conditions": [dict, None],
        },
        prefer_skip_nested_validation=True,
    )
    def sample(
        self,
        n_samples: int = 1,
        random_state: RandomStateLike = None,
        *,
        y: Any = None,
        conditions: dict[Any, Any] | None = None,
    ) -> Any:
        """Draw new rows.

        They are drawn in blocks of 4,096. Columns keep their kinds: whole numbers, bounds,
        constants, categories, dates, missing cells.

        Parameters
        ----------
        n_samples : int, default=1
            How many.
        random_state : int, RandomState instance or None, default=None
            Seeds the latent vectors.
        y : class, number, or array-like of shape (n_samples,), default=None
            Of which class the rows are, after a fit with y; None draws classes as often as the
            training rows have them.
        conditions : dict of column to value, default=None
            Values that columns of the rows have, by name, or by number for arrays. Rows are drawn
            until enough have them: for a rare value that takes long, and `y` does not.

        Returns
        -------
        X : ndarray or frame of shape (n_samples, n_features)
            The rows, in the units of the training rows; a frame if `fit` was given one.
        """
        check_is_fitted(self)
        n_samples, random_state = int(n_samples), check_random_state(random_state)
        codes = None if y is None else self._encode_target(y, n_samples)

        def draw(n, given):
            return self._draw(n, random_state, given)

        if conditions:
            Z = draw_conditioned(draw, n_samples, codes, self._encoder, conditions)
        else:
            Z = np.concatenate(list(draw_blocks(draw, n_samples, codes)))
        return self._encoder.write(Z)

    def _encode_target(self, y, n_samples):
        if self._target is None:
            raise ValueError("y needs a fit with y: the generator knows no classes of rows.")
        return encode_target(self._target, y, n_samples)

    def score(self, X: MatrixLike, y: ArrayLike | None = None) -> float:
        """Return the negative energy distance of rows to as many samples.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            Rows, best such that were not fitted on.
        y : array-like of shape (n_samples,), default=None
            Their classes or numbers, after a fit with y: samples are of the same, and rows are
            compared together with them.

        Returns
        -------
        score : float
            The higher the better, about 0 for samples like the rows: the unbiased energy distance
            of scaled rows, times -1. The samples are the same in every call.
        """
        check_is_fitted(self)
        _, table = self._read(X, reset=False)
        rows, state = self._encoder.encode(table), np.random.RandomState(self._seed)
        codes = None
        if y is not None and self._target is not None:
            codes = self._encode_target(y, len(rows))
        blocks = draw_blocks(lambda n, given: self._draw(n, state, given), len(rows), codes)
        Z = np.concatenate(list(blocks))
        sides = [rows, self._encoder.project(Z)]
        if codes is not None:
            sides = [np.concatenate([side, codes], axis=1) for side in sides]
        return -energy_distance(*sides)
