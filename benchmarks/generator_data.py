"""Tables that generators are compared on."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from benchmarks.data import load_table, load_uci, load_usps

# The column that forests are to predict from the others.
TARGETS = {"adult": "income", "diamonds": "price", "credit_default": "class", "shuttle": "Class"}
DATA = ("digits", "segment", "letter", "vehicle", "usps", *TARGETS)
MOST_ROWS = 10_000
# Of credit_default: whole numbers that are no amounts.
CODES = ("SEX", "EDUCATION", "MARRIAGE")


def load_frame(name):
    """Return a table with its target as the column "target", shuffled, at most 10,000 rows."""
    if name in TARGETS:
        frame = load_table(name)
        codes = [column for column in CODES if column in frame]
        frame[codes] = frame[codes].astype(str)
        frame = frame.rename(columns={TARGETS[name]: "target"})
    else:
        if name == "digits":
            X, y = load_digits(return_X_y=True)
        elif name == "usps":
            X, y = load_usps("train")
        else:
            X, y = load_uci(name)
        X = np.asarray(X, dtype=np.float64)
        frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
        frame["target"] = y
    if name != "diamonds":
        frame["target"] = frame["target"].astype(str)
    return frame.sample(min(len(frame), MOST_ROWS), random_state=0).reset_index(drop=True)


def split_frame(name, seed=0):
    """Return two thirds of the rows to train on, and the others to compare with."""
    train, test = train_test_split(load_frame(name), test_size=1 / 3, random_state=seed)
    return train.reset_index(drop=True), test.reset_index(drop=True)


def load_rows(name):
    """Return at most 3,000 training rows and 1,000 test rows, of numbers and without the target."""
    train, test = (side.drop(columns="target").to_numpy() for side in split_frame(name))
    return train[:3000], test[:1000]
