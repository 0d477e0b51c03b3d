"""LEML: empirical risk minimisation with a factorised low-rank map.

Hsiang-Fu Yu, Prateek Jain, Purushottam Kar and Inderjit Dhillon, Large-scale multi-label learning with missing labels
(2014).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from scipy.special import expit

from esmc_pyro.baselines.base import COUNT, POSITIVE, Array, Baseline, latent_width
from esmc_pyro.baselines.ridge import dense, leading_eigenvectors, with_constant
from esmc_pyro.frames import is_sparse

Map = Callable[[Array], Array]


def conjugate_gradients(product: Map, target: Array, precondition: Map, steps: int, tolerance: float) -> Array:
    """``x`` with ``product(x) = target``, from zero, until the residual is ``tolerance`` of the target's size."""
    x = np.zeros_like(target)
    r = target.copy()
    z = precondition(r)
    d, rz, enough = z, float((r * z).sum()), tolerance * np.linalg.norm(target)
    for _ in range(steps):
        if np.linalg.norm(r) <= enough or rz <= 0:
            break
        Ad = product(d)
        step = rz / float((d * Ad).sum())
        x += step * d
        r -= step * Ad
        z = precondition(r)
        before, rz = rz, float((r * z).sum())
        d = z + (rz / before) * d
    return x


class LEML(Baseline):
    """``min sum over known entries of loss(y, x'W h) + penalty/2 (|W|² + |H|²)``, ``W`` (F x L), ``H`` (K x L).

    ``squared``: ``1/2 (y - m)²``; ``logistic``: ``log(1 + exp(-(2y - 1) m))``. ``W`` and ``H`` take turns; each turn is
    a Newton step whose system conjugate gradients solve, exact for the squared loss, halved while the objective would
    rise for the logistic one. X gets a constant column and may be sparse; unknown entries (NaN) are left out.
    Unlabelled rows are ignored.

    Parameters
    ----------
    latent : L; None is a quarter of the labels
    penalty : of both factors
    loss : "squared" or "logistic"
    sweeps : turns of both, at most
    steps : of conjugate gradients in a turn, at most
    tolerance : sweeps end when the objective falls by less than this share of itself
    """

    limits: ClassVar = {"latent": COUNT, "penalty": POSITIVE, "sweeps": COUNT, "steps": COUNT, "tolerance": POSITIVE}
    choices: ClassVar = {"loss": ("squared", "logistic")}
    takes_unknown = True

    def __init__(
        self, latent: int | None = None, penalty: float = 1.0, loss: str = "squared", sweeps: int = 30,
        steps: int = 20, tolerance: float = 1e-4,
    ) -> None:  # fmt: skip
        self.latent = latent
        self.penalty = penalty
        self.loss = loss
        self.sweeps = sweeps
        self.steps = steps
        self.tolerance = tolerance

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        known = ~np.isnan(Y)
        Y = np.where(known, Y, 0.0)
        X = with_constant(X)
        self._X, self._Y, self._known, self._rest = X, Y, None if known.all() else known.astype(float), 0.0
        V = None
        if self.loss == "squared" and self._known is None and X.shape[0] > X.shape[1]:
            # |Y - X Z|² = |T - R Z|² + rest with R = S^(1/2) V' and X'X = V S V': as few rows as features
            values, V = linalg.eigh(dense(X.T @ X))
            root = np.sqrt(np.maximum(values, 1e-12 * values[-1]))
            T = (V.T @ np.asarray(X.T @ Y)) / root[:, None]
            self._X, self._Y = np.diag(root), T
            self._rest = 0.5 * float((Y**2).sum() - (T**2).sum())
        L = latent_width(self.latent, Y.shape[1])
        H = leading_eigenvectors(Y.T @ Y, L)[1]
        W = np.zeros((X.shape[1], L))
        self.objectives_ = [self._objective(W, H)]
        for _ in range(self.sweeps):
            # a rotation of both factors changes nothing but makes H'H diagonal, as the preconditioner would have it
            rotation = linalg.eigh(H.T @ H)[1]
            W, H = W @ rotation, H @ rotation
            W = self._turn(W, partial(self._objective, H=H), *self._for_W(W, H))
            H = self._turn(H, partial(self._objective, W), *self._for_H(W, H))
            self.objectives_.append(self._objective(W, H))
            if self.objectives_[-2] - self.objectives_[-1] <= self.tolerance * self.objectives_[-1]:
                break
        self.W_, self.H_ = W if V is None else V @ W, H
        del self._X, self._Y, self._known, self._rest  # the data are not part of what was fitted

    def _turn(
        self, start: Array, objective: Callable[[Array], float], gradient: Array, product: Map, scale: Array
    ) -> Array:
        """One Newton step from ``start``."""
        step = conjugate_gradients(product, -gradient, lambda r: r / scale, self.steps, 1e-3)
        if self.loss == "squared":
            return start + step
        before, slope, size = objective(start), float((gradient * step).sum()), 1.0
        while objective(start + size * step) > before + 1e-4 * size * slope:
            size /= 2
            if size < 1e-6:
                return start
        return start + size * step

    def _objective(self, W: Array, H: Array) -> float:
        M = (self._X @ W) @ H.T
        each = (M - self._Y) ** 2 / 2 if self.loss == "squared" else np.logaddexp(0, M) - self._Y * M
        total = each.sum() if self._known is None else (self._known * each).sum()
        return self._rest + float(total) + self.penalty / 2 * float((W**2).sum() + (H**2).sum())

    def _slopes(self, M: Array) -> tuple[Array, Array | None]:
        """First and second derivatives of the loss at ``M`` (N x K); None for second ones that are all 1."""
        if self.loss == "squared":
            first, second = M - self._Y, self._known
        else:
            p = expit(M)
            first, second = p - self._Y, p * (1 - p)
            if self._known is not None:
                second = second * self._known
        return first if self._known is None else first * self._known, second

    def _for_W(self, W: Array, H: Array) -> tuple[Array, Map, Array]:
        """Gradient, product with the Hessian, and the Hessian's diagonal (about) at ``W``."""
        X, penalty = self._X, self.penalty
        first, second = self._slopes((X @ W) @ H.T)
        gradient = X.T @ (first @ H) + penalty * W
        HH = H.T @ H

        def product(S: Array) -> Array:
            XS = X @ S
            return X.T @ (XS @ HH if second is None else (second * (XS @ H.T)) @ H) + penalty * S

        squares = np.asarray((X.multiply(X) if is_sparse(X) else X**2).sum(axis=0)).ravel()
        scale = np.outer(squares, np.diag(HH)) * (1.0 if second is None else second.mean()) + penalty
        return gradient, product, scale

    def _for_H(self, W: Array, H: Array) -> tuple[Array, Map, Array]:
        """The same at ``H``."""
        A, penalty = self._X @ W, self.penalty
        first, second = self._slopes(A @ H.T)
        gradient = first.T @ A + penalty * H
        AA = A.T @ A

        def product(S: Array) -> Array:
            return (S @ AA if second is None else (second * (A @ S.T)).T @ A) + penalty * S

        share = np.ones(len(H)) if second is None else second.mean(axis=0)
        return gradient, product, np.outer(share, np.diag(AA)) + penalty

    def _scores(self, X: Any) -> Array:
        return (with_constant(X) @ self.W_) @ self.H_.T
