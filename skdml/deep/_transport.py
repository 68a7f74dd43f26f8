"""Clouds of points in DeepMetricEmbedder: what the embedding is cut into, and its distance."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..transport import wasserstein_coreset
from ..transport._cloud_metric import metric_of_rows
from ._modules import CHANNELS, map_cloud
from ._net import embed
from ._parts import PartParamsMixin
from .losses._registry import TRANSPORT
from .losses._wasserstein import Cloud, choose_cloud

FEATURE_MAP = "feature-map"


class TransportMixin(PartParamsMixin):
    """For DeepMetricEmbedder: its cloud, its metric and its coreset."""

    module: Any
    embedding_dim: int
    loss: Any
    cloud: Any
    coreset: float | None
    net_: Any
    _sample_shape: tuple[int, ...]

    def _uses_transport(self) -> bool:
        return isinstance(self.loss, str) and self.loss in TRANSPORT

    def _uses_map(self) -> bool:
        """Tell whether the places of the convolutional network's map are the points."""
        if self.cloud is None:
            return self._uses_transport() and self.module == "convnet"
        return isinstance(self.cloud, str)

    def _find_cloud(self) -> Cloud | None:
        """Return points and columns of a cloud; None leaves it to the loss, if it has clouds."""
        transport, cloud = self._uses_transport(), self.cloud
        if transport and "cloud" in self._params_of("loss__"):
            raise ValueError("loss__cloud is set by DeepMetricEmbedder: give it as cloud.")
        if self._uses_map():
            if self.module != "convnet":
                raise ValueError(
                    f"cloud={FEATURE_MAP!r} needs module='convnet', got {self.module!r}. For "
                    "other modules, whose output is one point after the other, give "
                    "cloud=(n_points, point_dim)."
                )
            params = self._params_of("module__")
            if "head" in params:
                raise ValueError(
                    f"module__head={params['head']!r} has no place beside the points of the "
                    "feature map: leave it out, or give cloud=(n_points, point_dim)."
                )
            channels = params.get("channels", CHANNELS)
            cloud = map_cloud(self._sample_shape, channels, self.embedding_dim)
        elif cloud is not None and not transport:
            raise ValueError(
                f"cloud={cloud!r} says how {' and '.join(map(repr, TRANSPORT))} cut the embedding, "
                f"but loss={self.loss!r} compares whole embeddings: leave cloud at None, or "
                f"{FEATURE_MAP!r} for a head by places."
            )
        if transport and isinstance(self.module, str):  # others may have another width
            return choose_cloud(cloud, self.embedding_dim)
        return cloud

    def _make_metric(self, embeddings: NDArray) -> Any:
        """Return the distance of embeddings, by a name or as an object; see `metric_`."""
        if not self._uses_transport():
            return "euclidean"
        return metric_of_rows(embeddings, **self._transport_params(embeddings.shape[1]))

    def _transport_params(self, n_features):
        params = self._params_of("loss__")
        params = {name: params[name] for name in ("p", "reg", "solver") if name in params}
        return {"cloud": choose_cloud(self._find_cloud(), n_features), **params}

    def _choose_coreset(self, samples: Any, codes: NDArray, seed: int) -> NDArray:
        """Return rows that stand for all of their class in the present embedding.

        All are drawn alike: in proportion to their weights, the thin parts of a class, where it
        meets others, would come up less.
        """
        embeddings = embed(self.net_.module_, samples, self.net_.device)
        params: dict[str, Any] = {}
        if self._uses_transport():
            params = self._transport_params(embeddings.shape[1])
        rows, _ = wasserstein_coreset(embeddings, codes, self.coreset, random_state=seed, **params)
        return rows
