"""
A hundred labels for eighteen hundred digits
============================================

Handwritten digits are easy to collect and tedious to label. Here a hundred of them have a
label. How far do these go? :class:`~skdml.semisupervised.SSDMLEmbedder` lets them flow along a
graph of neighbours, and trains a network on what arrives. More in the :ref:`user guide <ssdml>`.
"""

# %%
# The data
# --------
# One half is for training, and -1 stands for an unknown label. The other half is for tests.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=0.5, stratify=y, random_state=0
)
labelled = np.concatenate([np.flatnonzero(y_train == digit)[:10] for digit in range(10)])
partly = np.full(len(y_train), -1)
partly[labelled] = y_train[labelled]

# %%
# Three ways to use a hundred labels
# ----------------------------------
# Nearest neighbours among the labelled digits; a network trained on them alone; and the network
# that sees the others too. Both networks see images that are turned and shifted a little.

from sklearn.neighbors import KNeighborsClassifier

from skdml import DeepMetricEmbedder, SSDMLEmbedder

known = partly != -1
network = {
    "module": "convnet",
    "module__channels": (16, 32),
    "input_shape": (1, 8, 8),
    "augment": "affine",
    "max_epochs": 10,
    "random_state": 0,
}
alone = DeepMetricEmbedder(**network).fit(X_train[known], y_train[known])
# Each epoch with another half of the digits: those whose labels are guessed by the network are
# not those it has just learned by heart.
model = SSDMLEmbedder(partition_size=425, epochs_per_partition=1, **network)
model.fit(X_train, partly)


def score(train, test):
    """Return the accuracy of the nearest labelled digit."""
    return KNeighborsClassifier(1).fit(train[known], y_train[known]).score(test, y_test)


print(f"pixels:               {score(X_train, X_test):.2f}")
for name, one in (("labels alone", alone), ("labels and the rest", model)):
    print(f"{name + ':':21} {score(one.transform(X_train), one.transform(X_test)):.2f}")

# %%
# Where the labels flowed
# -----------------------
# The graph is that of the learned features, drawn by t-SNE. Pale points are those that are not
# sure.

from matplotlib import pyplot as plt

from skdml.plot import AffinityDisplay, EmbeddingDisplay

AffinityDisplay.from_estimator(model, X_train, partly, max_samples=500, projection="tsne")
right = np.mean(model.propagated_labels_[~known] == y_train[~known])
print(f"{right:.0%} of the {np.sum(~known)} propagated labels are right")

# %%
# Test digits before and after
# ----------------------------
# Nothing of them was seen in training.

EmbeddingDisplay.from_estimator(model, X_test, y_test)
plt.show()
