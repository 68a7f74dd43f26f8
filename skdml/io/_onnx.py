"""Maps as ONNX graphs: linear learners by skl2onnx, networks by torch."""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._optional import optional_import
from ._registry import name_of_class

LINEAR = (
    "DITMLTransformer",
    "GMMLTransformer",
    "LFDA",
    "LMNN",
    "MLKR",
    "NeighborhoodGerrymandering",
    "RCA",
)
NETWORKS = ("DeepMetricEmbedder", "SSDMLEmbedder")


def register_onnx_converters() -> None:
    """Teach skl2onnx the linear learners, so that it converts pipelines that have one.

    The graph is that of `transform`: a matrix product, and with ``metric="cosine"`` a scaling to
    unit length before and after it.

    Examples
    --------
    >>> from skdml.io import register_onnx_converters
    >>> register_onnx_converters()  # doctest: +SKIP
    """
    skl2onnx = optional_import("skl2onnx", "register_onnx_converters")
    linear = importlib.import_module("skdml.linear")
    for name in LINEAR:
        cls = getattr(linear, name)
        skl2onnx.update_registered_converter(cls, f"Skdml{name}", _infer_shape, _convert)


def to_onnx(estimator: Any) -> Any:
    """Return the `transform` of a fitted estimator as an ONNX graph.

    Parameters
    ----------
    estimator : estimator
        A linear learner, `DeepMetricEmbedder` or `SSDMLEmbedder`.

    Returns
    -------
    model : onnx.ModelProto
        Its input is `X`, in single precision, or int64 where tokens were learned from, of shape
        (n_samples, n_features). Write it with ``onnx.save(model, path)``.

    See Also
    --------
    register_onnx_converters : For pipelines.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdml import GMMLTransformer
    >>> from skdml.io import to_onnx
    >>> X, y = load_iris(return_X_y=True)
    >>> onnx_model = to_onnx(GMMLTransformer(geodesic=0.5).fit(X, y))  # doctest: +SKIP
    """
    name = name_of_class(estimator)
    if name not in (*LINEAR, *NETWORKS):
        known = ", ".join((*LINEAR, *NETWORKS))
        raise TypeError(f"estimator must be one of {known}, got {estimator!r}.")
    check_is_fitted(estimator)
    if name in LINEAR:
        register_onnx_converters()
        skl2onnx = optional_import("skl2onnx", "to_onnx")
        types = importlib.import_module("skl2onnx.common.data_types")
        X = types.FloatTensorType([None, estimator.n_features_in_])
        return skl2onnx.to_onnx(estimator, initial_types=[("X", X)])
    return _export_network(estimator)


def _infer_shape(operator: Any) -> None:
    given = operator.inputs[0].type
    n_outputs = operator.raw_operator.metric_.n_outputs
    operator.outputs[0].type = given.__class__([given.shape[0], n_outputs])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    ops = importlib.import_module("skl2onnx.algebra.onnx_ops")
    types = importlib.import_module("skl2onnx.common.data_types")
    learner, X = operator.raw_operator, operator.inputs[0]
    is_cosine = learner.metric == "cosine"
    dtype = types.guess_numpy_type(X.type)
    if dtype not in (np.float32, np.float64):
        raise TypeError(
            "The input of a linear learner must be of floats, of single or double size."
        )
    version = {"op_version": container.target_opset}
    names = {"output_names": operator.outputs[:1]}
    node = X
    if is_cosine:
        node = ops.OnnxLpNormalization(node, axis=1, p=2, **version)
    components = np.ascontiguousarray(learner.components_.T).astype(dtype)
    node = ops.OnnxMatMul(node, components, **version, **({} if is_cosine else names))
    if is_cosine:
        node = ops.OnnxLpNormalization(node, axis=1, p=2, **version, **names)
    node.add_to(scope, container)


def _export_network(estimator: Any) -> Any:
    torch: Any = optional_import("torch", "to_onnx")
    optional_import("onnxscript", "to_onnx")
    module, components = estimator.module_, None
    if hasattr(estimator, "components_"):
        components = torch.from_numpy(estimator.components_.T.astype(np.float32))

    class Map(torch.nn.Module):
        """From rows to what `transform` returns."""

        def __init__(self) -> None:
            super().__init__()
            self.module = None if module is None else module.to("cpu").eval()
            self.register_buffer("components", components)

        def forward(self, X: Any) -> Any:
            """Return the embeddings."""
            if self.module is not None:
                X = self.module(X.reshape(-1, *estimator._sample_shape))
                X = torch.nn.functional.normalize(X, dim=1)
            return X if self.components is None else X @ self.components

    dtype = torch.int64 if getattr(estimator, "_has_tokens", False) else torch.float32
    example = torch.zeros(3, estimator.n_features_in_, dtype=dtype)
    batch = torch.export.Dim("n_samples")
    with contextlib.redirect_stdout(io.StringIO()):  # it tells its steps
        program = torch.onnx.export(
            Map().eval(),
            (example,),
            input_names=["X"],
            output_names=["embeddings"],
            dynamic_shapes={"X": {0: batch}},
            dynamo=True,
            verbose=False,
        )
    if module is not None and hasattr(estimator, "net_"):
        module.to(estimator.net_.device)
    return program.model_proto
