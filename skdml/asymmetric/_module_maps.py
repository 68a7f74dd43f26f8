"""Two networks in the place of the two matrices. Needs torch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._maps import Pairs

# Rows of a forward pass without gradients.
_CHUNK = 4096


class ModuleMaps:
    """Copies of a module for queries and one for database rows, learned by Adam.

    Parameters
    ----------
    query_module : torch.nn.Module
        Maps rows to coordinates.
    database_module : torch.nn.Module or None
        The same for database rows; None uses one module for both.
    """

    def __init__(self, query_module: Any, database_module: Any) -> None:
        self.query_module = copy.deepcopy(query_module)
        self.database_module = self.query_module
        if database_module is not None:
            self.database_module = copy.deepcopy(database_module)
        modules = torch.nn.ModuleList([self.query_module, self.database_module])
        self._parameters = list(modules.parameters())  # each once, also if shared
        self._optimizer = torch.optim.Adam(self._parameters)

    def embed_queries(self, X: NDArray) -> NDArray:
        """Return the coordinates of queries."""
        return embed(self.query_module, X, "query_module")

    def embed_database(self, X: NDArray) -> NDArray:
        """Return the coordinates of database rows."""
        return embed(self.database_module, X, "database_module")

    def check_outputs(self, queries: NDArray, database: NDArray) -> None:
        """Check that both modules return coordinates of the same space."""
        widths = self.embed_queries(queries).shape[1], self.embed_database(database).shape[1]
        if widths[0] != widths[1]:
            raise ValueError(
                "query_module and database_module must return as many columns as each other, but "
                f"query_module returns {widths[0]} columns and database_module {widths[1]}."
            )

    def penalty(self) -> float:
        """Return the norm of all weights, which stands for the norm of W."""
        with torch.no_grad():
            return float(self._norm())

    def _norm(self):
        norms = [torch.linalg.vector_norm(weight) for weight in self._parameters]
        return torch.linalg.vector_norm(torch.stack(norms))

    def step(
        self, queries: NDArray, database: NDArray, pairs: Pairs, penalty: float, lr: float
    ) -> None:
        """Go one step of Adam down the loss of the pairs plus `penalty` times the norm."""
        self.query_module.train()
        self.database_module.train()
        used, row = np.unique(pairs.row, return_inverse=True)
        Z = self.query_module(_tensor(queries))
        Z_database = self.database_module(_tensor(database[used]))
        difference = Z[torch.from_numpy(pairs.query)] - Z_database[torch.from_numpy(row)]
        loss = (_tensor(pairs.weight) * difference.square().sum(dim=1)).sum()
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad()
        (loss + penalty * self._norm()).backward()
        self._optimizer.step()


def embed(module: Any, X: NDArray, name: str) -> NDArray:
    """Return the coordinates that a module gives to rows, without gradients."""
    module.eval()
    parts = []
    with torch.inference_mode():
        for part in torch.split(_tensor(X), _CHUNK):
            output = module(part)
            if output.ndim != 2 or len(output) != len(part):
                raise ValueError(
                    f"{name} must return one row of coordinates per sample, a tensor of shape "
                    f"({len(part)}, n_components), got {tuple(output.shape)}."
                )
            parts.append(output.numpy())
    return np.concatenate(parts).astype(np.float64)


def _tensor(X):
    return torch.from_numpy(np.asarray(X, dtype=np.float32))
