"""
Learning to look away from noise
================================

Nearest neighbours trust every column alike. Here we add 30 columns of noise to the digits of
scikit-learn, watch the neighbours get worse, and let :class:`~skdml.linear.GMMLTransformer` learn
a metric that looks away from the noise. More on the method in the :ref:`user guide <gmml>`.
"""

# %%
# The data
# --------
# The 64 pixels of each digit are followed by 30 columns that say nothing about it. One half of
# the rows is for training, the other for testing.

import numpy as np
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
noise = np.random.RandomState(0).normal(scale=6, size=(len(X), 30))
X = np.hstack([X, noise])
X_train, X_test = X[::2], X[1::2]
y_train, y_test = y[::2], y[1::2]

# %%
# Neighbours before and after
# ---------------------------
# A metric learner is a transformer: it stands in a pipeline, before the classifier. `geodesic` is
# its one important parameter, so we let a grid search on the training rows choose it.

from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from skdml import GMMLTransformer

plain = KNeighborsClassifier(3).fit(X_train, y_train)
print(f"3-NN, plain distance:   {plain.score(X_test, y_test):.3f}")

learned = make_pipeline(GMMLTransformer(random_state=0), KNeighborsClassifier(3))
grid = {"gmmltransformer__geodesic": [0.1, 0.25, 0.5]}
search = GridSearchCV(learned, grid, cv=5).fit(X_train, y_train)
print(f"3-NN, learned distance: {search.score(X_test, y_test):.3f}")
print(f"chosen: {search.best_params_}")

# %%
# What it looks like
# ------------------
# Both panels show the test rows along their own two main axes. On the left the axes are those of
# plain distance, on the right those of the learned one. Two axes of 94 show little of the noise,
# which is spread over all the others: the panels differ less than the distances do.

import matplotlib.pyplot as plt

from skdml.plot import EmbeddingDisplay, MetricMatrixDisplay

model = search.best_estimator_[0]
EmbeddingDisplay.from_estimator(model, X_test, y_test)
plt.show()

# %%
# What was learned
# ----------------
# The metric is a matrix. In the middle is what each column adds to the distance of two rows, on
# average. The black line is plain distance, in which the last 30 columns, the noise, add as much as
# strong pixels. The bars are the learned one, and the orange ones, all of the noise, were turned
# down. On the right are the eigenvalues: along how many directions the metric still looks.

MetricMatrixDisplay.from_estimator(model, X_train)
plt.show()

weights = model.get_mahalanobis_matrix().diagonal()
print(f"mean weight of a pixel:           {weights[:64].mean():.4f}")
print(f"mean weight of a column of noise: {weights[64:].mean():.4f}")

# %%
# Search
# ------
# A learned metric also serves to find things that are alike. :func:`~skdml.metrics.recall_at_k` is
# the share of test digits whose nearest neighbour shows the same digit.

from skdml.metrics import recall_at_k

Z_test = model.transform(X_test)
print(f"recall@1, plain distance:   {recall_at_k(X_test, y_test):.3f}")
print(f"recall@1, learned distance: {recall_at_k(Z_test, y_test):.3f}")
