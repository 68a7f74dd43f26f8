"""
A grid search on a dask cluster
===============================

Good parameters take many fits to find. One machine does them one after the other; a cluster does
them at the same time. The estimators of skdml need no other code for that than those of
scikit-learn: tell joblib to use dask. More in the :ref:`user guide <scaling>`.
"""

# %%
# A cluster
# ---------
# For this page two workers in this process have to do. On a real cluster you would write
# ``Client("tcp://scheduler:8786")``, and nothing else would change.

from distributed import Client

client = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
print(len(client.scheduler_info()["workers"]), "workers")

# %%
# The search
# ----------
# Handwritten digits with 30 columns of noise beside the pixels. Two parameters of
# :class:`~skdml.linear.GMMLTransformer`, four values each, five folds: eighty fits.

import joblib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline

from skdml import GMMLTransformer

X, y = load_digits(return_X_y=True)
noise = np.random.default_rng(0).normal(scale=6, size=(len(X), 30))
X = np.hstack([X, noise])
X_train, X_test, y_train, y_test = X[::2], X[1::2], y[::2], y[1::2]

pipeline = Pipeline(
    [("metric", GMMLTransformer(random_state=0)), ("neighbours", KNeighborsClassifier(3))]
)
grid = {"metric__geodesic": [0.02, 0.05, 0.1, 0.25], "metric__reg": [0.001, 0.01, 0.1, 1.0]}
search = GridSearchCV(pipeline, grid, cv=5)

with joblib.parallel_config(backend="dask"):
    search.fit(X_train, y_train)

print(search.best_params_)
print(f"without a metric: {pipeline[1].fit(X_train, y_train).score(X_test, y_test):.3f}")
print(f"with the best:    {search.score(X_test, y_test):.3f}")

# %%
# The same search without the cluster finds the same. Where the work is done changes the time and
# nothing else.

alone = GridSearchCV(pipeline, grid, cv=5).fit(X_train, y_train)
same = np.array_equal(alone.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])
print("the same scores:", same)

# %%
# What it found
# -------------

import matplotlib.pyplot as plt

scores = search.cv_results_["mean_test_score"].reshape(4, 4)
figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
image = axes.imshow(scores, cmap="cividis")
for (row, column), score in np.ndenumerate(scores):
    dark = score < (scores.min() + scores.max()) / 2
    axes.text(column, row, f"{score:.3f}", ha="center", va="center", color="w" if dark else "k")
axes.set_xticks(range(4), grid["metric__reg"])
axes.set_yticks(range(4), grid["metric__geodesic"])
axes.set(xlabel="reg", ylabel="geodesic", title="accuracy in cross-validation")
plt.show()

# %%
# One fit on the cluster
# ----------------------
# A single fit can use the cluster, too: give it a dask array, whose blocks may lie on many machines
# and need not fit into the memory of one. The result is the one of a plain array.

import dask.array as da

blocks = da.from_array(X_train, chunks=(300, -1))
metric = GMMLTransformer(random_state=0).fit(blocks, y_train).get_mahalanobis_matrix()
plain = GMMLTransformer(random_state=0).fit(X_train, y_train).get_mahalanobis_matrix()
print(f"largest difference of two entries: {np.abs(metric - plain).max():.0e}")
client.close()
