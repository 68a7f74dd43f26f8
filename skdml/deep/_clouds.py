"""Embeddings as clouds of points, for losses by optimal transport; coresets of the embedding."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..transport import wasserstein_coreset
from ..transport._cloud_metric import metric_of_rows
from ._train import embed
from .losses._wasserstein import POINT_DIM, TRANSPORT, Cloud, choose_cloud
from .modules import CHANNELS, map_cloud

FEATURE_MAP = "feature-map"


def _uses_map(config):
    """Tell whether the positions of the convolutional network's feature map are the points."""
    cloud = config.part_params.get("loss__cloud")
    return config.module == "convnet" if cloud is None else isinstance(cloud, str)


def find_cloud(config: Any) -> Cloud | None:
    """Return points and columns of a cloud; None leaves it to the loss."""
    cloud = config.part_params.get("loss__cloud")
    if _uses_map(config):
        if cloud not in (None, FEATURE_MAP):
            raise ValueError(
                f"loss__cloud must be (n_points, point_dim) or {FEATURE_MAP!r}, got {cloud!r}."
            )
        if config.module != "convnet":
            raise ValueError(
                f"loss__cloud={FEATURE_MAP!r} needs module='convnet', got {config.module!r}. For "
                "other modules, whose output is one point after the other, give "
                "loss__cloud=(n_points, point_dim)."
            )
        if "module__head" in config.part_params:
            raise ValueError(
                f"module__head={config.part_params['module__head']!r} has no place beside the "
                "points of the feature map: leave it out, or give "
                "loss__cloud=(n_points, point_dim)."
            )
        channels = config.part_params.get("module__channels", CHANNELS)
        cloud = map_cloud(config.sample_shape, channels, config.n_components)
    if isinstance(config.module, str):  # others may have another width
        if cloud is None and config.n_components % POINT_DIM:
            raise ValueError(
                f"n_components={config.n_components} is not divisible into points of {POINT_DIM}: "
                f"use a multiple of {POINT_DIM}, or give loss__cloud=(n_points, point_dim)."
            )
        return choose_cloud(cloud, config.n_components)
    return cloud


def choose_head(config: Any) -> dict[str, str]:
    """Return the kind of head that a convolutional network needs for its clouds."""
    if _uses_map(config):
        return {"head": "points"}
    if config.module == "convnet" and "module__head" not in config.part_params:
        return {"head": "dense"}
    return {}


def make_metric(config: Any, embeddings: NDArray) -> Any:
    """Return the distance of clouds as `metric_`."""
    return metric_of_rows(embeddings, **_transport_params(config, embeddings.shape[1]))


def _transport_params(config, n_features):
    params = config.params_of("loss")
    params = {name: params[name] for name in ("p", "reg", "solver") if name in params}
    return {"cloud": choose_cloud(find_cloud(config), n_features), **params}


def choose_coreset(config: Any, net: Any, samples: Any, codes: NDArray) -> NDArray:
    """Return rows that stand for all of their class in the present embedding.

    All are drawn alike: in proportion to their weights, the thin parts of a class, where it
    meets others, would come up less.
    """
    embeddings = embed(net.module_, samples, net.device)
    params: dict[str, Any] = {}
    if config.loss in TRANSPORT:
        params = _transport_params(config, embeddings.shape[1])
    fraction = config.coreset.fraction if config.coreset else 1.0
    rows, _ = wasserstein_coreset(embeddings, codes, fraction, random_state=config.seed, **params)
    return rows
