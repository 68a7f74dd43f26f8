"""The protocol of a semi-supervised method, and the registry of methods by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ..utils._sklearn import validate_parameter_constraints
from ._label_propagation import Graph

Kind = TypeVar("Kind", bound="type[SemiSupervisedMethod]")


class Partition(NamedTuple):
    """Samples of one graph, and the labels that were propagated along it.

    Attributes
    ----------
    codes : ndarray of shape (n_nodes,)
        The numbers of their classes; -1 where unknown.
    graph : Graph
        ``graph.neighbors`` of shape (n_nodes, n_neighbors), nearest first, and ``graph.flow``, the
        sparse matrix of propagation.
    classes : ndarray of shape (n_nodes, n_classes)
        The propagated distributions over classes.
    propagation : float
        The parameter of that name.
    weights : ndarray of shape (n_nodes,) or None
        Of the samples, by which batches are drawn; None where all count alike.
    has_images : bool
        Whether samples are images.
    """

    codes: NDArray
    graph: Graph
    classes: NDArray
    propagation: float
    weights: NDArray | None = None
    has_images: bool = False


class SemiSupervisedMethod:
    """Base class of the methods of :class:`SSDMLEmbedder`.

    A method has the loss of the network and the metric, a linear map L behind it. The parameters of
    its ``__init__`` are given to the embedder as ``loss__name``. See `register_method`.

    Attributes
    ----------
    metric : {"closed form", "gradient", "steps"}
        How L is trained: set by `find_metric` in every epoch; by the gradients of the loss,
        together with the network; or moved by `find_metric` from where it is.
    orthogonal : bool
        Whether L has orthonormal columns.
    batches : {"neighbours", "views", "samples", "triplets"}
        A batch is an array of node numbers of shape (2, n), (1, n) or (3, n): samples with one of
        their neighbours; samples with another augmented view of themselves, or a neighbour where
        there is no augmentation; samples alone; or triplets, rows of the method's attribute
        `triplets`.
    needs_pairs : bool
        Whether some class must have two labelled samples.

    Examples
    --------
    >>> from skdml.semisupervised import SemiSupervisedMethod
    >>> SemiSupervisedMethod().metric
    'closed form'
    """

    metric = "closed form"
    orthogonal: bool = False
    batches = "neighbours"
    needs_pairs = True
    _parameter_constraints: dict[str, Any] = {}

    def begin(self, partition: Partition, rng: Generator) -> None:
        """Take the samples of the next epochs.

        Parameters
        ----------
        partition : Partition
            Labels, graph and propagated classes of the samples, the nodes of the graph.
        rng : numpy Generator
            The random numbers of the fit.
        """
        raise NotImplementedError

    def loss(self, batch: NDArray, *embeddings: Tensor) -> Tensor:
        """Return the loss of a batch, for the network.

        Parameters
        ----------
        batch : ndarray of shape (2, n) or (3, n)
            Numbers of nodes; see `batches`.
        *embeddings : Tensor of shape (n, n_components)
            Their embeddings, one for each row of `batch`.

        Returns
        -------
        loss : Tensor
            A scalar.
        """
        raise NotImplementedError

    def find_metric(self, features: NDArray, factor: NDArray, rng: Generator) -> NDArray:
        """Return a new L for given outputs of the network; unless ``metric="gradient"``.

        Parameters
        ----------
        features : ndarray of shape (n_nodes, n_features)
            Outputs of the network at unit length, or the columns of X.
        factor : ndarray of shape (n_features, n_components)
            The present L.
        rng : numpy Generator
            The random numbers of the fit.

        Returns
        -------
        factor : ndarray of shape (n_features, n_components)
            The new L.
        """
        raise NotImplementedError


_METHODS: dict[str, dict[str, type[SemiSupervisedMethod]]] = {}


def register_method(
    name: str, *, paper: type[SemiSupervisedMethod] | None = None
) -> Callable[[Kind], Kind]:
    """Register a method of :class:`SSDMLEmbedder`, as a decorator of its class.

    Parameters
    ----------
    name : str
        The value of `method` that chooses it; one that exists is replaced.
    paper : type, default=None
        Another class for ``recipe="paper"``; None uses the same one.

    Returns
    -------
    decorator : callable
        Takes a subclass of `SemiSupervisedMethod` and returns it.

    Examples
    --------
    >>> import numpy as np
    >>> from skdml.semisupervised import SemiSupervisedMethod, SSDMLEmbedder, register_method
    >>> @register_method("pca")
    ... class PrincipalAxes(SemiSupervisedMethod):
    ...     def begin(self, partition, rng):
    ...         pass
    ...
    ...     def find_metric(self, features, factor, rng):
    ...         _, axes = np.linalg.eigh(np.cov(features, rowvar=False))
    ...         return axes[:, ::-1][:, : factor.shape[1]]
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> y = np.where(np.arange(50) < 10, np.arange(50) % 2, -1)
    >>> SSDMLEmbedder("pca", module=None, n_components=2).fit(X, y).transform(X).shape
    (50, 2)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a string that is not empty, got {name!r}.")

    def register(cls):
        for kind in (cls, paper or cls):
            if not (isinstance(kind, type) and issubclass(kind, SemiSupervisedMethod)):
                raise TypeError(f"a method must be a subclass of SemiSupervisedMethod, got {kind}.")
        _METHODS[name] = {"default": cls, "paper": paper or cls}
        return cls

    return register


def method_names() -> list[str]:
    """Return the names of the registered methods.

    Returns
    -------
    names : list of str
        Sorted.

    Examples
    --------
    >>> from skdml.semisupervised import method_names
    >>> "lrml" in method_names()
    True
    """
    return sorted(_METHODS)


def make_method(name: str, recipe: str, params: dict[str, Any]) -> SemiSupervisedMethod:
    """Return the method of a name, or say which of its parameters are wrong.

    Parameters
    ----------
    name, recipe : str
        `method` and `recipe` of SSDMLEmbedder.
    params : dict
        Its parameters, without ``loss__``.

    Returns
    -------
    method : SemiSupervisedMethod
        A new one.
    """
    if name not in _METHODS:
        raise ValueError(f"method must be one of {method_names()}, got {name!r}.")
    cls = _METHODS[name][recipe]
    known = inspect.signature(cls).parameters
    for param, value in params.items():
        if param not in known:
            chosen = f"method={name!r} and recipe={recipe!r}"
            others = [
                f"method={other!r}"
                for other, recipes in sorted(_METHODS.items())
                if param in inspect.signature(recipes["default"]).parameters
            ]
            if others:
                raise ValueError(
                    f"loss__{param}={value!r} has no effect with {chosen}: leave it out, or use it "
                    f"with {' or '.join(others)} and recipe='default'."
                )
            raise TypeError(
                f"loss__{param}: no method has such a parameter. With {chosen} there are "
                f"{', '.join(f'loss__{one}' for one in known) or 'none'}."
            )
    validate_parameter_constraints(
        {f"loss__{param}": kinds for param, kinds in cls._parameter_constraints.items()},
        {f"loss__{param}": value for param, value in params.items()},
        caller_name="SSDMLEmbedder",
    )
    return cls(**params)
