"""Least squares with a penalty, for many targets at once: what most of the baselines are built on."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, sparse

from esmc_pyro.baselines.base import Array
from esmc_pyro.frames import is_sparse


def dense(X: Any) -> Array:
    """``X`` as an array."""
    return np.asarray(X.toarray() if is_sparse(X) else X)


def with_constant(X: Any) -> Any:
    """``X`` with a last column of ones."""
    ones = np.ones((X.shape[0], 1), dtype=X.dtype)
    return sparse.hstack([X, sparse.csr_array(ones)], format="csr") if is_sparse(X) else np.hstack([X, ones])


def row_space(X: Array) -> Array:
    """Orthonormal columns (F x rank) that span the rows of a wide ``X``."""
    values, U = linalg.eigh(X @ X.T)
    real = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray((X.T @ U[:, real]) / np.sqrt(values[real]))


class Ridge:
    """``argmin_W |T - X W|² + penalty |W|²`` for ``X`` (N x F) and ``T`` (N x L), less their means if ``centre``.

    The means of the columns stand for an intercept without penalty. One factorisation, F x F or, for wide ``X``,
    N x N, serves all targets; sparse ``X`` stays sparse unless it is wide.
    """

    def __init__(self, X: Any, penalty: float, *, centre: bool = True) -> None:
        N, F = X.shape
        self.wide = N < F
        self.mean = np.asarray(X.mean(axis=0)).ravel() if centre else np.zeros(F)
        self.X = dense(X) - self.mean if self.wide else X
        gram = self.X @ self.X.T if self.wide else dense(X.T @ X) - N * np.outer(self.mean, self.mean)
        gram[np.diag_indices_from(gram)] += penalty
        self.factor = linalg.cho_factor(gram, lower=True, overwrite_a=True)
        self.centre = centre

    def cross(self, T: Array) -> Array:
        """``X'T`` (F x L)."""
        T = T - T.mean(axis=0) if self.centre else T
        return np.asarray(self.X.T @ T)  # T sums to nothing, so the means of X drop out

    def solve(self, T: Array) -> tuple[Array, Array]:
        """``W`` (F x L) and the intercept (L) of ``X W + intercept``."""
        offset = T.mean(axis=0) if self.centre else np.zeros(T.shape[1])
        W = self.X.T @ linalg.cho_solve(self.factor, T - offset) if self.wide else self.invert(self.cross(T))
        return W, offset - self.mean @ W

    def invert(self, A: Array) -> Array:
        """``(X'X + penalty)^-1 A`` for ``A`` with a row for each feature; not for wide ``X``."""
        assert not self.wide
        return np.asarray(linalg.cho_solve(self.factor, A))

    def explained(self, T: Array) -> Array:
        """``T' H T`` (L x L), ``H = X (X'X + penalty)^-1 X'`` the hat matrix; ``T`` centred if ``X`` is."""
        T = T - T.mean(axis=0) if self.centre else T
        if self.wide:
            G = self.X @ (self.X.T @ T)
            product = G.T @ linalg.cho_solve(self.factor, T)
        else:
            cross = self.cross(T)
            product = cross.T @ self.invert(cross)
        return np.asarray((product + product.T) / 2)


def leading_eigenvectors(A: Array, count: int) -> tuple[Array, Array]:
    """The ``count`` largest eigenvalues of symmetric ``A``, falling, and their eigenvectors (columns)."""
    n = len(A)
    values, vectors = linalg.eigh(A, subset_by_index=(n - count, n - 1))
    return values[::-1], vectors[:, ::-1]
