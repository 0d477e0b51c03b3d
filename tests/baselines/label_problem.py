"""A small problem that a linear low-rank map explains in part."""

import numpy as np


def label_problem(N: int = 60, F: int = 5, K: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """X (N x F) and Y (N x K) of 0 and 1; about a third are ones, every label has both."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, F)) + 0.5
    Z = X @ rng.standard_normal((F, 2)) @ rng.standard_normal((2, K)) - 1 + rng.standard_normal((N, K))
    Y = (Z > 0).astype(float)
    Y[0], Y[1] = 0, 1
    return X, Y


def centred(A: np.ndarray) -> np.ndarray:
    """A less its column means."""
    return A - A.mean(axis=0)


def constant_added(X: np.ndarray) -> np.ndarray:
    """X with a last column of ones."""
    return np.hstack([X, np.ones((len(X), 1))])
