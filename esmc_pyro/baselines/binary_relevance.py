"""Binary relevance: one logistic regression a label."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from esmc_pyro.baselines.base import COUNT, POSITIVE, Array, Baseline
from esmc_pyro.baselines.ridge import dense, row_space


def log_loss(z: Array, y: Array) -> tuple[Array, Array]:
    """``log(1 + exp(z)) - y z`` summed over rows (K), and ``sigma(z)``."""
    t = np.exp(-np.abs(z))
    loss = np.log(1 + t) + np.maximum(z, 0) - y * z
    return loss.sum(axis=0), np.where(z >= 0, 1, t) / (1 + t)


class BR(Baseline):
    """``min sum log(1 + exp(-(2y - 1)(x'w + b))) + penalty/2 |w|²`` for each label; the intercept b has no penalty.

    All labels at once by Newton's method, each with its own conjugate gradients and step length. Labels without a
    single one, or a single zero, get ``w = 0`` and a smoothed frequency. Unlabelled rows are ignored.

    Parameters
    ----------
    penalty : of the weights
    steps : of Newton's method, at most
    tolerance : on the gradient over the root of the curvature: a label is done when no entry is larger
    """

    limits: ClassVar = {"penalty": POSITIVE, "steps": COUNT, "tolerance": POSITIVE}
    single = True

    def __init__(self, penalty: float = 1.0, steps: int = 20, tolerance: float = 0.03) -> None:
        self.penalty = penalty
        self.steps = steps
        self.tolerance = tolerance

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        N, K = Y.shape
        mean = np.asarray(X.mean(axis=0)).ravel()
        Xc = dense(X) - mean
        # rotated features have no correlations, so Hessians are nearly diagonal; w lies in their span
        V = row_space(Xc) if X.shape[1] > N else linalg.eigh(Xc.T @ Xc)[1]
        A = np.hstack([Xc @ V, np.ones((N, 1), dtype=Xc.dtype)])
        some = np.flatnonzero((Y.sum(axis=0) > 0) & (Y.sum(axis=0) < N))
        w = self._newton(A, Y[:, some])
        self.W_ = np.zeros((X.shape[1], K), dtype=A.dtype)
        self.W_[:, some] = V @ w[:-1]
        smoothed = (Y.sum(axis=0) + 0.5) / (N + 1)
        self.offset_ = np.log(smoothed / (1 - smoothed))
        self.offset_[some] = w[-1]
        self.offset_ -= mean @ self.W_

    def _newton(self, A: Array, Y: Array) -> Array:
        """Weights (columns of A x K), the last one the intercept."""
        ridge = np.full((A.shape[1], 1), self.penalty, dtype=A.dtype)
        ridge[-1] = 0
        squares = (A**2).sum(axis=0)[:, None] / len(A)
        frequency = Y.mean(axis=0)
        w = np.zeros((A.shape[1], Y.shape[1]), dtype=A.dtype)
        w[-1] = np.log(frequency / (1 - frequency))
        active = np.arange(Y.shape[1])  # labels that are not done
        for _ in range(self.steps):
            y = Y[:, active]
            loss, p = log_loss(A @ w[:, active], y)
            loss += (ridge * w[:, active] ** 2).sum(axis=0) / 2
            gradient = A.T @ (p - y) + ridge * w[:, active]
            curvature = p * (1 - p)
            scale = squares * curvature.sum(axis=0) + ridge
            left = (np.abs(gradient) / np.sqrt(scale)).max(axis=0) > self.tolerance
            if not left.any():
                break
            active, y, curvature, loss = active[left], y[:, left], curvature[:, left], loss[left]
            gradient, scale = gradient[:, left], scale[:, left]
            step = self._solve(A, curvature, ridge, -gradient, scale)
            slope, size = (gradient * step).sum(axis=0), np.ones(len(active), dtype=A.dtype)
            for _ in range(20):  # halve the steps of the labels that would not fall
                new = w[:, active] + size * step
                value = log_loss(A @ new, y)[0] + (ridge * new**2).sum(axis=0) / 2
                rises = value > loss + 1e-4 * size * slope + 1e-6 * np.abs(loss)
                if not rises.any():
                    break
                size[rises] /= 2
            w[:, active] = new
        return w

    @staticmethod
    def _solve(A: Array, curvature: Array, ridge: Array, target: Array, scale: Array) -> Array:
        """``(A' diag(curvature) A + ridge)^-1 target`` for each column, by conjugate gradients, to a tenth."""
        x, r = np.zeros_like(target), target
        z = r / scale
        d, rz = z, (r * z).sum(axis=0)
        enough = 0.01 * rz
        for _ in range(20):
            Ad = A.T @ (curvature * (A @ d)) + ridge * d
            step = np.where(rz > enough, rz / np.maximum((d * Ad).sum(axis=0), 1e-30), 0)
            x, r = x + step * d, r - step * Ad
            z = r / scale
            before, rz = rz, (r * z).sum(axis=0)
            if (rz <= enough).all():
                break
            d = z + (rz / np.maximum(before, 1e-30)) * d
        return x

    def _scores(self, X: Any) -> Array:
        return X @ self.W_ + self.offset_
