"""
Handwritten characters never seen in training
=============================================

Somebody has a drawer full of notes in scripts that no program was ever taught, and wants to find
all places where the same character was written. There are no labels for these scripts. But there
are for others: :class:`~skdml.deep.DeepMetricEmbedder` learns from the characters of some
alphabets what makes two drawings the same, and is used on alphabets that it has never seen. More in
the :ref:`user guide <deep>`.
"""

# %%
# The data
# --------
# Omniglot has characters of many alphabets, each drawn by twenty people. Here the network learns
# from five alphabets, and searches in three others. The drawings are from `brendenlake/omniglot
# <https://github.com/brendenlake/omniglot>`_, saved in a file of numpy. Where it is missing, the
# digits of scikit-learn stand in, with 0 to 4 for training and 5 to 9 for the search. Five
# characters teach little, so do not expect a gain from them.

import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

home = Path(os.environ.get("SKDML_DATA", "."))
try:
    with np.load(home / "omniglot" / "omniglot.npz") as arrays:
        X = np.float32(arrays["images28"] / 255).reshape(-1, 784)
        y, train = arrays["character"], arrays["train"]
    X_train, y_train, X_test, y_test = X[train], y[train], X[~train], y[~train]
    network = {"input_shape": (1, 28, 28), "max_epochs": 3}
    print("Omniglot: ", end="")
except FileNotFoundError:
    X, y = load_digits(return_X_y=True)
    X = X / 16
    X_train, y_train, X_test, y_test = X[y < 5], y[y < 5], X[y >= 5], y[y >= 5]
    network = {"input_shape": (1, 8, 8), "module__channels": (16, 32), "max_epochs": 5}
    print("Digits, as Omniglot is missing: ", end="")
print(f"{len(X_train)} drawings of {len(np.unique(y_train))} characters to learn from,")
print(f"{len(X_test)} drawings of {len(np.unique(y_test))} other characters to search")

# %%
# Training
# --------
# `augment` turns and shifts the drawings a little, as another hand would.

import matplotlib.pyplot as plt

from skdml import DeepMetricEmbedder
from skdml.plot import ConvergenceDisplay, RecallCurveDisplay, RetrievalDisplay

model = DeepMetricEmbedder("convnet", augment="affine", random_state=0, **network)
model.fit(X_train, y_train)
ConvergenceDisplay.from_estimator(model)
plt.show()

# %%
# Does it find the same character?
# --------------------------------
# Every drawing is looked up among all others. recall@k is the share of drawings with the same
# character among the k nearest.

display = RecallCurveDisplay.from_predictions(X_test, y_test, name="pixels")
RecallCurveDisplay.from_estimator(model, X_test, y_test, ax=display.ax_)
plt.show()

# %%
# Some searches
# -------------
# The same drawings, looked up by their pixels and by the network. Orange frames with a cross are
# other characters.

figure, panels = plt.subplots(1, 2, figsize=(7.4, 4), layout="constrained")
figure.get_layout_engine().set(wspace=0.08)
# sphinx_gallery_thumbnail_number = 3
RetrievalDisplay.from_predictions(X_test, y_test, X_test, n_queries=6, ax=panels[0])
RetrievalDisplay.from_estimator(model, X_test, y_test, n_queries=6, ax=panels[1])
for axes, title in zip(panels, ("by pixels", "by the learned metric"), strict=True):
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)
plt.show()
