"""Two families of solvers that the thesis proposes for later work, as functions, to be measured.

Not part of the package: `python -m benchmarks solvers` compares them with the solvers that are.
Each takes a function that returns the value and the gradient, and stops after so many seconds. What
they return is a list of (seconds, value), one for each round.
"""

import time

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar


def riemannian_descent(function, A, seconds):
    """Minimise over positive definite matrices by steps along geodesics of their manifold.

    The gradient under the affine-invariant metric is A G A; with A = L L', a step of length t is
    L exp(-t L' G L) L'. The step starts from that of Barzilai and Borwein and is halved until the
    value falls enough. What a round sums over pairs can be shared out to processes.
    """
    start, log = time.process_time(), []
    L, step, before = np.linalg.cholesky(A), 1.0, None
    value, G = function(A)
    while time.process_time() - start < seconds:
        H = L.T @ G @ L
        squared = np.sum(H**2)
        log.append((time.process_time() - start, value))
        if squared < 1e-24:
            break
        if before is not None:
            change = H - before
            curvature = abs(np.sum(change * before))
            step = step * np.sum(before**2) / curvature if curvature > 0 else step
        eigenvalues, vectors = np.linalg.eigh(H)
        step = min(step, 20 / np.abs(eigenvalues).max())
        while True:
            half = L @ (vectors * np.exp(-step * eigenvalues / 2))
            A = half @ half.T
            found, G = function(A)
            if found <= value - 1e-4 * step * squared or step < 1e-14:
                break
            step /= 2
        if step < 1e-14 or value - found < 1e-15 * abs(value):
            break
        before, value, L = H, found, np.linalg.cholesky(A)
    log.append((time.process_time() - start, value))
    return log


def frank_wolfe(function, A, trace, seconds):
    """Minimise over the matrices A >= 0 of at most this trace, by steps towards one of rank one.

    The linear minimisation is the least eigenvector of the gradient; the step is the best on the
    line, of the values that are finite.
    """
    start, log = time.process_time(), []
    while time.process_time() - start < seconds:
        value, G = function(A)
        log.append((time.process_time() - start, value))
        least, vector = eigh(G, subset_by_index=[0, 0])
        target = trace * (vector @ vector.T) if least[0] < 0 else np.zeros_like(A)
        if np.sum(G * (A - target)) < 1e-13 * abs(value):
            break
        line = minimize_scalar(
            lambda t, target=target, A=A: function(A + t * (target - A))[0],
            bounds=(0, 1 - 1e-9),
            method="bounded",
            options={"xatol": 1e-10},
        )
        if line.fun >= value:
            break
        A = A + line.x * (target - A)
    log.append((time.process_time() - start, function(A)[0]))
    return log


def block_frank_wolfe(problem, most, n_blocks, seconds, seed=0):
    """Maximise the dual of DITML over a box, by steps of some multipliers towards corners.

    Every pair is a block: its corner is 0, or its largest multiplier where the derivative is
    positive. So many blocks, drawn at random, go one step together; they could be those of as many
    processes. The step is the best of some on the line.
    """
    rng, start, log = np.random.default_rng(seed), time.process_time(), []
    point = problem.at(np.zeros(len(most)))
    shares = 2.0 ** -np.arange(24)
    while time.process_time() - start < seconds:
        log.append((time.process_time() - start, -point.value))
        chosen = rng.permutation(len(most))[:n_blocks]
        direction = np.zeros(len(most))
        corner = np.where(point.gradient > 0, most, 0)
        direction[chosen] = (corner - point.multipliers)[chosen]
        for share in shares:
            found = problem.at(point.multipliers + share * direction)
            if found is not None and found.value > point.value:
                point = found
                break
    log.append((time.process_time() - start, -point.value))
    return log


def gmml_objective(S, D):
    """Return the function tr(A S) + tr(inv(A) D) and its gradient."""

    def function(A):
        try:
            factor = np.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return np.inf, S
        half = np.linalg.inv(factor)
        inverse = half.T @ half
        through = inverse @ D
        return float(np.sum(A * S) + np.trace(through)), S - through @ inverse

    return function


def ditml_objective(C, signs, bounds, gamma):
    """Return the objective of DITML with the best slack for A, and its gradient."""

    def function(A):
        try:
            factor = np.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return np.inf, A
        half = np.linalg.inv(factor)
        p = np.einsum("ij,ij->i", C @ A, C)
        ratio = np.where(signs > 0, np.maximum(p, bounds), np.minimum(p, bounds)) / bounds
        divergence = np.trace(A) - 2 * np.log(np.diag(factor)).sum() - len(A)
        value = divergence + gamma * np.sum(ratio - np.log(ratio) - 1)
        weights = gamma * np.where(ratio == 1, 0, 1 / bounds - 1 / p)
        return float(value), np.eye(len(A)) - half.T @ half + (C.T * weights) @ C

    return function
