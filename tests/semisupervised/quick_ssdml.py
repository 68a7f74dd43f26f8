"""SSDMLEmbedder with few epochs and a small network."""

from skdml import SSDMLEmbedder


def quick(**params):
    defaults = {
        "max_epochs": 2,
        "epochs_per_partition": 1,
        "n_components": 8,
        "random_state": 0,
    }
    if params.get("module", "mlp") == "mlp":
        defaults["module__hidden"] = (32,)
    elif params["module"] is None and params.get("method", "ssdml") != "ssdml":
        del defaults["max_epochs"], defaults["epochs_per_partition"]  # in closed form
    return SSDMLEmbedder(**{**defaults, **params})
