"""
My search does not know my domain
=================================

Questions of a bank's customers are vectors of a large network, and a search by cosine finds
questions that are worded alike. That is not what the bank wants: it wants questions that need the
same answer. Some are sorted by their answer already.
:class:`~skdml.deep.DeepMetricEmbedder` learns a small change of the vectors from these, which
serves the search for answers that come later too. More in the :ref:`user guide <embeddings>`.
"""

# %%
# The vectors
# -----------
# 13,083 questions of 77 kinds, as vectors of 384 columns by a sentence transformer
# (`banking77 <https://github.com/PolyAI-LDN/task-specific-datasets>`_, saved as `X` and `y` in a
# file of numpy). Where the file is missing, generated vectors stand in: a part of each has the
# meaning, and another part the wording, which is larger. Half of the kinds is for training; the
# others are the new ones, which the search will meet.

import os
from pathlib import Path

import numpy as np
from sklearn.preprocessing import normalize

path = Path(os.environ.get("SKDML_DATA", ".")) / "embeddings" / "text_banking77_minilm.npz"
rng = np.random.default_rng(0)
try:
    with np.load(path) as arrays:
        X, y = arrays["X"].astype(np.float32), arrays["y"].astype(int)
    print("banking77: ", end="")
except FileNotFoundError:
    y = np.repeat(np.arange(77), 40)
    meaning, wording = rng.normal(size=(77, 24))[y], rng.normal(scale=1.8, size=(len(y), 24))
    X = np.hstack([meaning + 0.5 * rng.normal(size=meaning.shape), wording])
    print("Generated, as banking77 is missing: ", end="")
X = normalize(X)
known, new = np.flatnonzero(y < 38), np.flatnonzero(y >= 38)
print(f"{len(known):,} questions of 38 kinds to learn from, {len(new):,} of 39 others to search")

# %%
# Learn
# -----
# Rows of unit length are what the adapter is for, so nothing needs to be said. A third of the kinds
# is held out in training, and a search among them is measured before the first step and after each
# epoch: what does not help there is not kept. Linear discriminant analysis is what one might try
# first. It looks at the kinds of training alone, and real vectors end below what they were. (In the
# generated ones, meaning and wording have columns of their own, and it is hard to beat.)

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from skdml import DeepMetricEmbedder

adapter = DeepMetricEmbedder(random_state=0).fit(X[known], y[known])
discriminant = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(X[known], y[known])
found = {
    "as they come": X[new],
    "discriminant": normalize(discriminant.transform(X[new])),
    "adapter": adapter.transform(X[new]),
}

# %%
# Look
# ----
# Every new question is searched among all other new ones. Recall@1 is the share whose nearest
# question needs the same answer. MAP@R looks at as many neighbours as there are right ones, and at
# their order; it is what a list of results is judged by. The picture shows how many of the first
# results are right: the line of the adapter should be above that of the vectors as they come.

import matplotlib.pyplot as plt

from skdml.metrics import map_at_r, recall_at_k

scores = {name: (recall_at_k(Z, y[new], 1), map_at_r(Z, y[new])) for name, Z in found.items()}
print(f"{'':<14}recall@1  MAP@R")
for name, (recall, precision) in scores.items():
    print(f"{name:<14}{recall:8.3f} {precision:6.3f}")


def precision_at(Z, ks):
    """Return the share of right questions among the k nearest, for each k."""
    asked = rng.permutation(len(Z))[:1000]
    cosines = Z[asked] @ Z.T
    cosines[np.arange(len(asked)), asked] = -2
    nearest = np.argsort(-cosines, axis=1)[:, : max(ks)]
    right = y[new][nearest] == y[new][asked][:, None]
    return [right[:, :k].mean() for k in ks]


ks = [1, 2, 5, 10, 20, 35]
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
styles = (("o-", "#0072B2"), ("^--", "#D55E00"), ("s-.", "#009E73"))
for (name, Z), (line, color) in zip(found.items(), styles, strict=True):
    rng = np.random.default_rng(0)  # the same questions for all
    ax.plot(ks, precision_at(Z, ks), line, color=color, label=name)
ax.set(
    xlabel="results shown",
    ylabel="share that need the same answer",
    title="Kinds of questions that were not in training",
)
ax.legend(frameon=False)
plt.show()

# %%
# Into the search
# ---------------
# The adapter is one matrix. Stored vectors are mapped once, a query when it comes; the index, or
# the database, stays what it is. The first that is found is the question itself.

from skdml.search import VectorIndex

index = VectorIndex(adapter).fit(X[new], ids=new)
distances, ids = index.query(X[new[:1]], k=4)
print("kinds of the nearest:", y[ids[0]])
