"""
Queries that were photographed badly
====================================

The database has clean, upright digits. The queries are digits that somebody photographed badly:
turned on their side, blurred, and noisy. Plain nearest neighbours are lost. One metric for both
sides finds three digits of four. :class:`~skdml.asymmetric.AsymmetricMetricClassifier` learns a map
for each side, and finds most. More on the method in the :ref:`user guide <asymmetric>`.
"""

# %%
# The data
# --------
# One half of the digits is for training: as the database, and photographed, as training queries.
# The queries of the test come from the other half.

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
images = np.rot90(X.reshape(-1, 8, 8), axes=(1, 2))
photographs = ndimage.gaussian_filter(images, (0, 0.7, 0.7)).reshape(X.shape)
photographs += np.random.default_rng(0).normal(scale=1.5, size=X.shape)
X_train, y_train = X[::2], y[::2]
queries_train, queries_test, y_test = photographs[::2], photographs[1::2], y[1::2]

figure, axes = plt.subplots(2, 8, figsize=(7, 2), layout="constrained")
for column in range(8):
    axes[0, column].imshow(X[column].reshape(8, 8), cmap="gray_r")
    axes[1, column].imshow(photographs[column].reshape(8, 8), cmap="gray_r")
for line, name in zip(axes, ("stored", "asked"), strict=True):
    line[0].set_ylabel(name, fontsize=9)
    for panel in line:
        panel.set(xticks=[], yticks=[])
plt.show()

# %%
# One map or two
# --------------
# ``symmetric=True`` ties the two maps together. It learns from the same queries.

from sklearn.neighbors import KNeighborsClassifier

from skdml import AsymmetricMetricClassifier

plain = KNeighborsClassifier(5).fit(X_train, y_train)
print(f"plain 5-NN:  {plain.score(queries_test, y_test):.3f}")

models = {}
for name, symmetric in (("one map", True), ("two maps", False)):
    model = AsymmetricMetricClassifier(n_components=16, symmetric=symmetric, random_state=0)
    model.fit(X_train, y_train, X_query=queries_train, y_query=y_train)
    models[name] = model
    print(f"{name + ':':12} {model.score(queries_test, y_test):.3f}")

# %%
# The objective
# -------------
# Two maps have more freedom than one: they start lower, and end lower.

from skdml.plot import ConvergenceDisplay, RetrievalDisplay

display = ConvergenceDisplay.from_estimator(models["one map"], name="one map")
ConvergenceDisplay.from_estimator(models["two maps"], name="two maps", ax=display.axes_)
for axes in display.axes_:
    axes.set_yscale("log")
plt.show()

# %%
# Before and after
# ----------------
# Both panels have the stored digits, pale, and the photographs of the test, strong. On the left
# all photographs lie in a cloud of their own. On the right those of a digit lie among the stored
# ones of its colour. Some digits still overlap, as these are two axes of 16.

from skdml.plot import EmbeddingDisplay

# sphinx_gallery_thumbnail_number = 3
EmbeddingDisplay.from_estimator(
    models["two maps"], queries_test, y_test, gallery=X_train, gallery_labels=y_train
)
plt.show()

# %%
# What is found
# -------------
# Some photographs, their digits on the left, and the stored digits that are nearest to them, with
# two maps. A wrong one would have an orange frame with a cross.

RetrievalDisplay.from_estimator(
    models["two maps"], queries_test, y_test, gallery=X_train, gallery_labels=y_train
)
plt.show()

# %%
# What the maps look for
# ----------------------
# Each row of U and V is a pattern of pixels. A query matches with a row of U what a database row
# matches with the same row of V: a pattern of U is that of V above it on its side, like the
# queries.

model = models["two maps"]
figure, axes = plt.subplots(2, 6, figsize=(6, 2.2), layout="constrained")
for column in range(6):
    for line, components in enumerate((model.database_components_, model.query_components_)):
        pattern = components[column].reshape(8, 8)
        limit = np.abs(pattern).max()
        axes[line, column].imshow(pattern, cmap="RdBu", vmin=-limit, vmax=limit)
for line, name in zip(axes, ("V, database", "U, queries"), strict=True):
    line[0].set_ylabel(name, fontsize=9)
    for panel in line:
        panel.set(xticks=[], yticks=[])
plt.show()

# %%
# Any index
# ---------
# The database side is plain Euclidean space, so any index for it will do. Here it is a ball tree;
# faiss takes the same coordinates. One of these five photographs is taken for another digit.

from sklearn.neighbors import BallTree

index = BallTree(model.transform_database(X_train))
_, nearest = index.query(model.transform(queries_test[:5]), k=5)
for digit, found in zip(y_test[:5], y_train[nearest], strict=True):
    print(f"asked: {digit}, found: {found}")
