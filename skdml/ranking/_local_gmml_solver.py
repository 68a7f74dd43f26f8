"""Learning of ideal documents and their weights from the queries of a training set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..linear import MahalanobisMetric
from ..utils._adam import Adam
from ._kernels import KERNELS, Partials
from ._losses import draw_violators, lambda_loss, pair_loss, rank_weight, warp_loss
from ._queries import RankedQueries, mean_ndcg_of

# Queries of a batch: fewer where there are few, so that an epoch has some steps.
_MIN_BATCH, _MAX_BATCH = 8, 32
_MIN_STEPS = 4
_LEARNING_RATE = 0.003
_AVERAGE = 0.98  # of the parameters over the last steps, which is what is evaluated and kept
_MARGIN = 1.0


@dataclass
class AnchorModel:
    """Ideal documents, their metrics and weights: all that scores a document.

    Attributes
    ----------
    kernel : {"gaussian", "thesis"}
        How distances become a score.
    anchors : ndarray of shape (n_anchors, n_features)
        Ideal documents first, then anti-ideal ones.
    signs : ndarray of shape (n_anchors,)
        +1 for ideal, -1 for anti-ideal.
    weights, widths : ndarray of shape (n_anchors,)
        As the kernel takes them.
    scale : ndarray of shape (n_anchors,)
        The factor of the identity in each metric.
    factors : ndarray of shape (n_anchors, rank, n_features)
        The other part of each metric, ``M = scale I + F' F``.
    """

    kernel: str
    anchors: NDArray
    signs: NDArray
    weights: NDArray
    widths: NDArray
    scale: NDArray
    factors: NDArray

    def metrics(self) -> list[MahalanobisMetric]:
        """Return the metrics one by one."""
        n_features = self.anchors.shape[1]
        found = []
        for scale, factor in zip(self.scale, self.factors, strict=True):
            spectrum = np.sum(factor**2, axis=1)
            if scale > 0:  # a truncated metric: the rows are orthogonal
                factor, spectrum = factor[spectrum > 0], spectrum[spectrum > 0]
                directions = factor / np.sqrt(spectrum)[:, None]
                found.append(MahalanobisMetric(n_features, scale, directions, spectrum))
            else:
                found.append(MahalanobisMetric.from_matrix(factor.T @ factor))
        return found

    def quadratic(self, X: NDArray) -> NDArray:
        """Return ``x' M_r x`` for each row and anchor."""
        return self._norms(self.factors.reshape(-1, X.shape[1]) @ X.T, X).T

    def _norms(self, images, X):
        # One row per anchor: what is added up lies in long rows.
        images = images.reshape(*self.factors.shape[:2], len(X))
        norms = np.einsum("crn,crn->cn", images, images)
        if self.scale.any():
            norms += np.multiply.outer(self.scale, np.einsum("dn,dn->n", X.T, X.T))
        return norms

    def apply(self, V: NDArray) -> NDArray:
        """Return ``M_r v_r``, one row of V for each anchor."""
        inner = np.einsum("crd,cd->cr", self.factors, V)
        return self.scale[:, None] * V + np.einsum("crd,cr->cd", self.factors, inner)

    def squared_distances(self, X: NDArray, quadratic: NDArray | None = None) -> NDArray:
        """Return squared distances of rows to anchors; `quadratic` saves most of the work."""
        images = self.apply(self.anchors)
        if quadratic is None:
            # One product for the quadratic and the linear terms.
            n_images = self.factors.size // X.shape[1]
            products = np.vstack([self.factors.reshape(n_images, X.shape[1]), images]) @ X.T
            sizes, linear = self._norms(products[:n_images], X), products[n_images:]
        else:
            sizes, linear = quadratic.T.copy(), images @ X.T
        sizes += np.sum(images * self.anchors, axis=1)[:, None]
        squared = sizes - 2 * linear
        # What is left of nearly equal numbers is rounding: a document that is an anchor itself.
        squared[squared < 32 * np.finfo(float).eps * sizes] = 0.0
        return squared.T

    def scores(
        self, X: NDArray, quadratic: NDArray | None = None, weights: NDArray | None = None
    ) -> NDArray:
        """Return the scores of rows; `weights` may differ from row to row."""
        weights = self.weights if weights is None else weights
        squared = self.squared_distances(X, quadratic)
        return KERNELS[self.kernel](squared, weights, self.widths, self.signs, derive=False)[0]

    def evaluate(self, squared: NDArray, weights: NDArray) -> tuple[NDArray, Partials]:
        """Return scores and their partial derivatives, given squared distances."""
        scores, partials = KERNELS[self.kernel](squared, weights, self.widths, self.signs)
        assert partials is not None
        return scores, partials

    def scores_by_example(self, X: NDArray, examples: NDArray) -> NDArray:
        """Score rows by their distance to a query that is given as a row of features.

        The metric at the query q is a mixture of the local ones (equations 4.1 and 4.2 of the
        thesis), those whose ideal documents are near it the most: with weights
        ``Phi_r exp(-d_r(q)^2 / min_r d_r(q)^2)``, which do not depend on the unit of distance.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            The documents.
        examples : ndarray of shape (n_rows, n_features)
            The query of each document.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            The squared distances, negative.
        """
        ideal = self.signs > 0
        squared = self.squared_distances(examples)[:, ideal]
        tiny = np.finfo(float).tiny
        # a query may be an ideal document itself, and weights of the thesis may all be zero
        nearest = np.maximum(squared.min(axis=1), 1e-12 * squared.max(axis=1) + tiny)
        closeness = np.exp(1 - squared / nearest[:, None])
        phi = self.weights if self.kernel == "thesis" else np.exp(self.weights)
        shares = closeness * np.maximum(phi[ideal], tiny)
        shares /= shares.sum(axis=1, keepdims=True)
        return -np.sum(shares * self.quadratic(X - examples)[:, ideal], axis=1)

    def anchor_gradient(self, X: NDArray, by_squared: NDArray) -> NDArray:
        """Return the gradient by the anchors, given that of each squared distance."""
        # sum over rows of g 2 M (p - x), as one matrix product
        return 2 * self.apply(by_squared.sum(axis=0)[:, None] * self.anchors - by_squared.T @ X)

    def factor_gradient(self, X: NDArray, by_squared: NDArray) -> NDArray:
        """Return the gradient by the factors, given that of each squared distance."""
        gradient = np.empty_like(self.factors)
        for r, factor in enumerate(self.factors):
            difference = X - self.anchors[r]
            weighted = difference * by_squared[:, r, None]
            gradient[r] = 2 * (factor @ difference.T) @ weighted
        return gradient


