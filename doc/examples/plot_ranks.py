"""
The same training on four ranks
===============================

A network that takes a night to train can be trained by several processes, its *ranks*, on one
machine or on many. :class:`~skdml.deep.DeepMetricEmbedder` has one parameter for that, and some
that say how the ranks keep together. Here we watch them. More in the
:ref:`user guide <distributed>`.
"""

# %%
# One process, four processes
# ---------------------------
# All trainings have the same network, the same digits and the same number of epochs. With
# ``sync="allreduce"``, the default, all ranks have the same network at all times. With
# ``"hybrid"``, a rank gets the largest part of the network from its left neighbour only, and mixes
# it with its own: that is less to send. ``ring="gradients"`` mixes gradients in place of networks,
# as an equation in the source of the method has it.

from sklearn.datasets import load_digits

from skdml import DeepMetricEmbedder
from skdml.deep import Distributed

X, y = load_digits(return_X_y=True)
X = X / 16
X_train, X_test, y_train, y_test = X[::2], X[1::2], y[::2], y[1::2]

options = {"max_epochs": 3, "classes_per_batch": 5, "samples_per_class": 4, "n_components": 16}
models = {
    "one process": DeepMetricEmbedder(random_state=0, **options),
}
for name, distributed in {
    "allreduce": Distributed(4),
    "ring": Distributed(4, sync="hybrid"),
    "ring of gradients": Distributed(4, sync="hybrid", ring="gradients"),
}.items():
    models[name] = DeepMetricEmbedder(distributed=distributed, random_state=0, **options)
for name, model in models.items():
    model.fit(X_train, y_train)
    print(f"{name + ':':18} recall@1 {model.score(X_test, y_test):.3f}")

# %%
# Do the replicas stay together?
# ------------------------------
# With all-reduce they are equal. Around a ring of parameters they come together as the learning
# rate falls. Around a ring of gradients they have nothing that draws them together, and their
# average, which is what `fit` keeps, is an average of different networks.

import matplotlib.pyplot as plt

from skdml.plot import ConsensusDisplay, ConvergenceDisplay

display = ConsensusDisplay.from_estimator(models["allreduce"])
ConsensusDisplay.from_estimator(models["ring"], ax=display.ax_)
ConsensusDisplay.from_estimator(models["ring of gradients"], ax=display.ax_)
plt.show()

# %%
# The loss
# --------
# Four small batches make a large one with more to compare, so the loss of four ranks is another
# number than that of one process. The seconds are those of a machine with few cores, where ranks
# share what one process would have alone: ranks are for trainings that take long, and for machines
# that have room for them.

display = None
for name, model in models.items():
    axes = None if display is None else display.axes_
    display = ConvergenceDisplay.from_estimator(model, name=name, ax=axes)
plt.show()

# %%
# What is sent
# ------------
# Bytes that a rank sends in one step, as its sockets counted them.

for name in ("allreduce", "ring"):
    sent = models[name].traffic_
    parts = ", ".join(f"{part} {sent[part]:,.0f}" for part in ("backbone", "head", "mining"))
    print(f"{name + ':':11} {sum(sent.values()):9,.0f} bytes ({parts})")
