"""
New rows for a rare class
=========================

A rare class is hard to learn: few rows say little about where it ends. Can rows that a network has
drawn help, more than weights or rows between two others (SMOTE) do?
:class:`~skdml.generate.WassersteinGenerator` is fitted on the rare class alone, its samples join
the training rows, and the classifier is tested on real rows only. More in the
:ref:`user guide <generator>`.
"""

# %%
# The data
# --------
# Handwritten digits: is it an eight? The training rows have 15 eights and 800 other digits, the
# test rows have all the rest.

import numpy as np
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
eights, others = rng.permutation(np.flatnonzero(y == 8)), rng.permutation(np.flatnonzero(y != 8))
train = np.concatenate([eights[:15], others[:800]])
test = np.concatenate([eights[15:], others[800:]])
rare, X_test, y_test = X[eights[:15]], X[test], y[test] == 8
X_train, y_train = X[train], y[train] == 8

# %%
# New eights
# ----------
# Pixels are whole numbers between 0 and 16, and so are the samples.

from matplotlib import pyplot as plt

from skdml import WassersteinGenerator
from skdml.plot import GeneratedSamplesDisplay

model = WassersteinGenerator(random_state=0).fit(rare)
GeneratedSamplesDisplay.from_estimator(model, rare, image_shape=(8, 8), random_state=0)
plt.show()

# %%
# Fifteen rows are soon learned by heart. How far is a sample from its nearest training row,
# relative to an eight that the network has not seen? Near 0 they would be copies.

from skdml.metrics import nearest_row_ratio

n_new = 360
samples = model.sample(n_new, random_state=0)
print(f"nearest row: {nearest_row_ratio(rare, X_test[y_test], samples):.2f}")

# %%
# Train on real and generated rows, test on real rows
# ---------------------------------------------------
# The average precision of five ways to deal with the rare class: leave it as it is, give it more
# weight, repeat its rows, add rows between two of its rows (as SMOTE does), or add samples.

from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

first = rng.integers(len(rare), size=n_new)
near = NearestNeighbors(n_neighbors=5).fit(rare).kneighbors()[1]
second = near[first, rng.integers(5, size=n_new)]
extra = {
    "as it is": np.empty((0, 64)),
    "weights": np.empty((0, 64)),
    "repeated": rare[first],
    "between": rare[first] + rng.random((n_new, 1)) * (rare[second] - rare[first]),
    "generated": samples,
}
classifiers = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "random forest": RandomForestClassifier(random_state=0),
    "10 nearest neighbours": KNeighborsClassifier(10),
}


def score(name, way):
    classifier, rows = classifiers[name], extra[way]
    if way == "weights":
        weighted = {key for key in classifier.get_params() if key.endswith("class_weight")}
        if not weighted:
            return np.nan  # votes of neighbours have no weights of classes
        classifier = clone(classifier).set_params(**dict.fromkeys(weighted, "balanced"))
    X_all = np.concatenate([X_train, rows])
    y_all = np.concatenate([y_train, np.ones(len(rows), dtype=bool)])
    found = classifier.fit(X_all, y_all).predict_proba(X_test)[:, 1]
    return average_precision_score(y_test, found)


scores = {name: [score(name, way) for way in extra] for name in classifiers}
print(f"{'':22}" + "".join(f"{way:>11}" for way in extra))
for name, values in scores.items():
    print(f"{name:22}" + "".join(f"{value:11.3f}" for value in values))

# %%
# A point above the dotted line of its colour is a gain over the data as it is. Votes of neighbours
# have no weights of classes, so that point is missing.

figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
styles = (("#0072B2", "o"), ("#D55E00", "^"), ("#009E73", "s"))
for (name, values), (color, marker) in zip(scores.items(), styles, strict=True):
    values = np.array(values)
    known = np.isfinite(values)
    axes.axhline(values[0], color=color, lw=0.8, ls=":")
    axes.plot(np.arange(5)[known], values[known], marker, color=color, label=name)
axes.set_xticks(range(5), extra)
axes.set_ylabel("average precision on test rows")
figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper center")
plt.show()

# %%
# Forest and neighbours gain about as much from drawn rows as from rows between two eights, and more
# than from weights; for the logistic regression drawn rows are the only ones that do no harm, by a
# hair. Rows between two others take no training: compare the ways on your own data.
