"""SLRM: a low-rank map from features to labels, smooth over labelled and unlabelled rows.

Liping Jing, Liu Yang, Jian Yu and Michael Ng, Semi-supervised low-rank mapping learning for multi-label classification
(2015).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg, sparse
from sklearn.neighbors import kneighbors_graph

from esmc_pyro.baselines.base import COUNT, NOT_NEGATIVE, POSITIVE, Array, Baseline
from esmc_pyro.baselines.ridge import dense, row_space
from esmc_pyro.frames import stack


def laplacian(X: Any, neighbours: int) -> sparse.csr_array:
    """``L = D - A`` of the graph that joins each row to its nearest ones, ``A = (G + G') / 2`` of 0, 1/2 and 1."""
    G = sparse.csr_array(kneighbors_graph(X, min(neighbours, X.shape[0] - 1)))
    A = (G + G.T) / 2
    return sparse.csr_array(sparse.diags_array(np.asarray(A.sum(axis=1)).ravel()) - A)


def shrink_singular_values(A: Array, by: float) -> Array:
    """``argmin_Z by |Z|_* + 1/2 |Z - A|²``: each singular value less ``by``, none below zero."""
    if A.shape[0] > A.shape[1]:
        return shrink_singular_values(A.T, by).T
    values, U = linalg.eigh(A @ A.T)  # a Gram matrix of the short side is cheaper than singular vectors of both
    singular = np.sqrt(np.maximum(values, 0))
    kept = singular > by
    U = U[:, kept]
    return np.asarray((U * (1 - by / singular[kept])) @ (U.T @ A))


class SLRM(Baseline):
    """``min_W 1/2 |X W - Y|² + penalty |W|_* + gamma/2 tr(W'X'L X W)``, by ADMM.

    The loss is over labelled rows, with ``X`` and ``Y`` less their means there, which stand for an intercept; the
    Laplacian ``L`` is over labelled and unlabelled rows, and does not see the intercept. ADMM splits ``W = Z``::

        W = (X'X + gamma X'L X + rho)^-1 (X'Y + rho (Z - U))     Z = shrink(W + U, penalty / rho)     U += W - Z

    Parameters
    ----------
    penalty : of the nuclear norm
    gamma : weight of smoothness
    neighbours : of each row in the graph
    steps : of ADMM, at most
    tolerance : ADMM ends when its primal and dual residuals are this small, relative to ``Z`` and ``U``
    """

    limits: ClassVar = {
        "penalty": NOT_NEGATIVE, "gamma": NOT_NEGATIVE, "neighbours": COUNT, "steps": COUNT, "tolerance": POSITIVE,
    }  # fmt: skip
    uses_unlabeled = True

    def __init__(
        self, penalty: float = 1.0, gamma: float = 0.1, neighbours: int = 10, steps: int = 200, tolerance: float = 1e-3
    ) -> None:
        self.penalty = penalty
        self.gamma = gamma
        self.neighbours = neighbours
        self.steps = steps
        self.tolerance = tolerance

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        N = len(Y)
        rows = X if X_unlabeled is None else stack(X, X_unlabeled)
        V = None
        if rows.shape[0] < rows.shape[1]:
            V = row_space(dense(rows))  # the best W lies in the span of the rows
            X, rows = X @ V, rows @ V
        mean, self.mean_ = np.asarray(X.mean(axis=0)).ravel(), Y.mean(axis=0)
        gram = dense(X.T @ X) - N * np.outer(mean, mean)
        cross = np.asarray(X.T @ (Y - self.mean_))
        A = gram
        if self.gamma and rows.shape[0] > 1:
            A = gram + self.gamma * dense(rows.T @ (laplacian(rows, self.neighbours) @ rows))
        values, vectors = linalg.eigh((A + A.T) / 2)
        values = np.maximum(values, 0)
        self.W_, self.steps_ = self._admm(values, vectors, cross)
        self.offset_ = self.mean_ - mean @ self.W_
        if V is not None:
            self.W_ = V @ self.W_

    def _admm(self, values: Array, vectors: Array, cross: Array) -> tuple[Array, int]:
        """``Z`` and the steps taken."""
        rho = max(float(np.sqrt(values[-1] * max(values[0], 1e-4 * values[-1]))), 1e-8)
        cross = vectors.T @ cross  # all in the eigenvectors' coordinates, where the W step is a division
        Z, U = np.zeros_like(cross), np.zeros_like(cross)
        for step in range(1, self.steps + 1):
            W = (cross + rho * (Z - U)) / (values + rho)[:, None]
            before = Z
            Z = shrink_singular_values(W + U, self.penalty / rho)
            U = U + W - Z
            primal, dual = np.linalg.norm(W - Z), np.linalg.norm(Z - before)
            size, pull = max(np.linalg.norm(W), np.linalg.norm(Z)), np.linalg.norm(U)
            if primal <= self.tolerance * size and dual <= self.tolerance * pull:
                break
            if step % 10 == 0 and step <= self.steps // 2:  # keep both residuals alike; later steps let it converge
                imbalance = (primal * pull + 1e-30) / (dual * size + 1e-30)
                factor = float(np.clip(np.sqrt(imbalance), 0.2, 5))
                rho, U = rho * factor, U / factor
        return vectors @ Z, step

    def _scores(self, X: Any) -> Array:
        return X @ self.W_ + self.offset_
