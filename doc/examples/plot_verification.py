"""
The same digit or not?
======================

Two images of handwritten digits: do they show the same one? Nobody says which digit it is; all
that is known is a list of pairs, each marked as the same or not.
:class:`~skdml.verification.PairClassifier` learns a distance and a threshold from them. More in the
:ref:`user guide <verification>`.
"""

# %%
# Pairs
# -----
# The digits are used to mark the pairs, and then forgotten. Images of test pairs are in no training
# pair.

import numpy as np
from sklearn.datasets import load_digits

from skdml.constraints import make_pairs

X, digit = load_digits(return_X_y=True)
train, test = np.arange(0, len(X), 2), np.arange(1, len(X), 2)
pairs, y = make_pairs(digit[train], 2000, random_state=0)
test_pairs, y_test = make_pairs(digit[test], 2000, random_state=0)
pairs, test_pairs = train[pairs], test[test_pairs]  # row numbers of X

# %%
# Learn
# -----
# A sample is a pair, and `preprocessor` has the rows. The threshold is that of the best accuracy on
# pairs that were held out.

from skdml import DITMLTransformer, PairClassifier

learner = DITMLTransformer(gamma=1.0, random_state=0)
model = PairClassifier(learner, preprocessor=X, random_state=0).fit(pairs, y)
print(f"right answers: {np.mean(model.predict(test_pairs) == y_test):.3f}")

# %%
# Look
# ----
# Pixels, as they are, for comparison. The dot is the threshold; EER is the rate at which both kinds
# of errors are equally frequent.

import matplotlib.pyplot as plt

from skdml.plot import VerificationDisplay

display = VerificationDisplay.from_estimator(model, test_pairs, y_test)
pixels = np.linalg.norm(X[test_pairs[:, 0]] - X[test_pairs[:, 1]], axis=1)
VerificationDisplay.from_predictions(y_test, pixels, name="pixels", ax=display.axes_)
plt.show()

# %%
# A stricter threshold
# --------------------
# If a wrong yes is costly, ask for 99 of 100 different pairs to be rejected, on pairs that are new.

model.calibrate_threshold(test_pairs[::2], y_test[::2], "max_tpr", min_rate=0.99)
answers, truth = model.predict(test_pairs[1::2]), y_test[1::2]
print(f"different digits accepted: {np.mean(answers[truth == -1] == 1):.3f}")
print(f"same digits accepted:      {np.mean(answers[truth == 1] == 1):.3f}")