def build_model(
    kernel: str, locals_: list, n_ideal: int, learn_metrics: bool = False
) -> AnchorModel:
    """Put local metrics and anchors together, with equal weights.

    Parameters
    ----------
    kernel : str
        The kernel.
    locals_ : list of LocalMetric
        Ideal ones first.
    n_ideal : int
        How many are ideal.
    learn_metrics : bool, default=False
        Whether the metrics will be learned: they then are full factors.

    Returns
    -------
    model : AnchorModel
        Ready to be trained.
    """
    metrics = [local.metric for local in locals_]
    n_anchors = len(metrics)
    if learn_metrics:
        factors, scale = np.array([_full_factor(metric) for metric in metrics]), np.zeros(n_anchors)
    else:
        rank = max(metric.rank for metric in metrics)
        factors = np.zeros((n_anchors, rank, metrics[0].n_features))
        for factor, metric in zip(factors, metrics, strict=True):
            factor[: metric.rank] = np.sqrt(metric.weights)[:, None] * metric.directions
        scale = np.array([metric.scale for metric in metrics])
    return AnchorModel(
        kernel,
        np.array([local.anchor for local in locals_]),
        np.where(np.arange(n_anchors) < n_ideal, 1.0, -1.0),
        np.full(n_anchors, 1.0 if kernel == "thesis" else 0.0),
        np.zeros(n_anchors),
        scale,
        factors,
    )


