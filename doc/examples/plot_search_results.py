"""
Search results, ranked again
============================

A search engine finds some documents for each query and puts them in an order by a fixed formula.
People have graded how relevant the documents of some queries are. Can a better order be learned for
queries that come later? :class:`~skdml.ranking.LocalGMMLRanker` learns what an ideal document looks
like, and puts the documents near it first. More in the :ref:`user guide <ranking>`.
"""

# %%
# The data
# --------
# MQ2008 of LETOR: each row is a document of a query, with 46 features such as the score of a
# formula for its title or for its text. `qid` says which rows belong to one query. The five parts,
# S1 to S5, are on the `page of LETOR
# <https://www.microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval>`_.
# Where they are missing, generated queries stand in.

import os
from pathlib import Path

import numpy as np

from skdml.datasets import make_ranking, read_letor

folder = Path(os.environ.get("SKDML_DATA", ".")) / "letor_mq2008"
parts = sorted(folder.glob("S?.txt*"))  # also compressed, as S1.txt.gz
if len(parts) == 5:
    X, y, qid = read_letor(parts[:3], n_features=46)
    X_test, y_test, qid_test = read_letor(parts[4], n_features=46)
    print("MQ2008: ", end="")
else:
    X, y, qid = make_ranking(n_queries=300, n_features=20, n_centers=2, random_state=0)
    X_test, y_test, qid_test = X[qid >= 200], y[qid >= 200], qid[qid >= 200]
    X, y, qid = X[qid < 200], y[qid < 200], qid[qid < 200]
    print("Generated, as MQ2008 is missing: ", end="")
print(f"{len(np.unique(qid))} queries with {len(X):,} documents to learn from,")
print(f"{len(np.unique(qid_test))} other queries to test the order of {len(X_test):,} documents")

# %%
# Learn an order
# --------------
# A fifth of the training queries is held out, and says when to stop.

from skdml import LocalGMMLRanker

ranker = LocalGMMLRanker(random_state=0).fit(X, y, qid=qid)

# %%
# Against the best formula
# ------------------------
# Every feature is an order of its own. The one that is best for the training queries is what we
# could have used without learning. NDCG@10 is 1 if the ten first documents of a query are the best
# ones in the best order; queries without a relevant document are left out.

import matplotlib.pyplot as plt

from skdml.metrics import mean_ndcg
from skdml.plot import ConvergenceDisplay, RankingDisplay

best = max(range(X.shape[1]), key=lambda feature: mean_ndcg(y, X[:, feature], qid))
RankingDisplay.from_estimator(
    ranker, X_test, y_test, qid_test, other=X_test[:, best], other_name=f"feature {best + 1}"
)
plt.show()

# %%
# On average the learned order is better, and yet there are queries for which it is worse. Look at
# the right panel before you replace an order that people are used to.
#
# How the training went
# ---------------------
# The NDCG of the queries that were held out, after each epoch.

ConvergenceDisplay.from_estimator(ranker, measure="ndcg")
plt.show()

# %%
# One query
# ---------
# The grades of the first ten documents in both orders, for the query with the most documents.

queries, counts = np.unique(qid_test, return_counts=True)
rows = np.flatnonzero(qid_test == queries[counts.argmax()])
scores = ranker.predict(X_test, qid=qid_test)
for name, values in (("feature", X_test[:, best]), ("learned", scores)):
    order = rows[np.argsort(-values[rows], kind="stable")]
    print(f"{name}: {y_test[order[:10]]}")
