"""Fits in one distributed mode, as often as it is told: ``python -m tests.kills.drive MODE``.

Reads a line for each fit, and answers with two: that it begins, and how it ended.
"""

import contextlib
import hashlib
import os
import signal
import sys
import time
import warnings

import joblib
import numpy as np
from sklearn.datasets import load_digits, load_wine


def embedder(client):
    from skdml import DeepMetricEmbedder
    from skdml.deep import Distributed

    X, y = load_digits(return_X_y=True)
    model = DeepMetricEmbedder(
        distributed=Distributed(2, client=client, max_restarts=3, timeout=60),
        max_epochs=2,
        module__hidden=(16,),
        classes_per_batch=5,
        random_state=0,
    )
    return model.fit(X[:300] / 16, y[:300]).transform(X[:50] / 16)


def generator(client):
    from skdml import WassersteinGenerator

    model = WassersteinGenerator(
        n_critics=2, max_iter=100, batch_size=32, n_jobs=2, random_state=0, client=client
    )
    return model.fit(load_wine().data).sample(50, random_state=0)


def ditml(client):
    from skdml import DITMLTransformer

    X, y = load_digits(return_X_y=True)
    with _backend(client):
        return DITMLTransformer(n_jobs=2, random_state=0).fit(X[:900], y[:900]).transform(X[:50])


def gmml(client):
    import dask.array as da

    from skdml import GMMLTransformer

    X, y = load_digits(return_X_y=True)
    rows = da.from_array(X, chunks=(150, -1)).map_blocks(_slowly, dtype=float)
    return GMMLTransformer(random_state=0).fit(rows, y).transform(X[:50])


def _slowly(block):
    time.sleep(0.05)
    return block


def ranker(client):
    from skdml import LocalGMMLRanker
    from skdml.datasets import make_ranking

    X, y, qid = make_ranking(n_queries=600, random_state=0)[:3]
    with _backend(client):
        model = LocalGMMLRanker(n_metrics=4, n_jobs=2, random_state=0).fit(X, y, qid)
    return model.predict(X, qid)


def _backend(client):
    if client is None:
        return joblib.parallel_config(backend="loky")
    return joblib.parallel_config(backend="dask")


FITS = {function.__name__: function for function in (embedder, generator, ditml, gmml, ranker)}


@contextlib.contextmanager
def _cluster(address):
    if not address:
        yield None
        return
    from distributed import Client

    with Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def main():
    fit, address = FITS[sys.argv[1]], sys.argv[2] if len(sys.argv) > 2 else ""
    warnings.simplefilter("ignore")
    # In the background of a shell the signal is ignored, by children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHONWARNINGS"] = "ignore"
    with _cluster(address) as client:
        print("ready", flush=True)
        for _ in sys.stdin:
            try:
                print("begin", flush=True)
                result = np.round(np.asarray(fit(client), np.float64), 10)
                print("end", hashlib.sha1(result.tobytes()).hexdigest(), flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            except Exception as error:
                text = f"{type(error).__name__}: {error}".replace("\n", " ")
                print("error", text[:300], flush=True)


if __name__ == "__main__":
    main()