def _full_factor(metric):
    eigenvalues, vectors = np.linalg.eigh(metric.matrix())
    return np.sqrt(np.maximum(eigenvalues, 0))[:, None] * vectors.T


def train(
    model: AnchorModel,
    ranked: RankedQueries,
    validation: RankedQueries | None,
    learned: tuple[str, ...],
    loss: str,
    max_epochs: int,
    patience: int,
    rng: np.random.Generator,
    begin: Callable[[], None],
    report: Callable[..., bool],
) -> tuple[AnchorModel, list[dict]]:
    """Fit the parameters by Adam on batches of queries.

    Parameters
    ----------
    model : AnchorModel
        Where to start.
    ranked : RankedQueries
        The training queries.
    validation : RankedQueries or None
        Queries to choose the epoch by; None takes the last.
    learned : tuple of str
        The attributes of the model that are learned.
    loss : {"lambda", "warp"}
        What is minimised.
    max_epochs : int
        The number of passes over the queries at most.
    patience : int
        The number of epochs without a lower validation loss after which it stops.
    rng : Generator
        Shuffles the queries and draws violators.
    begin : callable
        Called before every epoch.
    report : callable
        Called after every epoch with the best model so far and the figures of the epoch; true asks
        to stop.

    Returns
    -------
    model : AnchorModel
        The best one: parameters averaged over the last steps.
    history : list of dict
        The epoch, the mean loss, with `validation` the loss and NDCG there, and the seconds.
    """
    fixed = "factors" not in learned
    quadratic = model.quadratic(ranked.features) if fixed else None
    watched = model.quadratic(validation.features) if fixed and validation is not None else None
    optimizer = _AveragedAdam({name: getattr(model, name) for name in learned}, model.kernel)
    batch_size = int(np.clip(-(-ranked.n_queries // _MIN_STEPS), _MIN_BATCH, _MAX_BATCH))
    history: list[dict] = []
    best, lowest, best_epoch = replace(model, **optimizer.average), np.inf, 0
    for epoch in range(1, max_epochs + 1):
        begin()
        start, total = time.perf_counter(), 0.0
        order = rng.permutation(ranked.n_queries)
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            batch = ranked.take(numbers)
            rows = ranked.locate(numbers)[0]
            current = replace(model, **optimizer.parameters)
            known = None if quadratic is None else quadratic[rows]
            value, gradient = gradients(current, batch, known, learned, loss, rng)
            optimizer.step(gradient)
            total += value * len(numbers)
        current = replace(model, **optimizer.average)
        figures = {"epoch": epoch, "loss": total / ranked.n_queries}
        if validation is not None:
            scores = current.scores(validation.features, watched)
            figures["validation_loss"] = pair_loss(scores, validation)
            figures["ndcg"] = mean_ndcg_of(scores, validation)
        history.append({**figures, "seconds": time.perf_counter() - start})
        if validation is None or figures["validation_loss"] < lowest:
            best, lowest, best_epoch = current, figures.get("validation_loss", np.inf), epoch
        if report(best, **figures) or epoch - best_epoch >= patience:
            break
    return best, history


def gradients(
    model: AnchorModel,
    batch: RankedQueries,
    quadratic: NDArray | None,
    learned: tuple[str, ...],
    loss: str,
    rng: np.random.Generator,
) -> tuple[float, dict[str, NDArray]]:
    """Return the loss of a batch of queries and its gradient by the learned attributes."""
    squared = model.squared_distances(batch.features, quadratic)
    scores, partials = model.evaluate(squared, model.weights)
    if loss == "lambda":
        value, by_score = lambda_loss(scores, batch)
    else:
        value, by_score = warp_loss(scores, batch, rng, _MARGIN)
    by_squared = by_score[:, None] * partials.by_squared
    compute = {
        "weights": lambda: by_score @ partials.by_weight,
        "widths": lambda: by_score @ partials.by_width,
        "anchors": lambda: model.anchor_gradient(batch.features, by_squared),
        "factors": lambda: model.factor_gradient(batch.features, by_squared),
    }
    return value, {name: compute[name]() for name in learned}


class _AveragedAdam:
    """Adam with a running average of the parameters; the weights of the thesis stay >= 0."""

    def __init__(self, parameters: dict[str, NDArray], kernel: str) -> None:
        self._names = list(parameters)
        self._adam = Adam(list(parameters.values()), eps=1e-8)
        self.average: dict[str, Any] = dict(parameters)
        self._project = kernel == "thesis"

    @property
    def parameters(self) -> dict[str, Any]:
        """The arrays by name; new ones after each step, as a model may keep them."""
        return dict(zip(self._names, self._adam.parameters, strict=True))

    def step(self, gradient):
        self._adam.step([gradient[name] for name in self._names], _LEARNING_RATE)
        if self._project and "weights" in self._names:
            i = self._names.index("weights")
            self._adam.parameters[i] = np.maximum(self._adam.parameters[i], 0)
        t = self._adam.n_steps
        keep = min(_AVERAGE, t / (t + 10))  # the first steps, far from the end, fade sooner
        for name, value in self.parameters.items():
            self.average[name] = keep * self.average[name] + (1 - keep) * value


def fit_query_weights(
    model: AnchorModel,
    ranked: RankedQueries,
    loss: str,
    n_rounds: int,
    rng: np.random.Generator,
    step: float = 0.1,
    margin: float = _MARGIN,
) -> NDArray:
    """Learn weights of their own for every query, from the shared ones on.

    With the thesis's kernel and loss, this is its Algorithm 3: each query draws one document and
    a violator and moves its weights, down to zero at most. The queries do not depend on each
    other, so one round updates them all.

    Parameters
    ----------
    model : AnchorModel
        The shared parameters.
    ranked : RankedQueries
        The training queries.
    loss : {"lambda", "warp"}
        What is minimised.
    n_rounds : int
        The number of updates of each query.
    rng : Generator
        Draws documents and violators.
    step : float, default=0.1
        mu, the step size.
    margin : float, default=1.0
        zeta of the "warp" loss.

    Returns
    -------
    weights : ndarray of shape (n_queries, n_anchors)
        As the kernel takes them.
    """
    codes = ranked.codes()
    squared = model.squared_distances(ranked.features)
    weights = np.tile(model.weights, (ranked.n_queries, 1))
    for _ in range(n_rounds):
        scores, partials = model.evaluate(squared, weights[codes])
        if loss == "lambda":
            by_score = lambda_loss(scores, ranked)[1] * ranked.n_queries
            gradient = np.add.reduceat(by_score[:, None] * partials.by_weight, ranked.starts[:-1])
        else:
            better, worse, rank_error = draw_tuples(scores, ranked, rng, margin)
            weight = rank_weight(rank_error)[:, None]
            gradient = weight * (partials.by_weight[worse] - partials.by_weight[better])
        weights = weights - step * gradient
        if model.kernel == "thesis":
            weights = np.maximum(weights, 0)
    return weights


def draw_tuples(
    scores: NDArray, ranked: RankedQueries, rng: np.random.Generator, margin: float
) -> tuple[NDArray, NDArray, NDArray]:
    """Draw a document of each query that has less relevant ones, and a violator of its margin.

    Returns
    -------
    better, worse, rank_error : ndarray of shape (n_queries,)
        The two rows, and how many ranks the first is too low; 0 where no violator was found.
    """
    ends = ranked.starts[1:]
    lowest = ranked.lower == np.repeat(ends, ranked.sizes)
    n_better = ranked.sizes - np.add.reduceat(lowest.astype(np.intp), ranked.starts[:-1])
    better = ranked.starts[:-1] + (rng.random(ranked.n_queries) * n_better).astype(np.intp)
    worse, rank_error = draw_violators(scores, better, ranked.lower[better], ends, rng, margin)
    return better, worse, rank_error
