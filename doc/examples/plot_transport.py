"""
Clouds of points, and few that stand for many
=============================================

What :mod:`skdml.transport` computes, in pictures: the cheapest way to carry one cloud of points to
another, and the rows that stand for all rows of their class. More in the
:ref:`user guide <transport>`.
"""

# %%
# The cost of a transport
# -----------------------
# Every point of the blue cloud has the same weight, and so has every point of the orange one. Lines
# show where the weight goes. Two clouds of the same shape are as far apart as one has moved; that
# their points are stored in another order does not matter. A cloud of another shape costs more than
# the move of its centre.

import matplotlib.pyplot as plt
import numpy as np
import ot

from skdml.transport import sinkhorn_divergence

rng = np.random.default_rng(0)
angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
ring = np.column_stack([np.cos(angles), np.sin(angles)])
line = np.column_stack([np.linspace(-1, 1, 16), np.zeros(16)])
move = np.array([3.0, 0.5])
targets = {
    "shuffled": rng.permutation(ring),
    "moved": rng.permutation(ring) + move,
    "another shape": line + move,
}

# The panels have one scale: the width of each is that of its clouds.
widths = [np.ptp(np.concatenate([ring, target])[:, 0]) + 0.4 for target in targets.values()]
figure, panels = plt.subplots(
    1, 3, figsize=(9, 2.5), layout="constrained", sharey=True, width_ratios=widths
)
for axes, (name, target) in zip(panels, targets.items(), strict=True):
    plan = ot.emd([], [], ot.dist(ring, target))
    for i, j in zip(*np.nonzero(plan), strict=True):
        axes.plot(*np.transpose([ring[i], target[j]]), color="0.7", linewidth=1, zorder=0)
    axes.scatter(*ring.T, s=30, color="#0072B2")
    axes.scatter(*target.T, s=10, color="#E69F00")
    divergence = float(sinkhorn_divergence(ring, target))
    axes.set_title(f"{name}: {abs(divergence):.2f}", fontsize="medium")
    axes.set_aspect("equal")
    axes.axis("off")
plt.show()

# %%
# A coreset
# ---------
# Rows are chosen one after the other, each where it helps most: near many rows that are far from
# those chosen so far. The size of a disc is its weight, the number of rows that it stands for. Rows
# drawn at random are many where rows are many, and leave out the thin parts. Colours are classes;
# the distance in the titles is that of a row from the nearest chosen one, on average.

from sklearn.datasets import make_moons

from skdml.transport import wasserstein_coreset

X, y = make_moons(400, noise=0.08, random_state=0)
dense = rng.random(400) < np.where(X[:, 1] > 0.25, 1.0, 0.25)  # thin below
X, y = X[dense], y[dense]
indices, weights = wasserstein_coreset(X, y, size=0.06)
drawn = rng.permutation(len(X))[: len(indices)]

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
choices = {"coreset": (indices, weights), "random": (drawn, np.full(len(drawn), weights.mean()))}
colours = np.array(["#0072B2", "#E69F00"])
for axes, (name, (rows, sizes)) in zip(panels, choices.items(), strict=True):
    axes.scatter(*X.T, s=6, color="0.8")
    axes.scatter(*X[rows].T, s=8 * sizes, c=colours[y[rows]], edgecolor="white")
    distance = np.sqrt(((X[:, None] - X[rows]) ** 2).sum(axis=-1)).min(axis=1)
    axes.set_title(
        f"{name}: {len(rows)} of {len(X)} rows, mean distance {distance.mean():.3f}",
        fontsize="medium",
    )
    axes.axis("off")
plt.show()
