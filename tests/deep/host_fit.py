"""A fit on the hosts of a test: ``python -m tests.deep.host_fit SCHEDULER FOLDER OPTIONS``.

Writes the weights to FOLDER/weights.npz, and what was warned of to FOLDER/warnings.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from skorch.callbacks import Callback

from tests.deep import rank_toys as toys


class Notes(Callback):
    """Notes the epochs of each rank and where the ranks meet, and trains no faster than told."""

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds = str(folder), seconds

    def on_epoch_end(self, net, **kwargs):
        path = Path(self.folder) / f"rank-{os.environ['RANK']}-epoch-{len(net.history)}"
        path.write_text(os.environ["MASTER_ADDR"])
        time.sleep(self.seconds)


def fit(folder, client=None, seconds=0.0, **options):
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    model = toys.make_embedder(
        n_workers=2,
        max_epochs=4,
        module__hidden=(32,),
        classes_per_batch=4,
        client=client,
        callbacks=[Notes(folder, seconds)],
        random_state=0,
        **options,
    )
    return model.fit(X[:400] / 16, y[:400])


def main(scheduler, folder, options):
    from distributed import Client

    with Client(scheduler) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(folder, client, **json.loads(options))
    weights = {name: value.numpy() for name, value in model.module_.state_dict().items()}
    np.savez(Path(folder) / "weights.npz", **weights)
    (Path(folder) / "warnings").write_text("\n".join(str(one.message) for one in caught))


if __name__ == "__main__":
    main(*sys.argv[1:])
