"""The classes that a file may name. A file names nothing else, and no code comes from it."""

from __future__ import annotations

import importlib
from typing import Any

# Estimators, and the parts of fitted ones.
MODULES = {
    "AsymmetricMetricClassifier": "skdml.asymmetric",
    "DITMLTransformer": "skdml.linear",
    "DeepMetricEmbedder": "skdml.deep",
    "GMMLTransformer": "skdml.linear",
    "LFDA": "skdml.linear",
    "LMNN": "skdml.linear",
    "LocalGMMLRanker": "skdml.ranking",
    "MLKR": "skdml.linear",
    "NeighborhoodGerrymandering": "skdml.linear",
    "PairClassifier": "skdml.verification",
    "RCA": "skdml.linear",
    "SSDMLEmbedder": "skdml.semisupervised",
    "WassersteinGenerator": "skdml.generate",
    "VectorIndex": "skdml.search",
    "AnchorModel": "skdml.ranking._anchor_model",
    "Calibration": "skdml.generate._calibration",
    "CloudMetric": "skdml.transport",
    "Columns": "skdml.generate._columns",
    "Distributed": "skdml.deep",
    "Layout": "skdml.generate._frames",
    "LinearPart": "skdml.ranking._linear",
    "MahalanobisMetric": "skdml.linear",
    "Missing": "skdml.ranking._documents",
    "Moments": "skdml.generate._flow",
    "Normalizer": "skdml.ranking._views",
    "PairGroupKFold": "skdml.verification",
    "PartiallyLabelledKFold": "skdml.semisupervised",
    "QueryWeights": "skdml.ranking._anchor_model",
    "CombinedRows": "skdml.linear._mahalanobis",
    "TableEncoder": "skdml.generate._tables",
    "Views": "skdml.ranking._views",
}

# Networks of this package; those of torch.nn are known by their name there.
NETWORKS = {
    "MLP": "skdml.deep.modules",
    "ConvNet": "skdml.deep.modules",
    "Adapter": "skdml.deep.modules",
    "Unchanged": "skdml.deep.modules",
    "OrientedGradients": "skdml.deep._hog",
    "VelocityNetwork": "skdml.generate._generator_networks",
}


def skops_trusted_types() -> list[str]:
    """Return the types that skops must trust to load estimators of this package.

    They are those of estimators without torch, whose tensors skops cannot store, and of
    `PlainModel`, which holds the others as text and arrays.

    Returns
    -------
    names : list of str
        For ``skops.io.load(path, trusted=names)``.

    Examples
    --------
    >>> from skdml.io import skops_trusted_types
    >>> "skdml.linear._gmml.GMMLTransformer" in skops_trusted_types()
    True
    """
    return [
        "numpy.dtype",
        "scipy.sparse._csr.csr_array",
        "scipy.sparse._csr.csr_matrix",
        "skdml.asymmetric._asymmetric.AsymmetricMetricClassifier",
        "skdml.io._store.PlainModel",
        "skdml.linear._ditml.DITMLTransformer",
        "skdml.linear._gerrymandering.NeighborhoodGerrymandering",
        "skdml.linear._gmml.GMMLTransformer",
        "skdml.linear._lfda.LFDA",
        "skdml.linear._lmnn.LMNN",
        "skdml.linear._mahalanobis.MahalanobisMetric",
        "skdml.linear._mahalanobis.CombinedRows",
        "skdml.linear._mlkr.MLKR",
        "skdml.linear._rca.RCA",
        "skdml.ranking._anchor_model.AnchorModel",
        "skdml.ranking._anchor_model.QueryWeights",
        "skdml.ranking._documents.Missing",
        "skdml.ranking._linear.LinearPart",
        "skdml.ranking._local_gmml.LocalGMMLRanker",
        "skdml.ranking._views.Normalizer",
        "skdml.ranking._views.Views",
        "skdml.verification._pair_classifier.PairClassifier",
        "sklearn.metrics._dist_metrics.EuclideanDistance32",
        "sklearn.metrics._dist_metrics.EuclideanDistance64",
        "sklearn.neighbors._kd_tree.KDTree",
    ]


def find_class(name: str) -> type:
    """Return a class of `MODULES`; another name is a KeyError."""
    return getattr(importlib.import_module(MODULES[name]), name)


def name_of_class(value: Any) -> str | None:
    """Return the name of the class of a value in `MODULES`, None if it is not there."""
    cls = type(value)
    known = cls.__module__.startswith("skdml.") and cls.__name__ in MODULES
    return cls.__name__ if known and find_class(cls.__name__) is cls else None


def find_network(name: str, own: dict[str, type]) -> type:
    """Return a class of networks: of the caller, of this package or of torch.nn."""
    if name in own:
        return own[name]
    if name in NETWORKS:
        return getattr(importlib.import_module(NETWORKS[name]), name)
    prefix, _, short = name.rpartition(".")
    if prefix not in ("torch.nn", "torch.optim"):
        raise LookupError(name)
    package = importlib.import_module(prefix)
    cls, base = vars(package).get(short), "Module" if prefix == "torch.nn" else "Optimizer"
    if not (isinstance(cls, type) and issubclass(cls, getattr(package, base))):
        raise KeyError(name)
    return cls


def name_of_network(cls: type) -> str:
    """Return the name of a class of networks or optimizers, by which `find_network` finds it."""
    for name, module in NETWORKS.items():
        if name == cls.__name__ and getattr(importlib.import_module(module), name) is cls:
            return name
    for prefix in ("torch.nn", "torch.optim"):
        if vars(importlib.import_module(prefix)).get(cls.__name__) is cls:
            return f"{prefix}.{cls.__name__}"
    return cls.__qualname__
