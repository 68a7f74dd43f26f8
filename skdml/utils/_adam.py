"""Adam for arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Adam:
    """Adam with the usual decay rates, 0.9 and 0.999.

    Parameters
    ----------
    parameters : sequence of ndarray
        Where to start; the arrays themselves are not changed.
    eps : float
        Added to the root of the second moment.
    """

    def __init__(self, parameters: Sequence[NDArray], eps: float) -> None:
        self.parameters = list(parameters)
        self._eps = eps
        self._first = [np.zeros_like(value) for value in parameters]
        self._second = [np.zeros_like(value) for value in parameters]
        self.n_steps = 0

    def step(self, gradients: Sequence[NDArray], lr: float) -> None:
        """Go one step down; the parameters become new arrays."""
        self.n_steps = t = self.n_steps + 1
        for i, gradient in enumerate(gradients):
            first = self._first[i] = 0.9 * self._first[i] + 0.1 * gradient
            second = self._second[i] = 0.999 * self._second[i] + 0.001 * gradient * gradient
            size = np.sqrt(second / (1 - 0.999**t)) + self._eps
            self.parameters[i] = self.parameters[i] - lr * first / (1 - 0.9**t) / size
