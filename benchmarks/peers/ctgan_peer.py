"""CTGAN and TVAE; runs in the environment of `benchmarks.environments.CTGAN`."""

import time

import ctgan
import numpy as np
import pandas as pd
import torch


def draw(method, names, discrete, n_samples, seed, epochs, **columns):
    """Fit a model to a table, and draw rows.

    Parameters
    ----------
    method : {"CTGAN", "TVAE"}
        The model.
    names : list of str
        Of the columns, which come as keywords "c0", "c1", and so on.
    discrete : list of str
        Which of them are categories.
    n_samples, seed, epochs : int
        Rows to draw; what is random; passes over the table.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (CTGAN draws from the global generator)
    frame = pd.DataFrame({name: columns[f"c{j}"] for j, name in enumerate(names)})
    model = getattr(ctgan, method)(epochs=epochs, enable_gpu=False)
    start = time.process_time()
    model.fit(frame, discrete)
    seconds = time.process_time() - start
    made = model.sample(n_samples)
    found = {
        f"c{j}": made[name].to_numpy(str if name in discrete else float)
        for j, name in enumerate(names)
    }
    return {**found, "processor_seconds": seconds}
