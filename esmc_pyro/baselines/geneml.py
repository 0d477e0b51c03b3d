"""GenEML: a latent factor model of the labels with an exposure model of the zeros.

Vikas Jain, Nirbhay Modhe and Piyush Rai, Scalable generative models for multi-label learning with missing labels
(2017).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from esmc_pyro.baselines.base import COUNT, POSITIVE, SEED, Array, Baseline, latent_width
from esmc_pyro.baselines.ridge import Ridge, with_constant

BLOCK = 1024  # rows whose L x L systems are held at once


def polya_gamma_mean(s: Array, p: Array) -> Array:
    """``E[omega]`` for ``omega ~ PG(1, s)``: ``tanh(s / 2) / (2 s) = (p - 1/2) / s``, ``p = sigma(s)``; 1/4 at zero."""
    small = np.abs(s) < 1e-4
    return np.where(small, 0.25 - s**2 / 48, (p - 0.5) / np.where(small, 1.0, s))


def exposure(Y: Array, p: Array, mu: Array) -> Array:
    """``E[xi | y]``: 1 where y = 1, ``mu (1 - p) / (1 - mu p)`` where y = 0, with ``p = sigma(s)``."""
    return np.where(Y > 0, 1.0, mu * (1 - p) / (1 - mu * p))


def weighted_least_squares(A: Array, weight: Array, target: Array, penalty: float, centre: Array) -> Array:
    """Rows ``(A' diag(w_i) A + penalty)^-1 (A' t_i + penalty c_i)`` for rows of ``weight``, ``target``, ``centre``."""
    L = A.shape[1]
    lower = np.tril_indices(L)  # the systems are symmetric: half of the products
    place = np.empty((L, L), dtype=np.intp)
    place[lower] = place.T[lower] = np.arange(len(lower[0]))
    columns = np.ascontiguousarray(A.T)
    pairs = (columns[lower[0]] * columns[lower[1]]).T
    right = target @ A + penalty * centre
    found = np.empty_like(right)
    for begin in range(0, len(right), BLOCK):
        rows = slice(begin, begin + BLOCK)
        system = np.take(weight[rows] @ pairs, place, axis=1)
        system[:, np.arange(L), np.arange(L)] += penalty
        found[rows] = np.linalg.solve(system, right[rows][:, :, None])[:, :, 0]
    return found


class GenEML(Baseline):
    """``u_n ~ N(W'x_n, 1/lambda_u)``, ``y_nk ~ Bernoulli(sigma(v_k'u_n))`` if exposed, else 0.

    Exposed is ``xi_nk ~ Bernoulli(mu_k)``. Priors are ``v_k ~ N(0, 1/lambda_v)``, ``W ~ N(0, 1/lambda_w)`` and
    ``mu_k ~ Beta(a, b)``. EM finds the most probable U, V, W and mu: the exposures ``xi`` and the Pólya-Gamma variables
    of the logistic likelihood have closed expectations, and given these every update is weighted least squares. The
    log posterior, both summed out, never falls. X gets a constant column; unknown entries (NaN) are left out. Scores
    are ``v_k'W'x``. Unlabelled rows are ignored.

    Parameters
    ----------
    latent : L; None is a quarter of the labels, 50 at most
    lambda_u, lambda_v, lambda_w : precisions
    a, b : of the Beta prior on exposure, at least 1
    sweeps : of EM, at most
    tolerance : sweeps end when the log posterior rises by less than this share of itself
    random_state : of the start
    """

    limits: ClassVar = {
        "latent": COUNT, "lambda_u": POSITIVE, "lambda_v": POSITIVE, "lambda_w": POSITIVE, "a": {"low": 1},
        "b": {"low": 1}, "sweeps": COUNT, "tolerance": POSITIVE, "random_state": SEED,
    }  # fmt: skip
    takes_unknown = True

    def __init__(
        self, latent: int | None = None, lambda_u: float = 1.0, lambda_v: float = 0.1, lambda_w: float = 0.1,
        a: float = 1.0, b: float = 1.0, sweeps: int = 20, tolerance: float = 1e-4, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.latent = latent
        self.lambda_u = lambda_u
        self.lambda_v = lambda_v
        self.lambda_w = lambda_w
        self.a = a
        self.b = b
        self.sweeps = sweeps
        self.tolerance = tolerance
        self.random_state = random_state

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        known = (~np.isnan(Y)).astype(float)
        Y = np.where(known > 0, Y, 0.0)
        X = with_constant(X)
        ridge = Ridge(X, self.lambda_w / self.lambda_u, centre=False)
        L = latent_width(self.latent, Y.shape[1])
        L = min(50, L) if self.latent is None else L
        frequency = (Y.sum(axis=0) + 0.5) / (known.sum(axis=0) + 1)
        # labels start at their frequencies, told by the first latent dimension, and small differences
        V = 0.1 * np.random.default_rng(self.random_state).standard_normal((Y.shape[1], L))
        V[:, 0] = np.log(frequency / (1 - frequency)) / 2
        W = np.zeros((X.shape[1], L))
        W[-1, 0] = 2.0
        U, mu = X @ W, np.full(Y.shape[1], 0.9)
        s = U @ V.T
        p = expit(s)
        self.objectives_ = [self._log_posterior(X, Y, known, p, U, V, W, mu)]
        for _ in range(self.sweeps):
            for side in ("U", "V"):
                exposed = known * exposure(Y, p, mu)
                weight, target = exposed * polya_gamma_mean(s, p), exposed * (Y - 0.5)
                if side == "U":
                    U = weighted_least_squares(V, weight, target, self.lambda_u, X @ W)
                    W = ridge.solve(U)[0]
                else:
                    V = weighted_least_squares(U, weight.T, target.T, self.lambda_v, np.zeros_like(V))
                s = U @ V.T
                p = expit(s)
            exposed = known * exposure(Y, p, mu)
            mu = (self.a - 1 + exposed.sum(axis=0)) / np.maximum(self.a + self.b - 2 + known.sum(axis=0), 1e-12)
            mu = np.clip(mu, 1e-10, 1 - 1e-10)
            self.objectives_.append(self._log_posterior(X, Y, known, p, U, V, W, mu))
            if self.objectives_[-1] - self.objectives_[-2] <= self.tolerance * abs(self.objectives_[-1]):
                break
        self.U_, self.V_, self.W_, self.mu_ = U, V, W, mu

    def _log_posterior(
        self, X: Any, Y: Array, known: Array, p: Array, U: Array, V: Array, W: Array, mu: Array
    ) -> float:
        """``log p(y, U, V, W, mu)`` but for constants; ``p`` is ``sigma(U V')``."""
        shown = mu * p
        each = np.log(np.where(Y > 0, shown, 1 - shown))
        prior = (self.a - 1) * np.log(mu) + (self.b - 1) * np.log1p(-mu)
        squares = self.lambda_u * ((U - X @ W) ** 2).sum() + self.lambda_v * (V**2).sum() + self.lambda_w * (W**2).sum()
        return float((known * each).sum() + prior.sum() - squares / 2)

    def _scores(self, X: Any) -> Array:
        return (with_constant(X) @ self.W_) @ self.V_.T
