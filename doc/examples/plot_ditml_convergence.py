"""
Three ways to the same metric
=============================

:class:`~skdml.linear.DITMLTransformer` has three solvers. Here we watch each of them on its way:
how far is it from the solution after so many rounds, and after so many seconds? More on the method
in the :ref:`user guide <ditml>`.
"""

# %%
# The problem
# -----------
# The 178 wines of scikit-learn, with their columns standardised, and 200 random pairs. Similar
# pairs should be nearer than the 5th percentile of all squared distances, dissimilar ones farther
# than the 95th.

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from skdml.constraints import make_pairs

X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
pairs, labels = make_pairs(y, 200, random_state=0)
near, far = np.percentile(pdist(X, "sqeuclidean"), [5, 95])
print(f"similar: at most {near:.1f}, dissimilar: at least {far:.1f}")

# %%
# The solvers
# -----------
# The estimator calls these functions for you. We call them ourselves, since `divergence=True` keeps
# the whole path: after every round the Bregman divergence from the solution to the metric of the
# round (and to its bounds, which may give way). It is zero at the solution only.

# These modules are internal: their names may change without notice.
from skdml.linear._logdet import LogDetProblem
from skdml.linear._newton import solve_newton
from skdml.linear._projections import solve_parallel, solve_sequential
from skdml.utils._differences import PairDifferences

problem = LogDetProblem(
    differences=PairDifferences(X, pairs),
    signs=labels.astype(float),
    bounds=np.where(labels > 0, near, far),
    gamma=1.0,
    prior_inverse=np.eye(X.shape[1]),
)
solve_newton(problem, max_iter=1)  # the first call of all is slow
results = {
    "sequential": solve_sequential(problem, tol=1e-10, divergence=True),
    "parallel": solve_parallel(problem, tol=1e-10, divergence=True),
    "newton": solve_newton(problem, tol=1e-10, divergence=True),
}
for name, result in results.items():
    print(
        f"{name:10}  {result.n_iter:3} rounds, "
        f"{result.history['seconds'][-1]:.3f} s, "
        f"optimum {result.point.value:.9f}"
    )

# %%
# A round is a sweep over all pairs (sequential), one step along all projections together (parallel)
# or one Newton step. All three end at the same optimum:

metrics = [result.point.metric for result in results.values()]
largest = max(np.abs(metric - metrics[0]).max() for metric in metrics)
print(f"largest difference of two entries: {largest:.0e}")

# %%
# The picture
# -----------
# Both axes are logarithmic. Below 1e-12 the divergence is lost in rounding and is not drawn. Newton
# steps begin with milder problems, of a smaller gamma; the flat part of their line is that.

import matplotlib.pyplot as plt

from skdml.plot import ConvergenceDisplay

display = None
for name, result in results.items():
    divergence = np.array(result.history["divergence"])
    seen = divergence > 1e-12
    stop = len(seen) if seen.all() else np.argmin(seen)
    display = ConvergenceDisplay.from_predictions(
        divergence[:stop],
        result.history["seconds"][:stop],
        name=name,
        ylabel="divergence from the solution",
        log=True,
        ax=None if display is None else display.axes_,
    )
for axes in display.axes_:
    axes.set_xscale("log")
display.axes_[0].get_legend().remove()
display.axes_[1].legend(frameon=False, fontsize=8, loc="lower left")
plt.show()

# %%
# Newton steps are few, because each of them uses how the pairs act on one another. The other two
# solvers look at one pair at a time. The parallel one does so for all pairs from the same metric:
# a round is a few products of matrices in place of 200 small updates, and these products can be
# spread over many machines.
#
# The sum of the divergences over the rounds, the *regret* of the way, comes to rest when a solver
# arrives.

for name, result in results.items():
    regret = np.cumsum(result.history["divergence"])
    print(
        f"{name:10}  regret {regret[-1]:6.2f}, of it in the second "
        f"half: {regret[-1] - regret[len(regret) // 2 - 1]:.0e}"
    )
