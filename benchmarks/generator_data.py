"""Rows that generators are compared on."""

import numpy as np
from sklearn.datasets import load_digits, make_swiss_roll
from sklearn.model_selection import train_test_split

from benchmarks.data import load_uci, load_usps

DATA = ("digits", "8 Gaussians", "swiss roll", "segment", "letter", "usps")
MOST_TEST_ROWS = 1000
MOST_TRAINING_ROWS = 3000


def eight_gaussians(n_samples, seed):
    rng = np.random.default_rng(seed)
    angle = rng.integers(8, size=n_samples) * np.pi / 4
    return 2 * np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.standard_normal(
        (n_samples, 2)
    )


def load_rows(name):
    """Return at most 3,000 training rows and 1,000 test rows; the latter are a third, or fewer."""
    if name == "digits":
        X = load_digits().data
    elif name == "8 Gaussians":
        X = eight_gaussians(3000, 0)
    elif name == "swiss roll":
        X = make_swiss_roll(3000, noise=0.3, random_state=0)[0]
    elif name == "usps":
        X = load_usps("train")[0]
    else:
        X = load_uci(name)[0]
    X = np.asarray(X, dtype=np.float64)
    n_test = min(len(X) // 3, MOST_TEST_ROWS)
    train, test = train_test_split(X, test_size=n_test, random_state=0)
    return train[:MOST_TRAINING_ROWS], test
