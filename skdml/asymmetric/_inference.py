"""Exact inference: the best set of k neighbours in which a given class has the majority.

A set of k neighbours costs the sum of their squared distances, and is won by the class that most
of them have. Among the sets with n members of the winner, the cheapest one has the n nearest of
that class and the nearest others, at most n - 1 of any other class if ties are forbidden and n if
they are allowed. So it is enough to try every n from 1 to k.

What is known of a sample is a table of its k nearest rows of each class: squared distances in
ascending order, infinite where the class has fewer rows. All functions here work on the tables of
many samples at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class NeighborSets:
    """The two sets of neighbours that the loss of each sample compares.

    Attributes
    ----------
    targeted : ndarray of shape (n_samples, n_classes)
        h*, the cheapest set that the sample's own class wins, as its members of each class.
    augmented : ndarray of shape (n_samples, n_classes)
        The set of the largest similarity plus cost, likewise.
    loss : ndarray of shape (n_samples,)
        L(x, y), never negative; 0 where `feasible` is false.
    feasible : ndarray of shape (n_samples,)
        Whether there is a set that the sample's own class wins.
    """

    targeted: NDArray
    augmented: NDArray
    loss: NDArray
    feasible: NDArray


def infer_sets(table: NDArray, y: NDArray, costs: NDArray) -> NeighborSets:
    """Find the targeted and the loss-augmented set of each sample.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    y : ndarray of shape (n_samples,)
        The classes of the samples.
    costs : ndarray of shape (n_classes, n_classes)
        Delta, the cost of answering the class of the column for one of the row.

    Returns
    -------
    sets : NeighborSets
        Members and losses. A sample without a feasible targeted set has no members.
    """
    rows = np.arange(len(table))
    target_cost, target_size = (
        values[:, 0] for values in winning_costs(table, y[:, None], margin=1)
    )
    feasible = np.isfinite(target_cost)
    classes = np.broadcast_to(np.arange(len(costs)), (len(table), len(costs)))
    cost, size = winning_costs(table, classes, margin=0)
    cost = cost - costs[y]
    winner = cost.argmin(axis=1)
    loss = np.zeros(len(table))
    np.subtract(target_cost, cost[rows, winner], out=loss, where=feasible)
    targeted = winning_members(table, y, target_size, margin=1)
    augmented = winning_members(table, winner, size[rows, winner], margin=0)
    return NeighborSets(
        np.where(feasible[:, None], targeted, 0),
        np.where(feasible[:, None], augmented, 0),
        np.maximum(loss, 0.0),  # below by rounding only
        feasible,
    )


def vote_costs(table: NDArray, y: NDArray, costs: NDArray) -> NDArray:
    """Return what the votes of the k nearest rows cost each sample, in the mean.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    y : ndarray of shape (n_samples,)
        The classes of the samples.
    costs : ndarray of shape (n_classes, n_classes)
        Delta; with costs of 1 the result is the share of wrong votes.

    Returns
    -------
    cost : ndarray of shape (n_samples,)
        The mean over the k votes.
    """
    n_samples, _, k = table.shape
    nearest = np.argsort(table.reshape(n_samples, -1), axis=1, kind="stable")[:, :k]
    return costs[y[:, None], nearest // k].mean(axis=1)


def winning_costs(table: NDArray, winners: NDArray, margin: int) -> tuple[NDArray, NDArray]:
    """Return what the cheapest set costs that a class wins.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    winners : ndarray of shape (n_samples, n_winners)
        The classes that are to win, for each sample.
    margin : {0, 1}
        tau, by how many members the winner must be ahead of every other class: 0 allows ties.

    Returns
    -------
    cost : ndarray of shape (n_samples, n_winners)
        Minus the similarity S of the best set; infinite if there is none.
    size : ndarray of shape (n_samples, n_winners)
        The number of its members that are of the winning class.
    """
    _, n_classes, k = table.shape
    own = np.cumsum(np.take_along_axis(table, winners[:, :, None], axis=1), axis=2)
    # The others are k - 1 rows at most. They are of the k - 1 classes whose nearest rows are
    # nearest; of the first k, in case the winner is one of them.
    classes = np.argsort(table[:, :, 0], axis=1, kind="stable")[:, :k]
    others = np.take_along_axis(table, classes[:, :, None], axis=1)
    best, best_size = np.full(winners.shape, np.inf), np.zeros(winners.shape, dtype=int)
    for size in range(1, k + 1):
        needed, cap = k - size, size - margin
        if needed > cap * (n_classes - 1):
            continue
        cost = own[:, :, size - 1]
        if needed:
            cost = cost + _cheapest_others(others[:, :, :cap], classes, winners, needed)
        better = cost < best
        best[better], best_size[better] = cost[better], size
    return best, best_size


def _cheapest_others(others, classes, winners, needed):
    """Sum the `needed` smallest entries that are not of a winner, for every winner."""
    n_samples, _, cap = others.shape
    flat = others.reshape(n_samples, -1)
    # Of these, at most `cap` are of the class itself.
    order = np.argsort(flat, axis=1, kind="stable")[:, : needed + cap]
    values = np.take_along_axis(flat, order, axis=1)[:, None]
    labels = np.take_along_axis(classes, order // cap, axis=1)[:, None]
    other = labels != winners[:, :, None]
    chosen = other & (np.cumsum(other, axis=2) <= needed)
    return np.where(chosen, values, 0.0).sum(axis=2)


def winning_members(table: NDArray, winner: NDArray, size: NDArray, margin: int) -> NDArray:
    """Return the members of the cheapest set that one class wins with a known size.

    Parameters
    ----------
    table : ndarray of shape (n_samples, n_classes, k)
        Squared distances to the k nearest rows of each class, ascending.
    winner, size : ndarray of shape (n_samples,)
        The winning class of each sample and how many members it has.
    margin : {0, 1}
        As in `winning_costs`.

    Returns
    -------
    members : ndarray of shape (n_samples, n_classes)
        How many members are of each class: always its nearest rows. Rows sum to k.
    """
    n_samples, n_classes, k = table.shape
    rows = np.arange(n_samples)
    allowed = np.arange(k) < (size - margin)[:, None, None]
    flat = np.where(allowed, table, np.inf)
    flat[rows, winner] = np.inf
    order = np.argsort(flat.reshape(n_samples, -1), axis=1, kind="stable")[:, :k]
    taken = np.arange(order.shape[1]) < (k - size)[:, None]
    members = np.zeros((n_samples, n_classes), dtype=int)
    np.add.at(members, (np.nonzero(taken)[0], order[taken] // k), 1)
    members[rows, winner] += size
    return members
