"""The plan and the model of a fit, from the parameters of SSDMLEmbedder."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from ..deep._build import OPTIMIZERS
from ..deep._data import augment_affine
from ..deep._train import embed
from ..deep.modules import find_module, module_arguments
from ..utils._fit import copy_part
from ..utils._parts import params_of
from ..utils._torch import choose_device
from ._ssdml_methods import SemiSupervisedMethod
from ._ssdml_training import MetricModel, Plan, choose_epochs


def check_unused(estimator: Any, method: SemiSupervisedMethod) -> None:
    """Refuse parameters that have no effect on a linear metric, away from their default."""
    if estimator.module is not None:
        return
    names, prefixes = ["pretrain_epochs"], ["module__"]
    if method.metric != "gradient":
        names += ["batch_size", "optimizer", "lr", "augment"]
        prefixes += ["optimizer__"]
    if method.metric == "closed form":
        names += ["max_epochs", "epochs_per_partition"]
    signature = inspect.signature(type(estimator)).parameters
    changed = [name for name in names if getattr(estimator, name) != signature[name].default]
    changed += [name for name in vars(estimator) if name.startswith(tuple(prefixes))]
    for name in changed:
        raise ValueError(
            f"{name}={getattr(estimator, name)!r} has no effect with method={estimator.method!r}, "
            f"recipe={estimator.recipe!r} and module=None: leave it out, or give a module."
        )


def make_plan(
    estimator: Any,
    method: SemiSupervisedMethod,
    n_neighbors: int,
    partition_size: int,
    n_nodes: int,
) -> Plan:
    """Return what the training loop needs, with the numbers of epochs that are not given.

    Parameters
    ----------
    estimator : SSDMLEmbedder
        Has the parameters.
    method : SemiSupervisedMethod
        Loss and metric.
    n_neighbors, partition_size : int
        In place of those of the estimator.
    n_nodes : int
        Samples of a partition.

    Returns
    -------
    plan : Plan
        The parameters.
    """
    optimizer: Any = estimator.optimizer
    if isinstance(optimizer, str):
        optimizer = OPTIMIZERS[optimizer]
    elif not inspect.isclass(optimizer):
        raise TypeError(f"optimizer must be a name or a class, got {optimizer!r}.")
    device = choose_device(estimator.device)
    params = {**vars(estimator), "device": device, "n_neighbors": n_neighbors}
    params.update(partition_size=partition_size, paper=estimator.recipe == "paper")
    params["augment"] = copy_part("augment", estimator.augment)
    if estimator.augment == "affine":
        params["augment"] = augment_affine
    has_images = len(estimator._sample_shape) == 3
    chosen = choose_epochs(n_nodes, estimator.batch_size, has_images, params["paper"])
    if estimator.module is None and method.metric == "closed form":
        params["max_epochs"] = 1  # that of one graph
    for name, value in zip(("max_epochs", "epochs_per_partition"), chosen, strict=True):
        if params[name] is None:
            params[name] = value
    settings = params_of(estimator._part_params(), "optimizer")
    params["make_optimizer"] = functools.partial(optimizer, lr=estimator.lr, **settings)
    return Plan(**{field.name: params[field.name] for field in dataclasses.fields(Plan)})


def make_model(estimator: Any, samples: Tensor, method: SemiSupervisedMethod) -> MetricModel:
    """Return the network and L, or L alone."""
    parametrized = method.orthogonal and method.metric == "gradient"
    if estimator.module is None:
        width = samples[0].numel()
        n_components = min(estimator.n_components, width)
        if method.orthogonal and n_components == width:
            n_components = -(-width // 2)
        return MetricModel(None, width, n_components, parametrized)
    name: Any = estimator.module
    if name == "auto":
        name = "convnet" if len(estimator._sample_shape) == 3 else "mlp"
    module = find_module(name)
    params = params_of(estimator._part_params(), "module")
    if name == "convnet":
        params.setdefault("gradients", True)
    outputs = 2 * estimator.n_components
    arguments = module_arguments(module, estimator._sample_shape, outputs, params)
    backbone = module if isinstance(module, torch.nn.Module) else module(**arguments)
    width = embed(backbone, samples[:2]).shape[1]
    if width < estimator.n_components:
        raise ValueError(
            f"n_components={estimator.n_components} is more than the {width} outputs of module "
            f"{type(backbone).__name__}: take fewer components, or a wider network."
        )
    return MetricModel(backbone, width, estimator.n_components, parametrized)
