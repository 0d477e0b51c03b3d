"""FastTag: labels completed by a denoising map, learned together with a map from the features.

Minmin Chen, Alice Zheng and Kilian Weinberger, Fast image tagging (2013).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from esmc_pyro.baselines.base import COUNT, POSITIVE, Array, Baseline
from esmc_pyro.baselines.ridge import Ridge, with_constant


def corruption_moments(S: Array, p: float) -> tuple[Array, Array]:
    """``P = E[Y'Y~]`` and ``Q = E[Y~'Y~]`` when each entry of Y is lost with probability ``p``, from ``S = Y'Y``.

    The last column of Y is constant and never lost. With ``q = 1 - p``, and 1 for the constant: ``P_ij = S_ij q_j``,
    ``Q_ij = S_ij q_i q_j``, ``Q_ii = S_ii q_i``.
    """
    q = np.full(len(S), 1 - p)
    q[-1] = 1
    Q = S * np.outer(q, q)
    np.fill_diagonal(Q, np.diag(S) * q)
    return S * q, Q


class FastTag(Baseline):
    """``min |B Y' - W X'|² + beta |W|² + alpha E|Y' - B Y~'|²``, ``Y~`` with ones lost at random, marginalised.

    ``B`` (K x (K + 1)) completes labels, with a bias; ``W`` (K x F) predicts the completed ones. The minimum over both
    is one linear system: with ``W = B Y'X (X'X + beta)^-1`` put in, ``R = Y'X (X'X + beta)^-1 X'Y`` and the moments
    ``P``, ``Q`` of ``corruption_moments``, ``B = alpha P (alpha Q + S - R)^-1``, the fixed point of the alternation
    ``B = (alpha P + W X'Y)(alpha Q + S)^-1``. Layers are stacked: the next one takes ``tanh(B Y')`` for ``Y``. Scores
    are ``W x`` of the last. X gets a constant column. Unlabelled rows are ignored.

    Parameters
    ----------
    alpha : weight of the denoising loss
    beta : penalty of W
    p : probability that an entry is lost
    layers : how many are stacked
    """

    limits: ClassVar = {"alpha": POSITIVE, "beta": POSITIVE, "layers": COUNT}

    def __init__(self, alpha: float = 1.0, beta: float = 1.0, p: float = 0.5, layers: int = 2) -> None:
        self.alpha = alpha
        self.beta = beta
        self.p = p
        self.layers = layers

    def _check_settings(self) -> None:
        super()._check_settings()
        if not 0 <= self.p < 1:
            raise ValueError(f"p must be a probability of at least 0 and below 1; got {self.p!r}")

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        ridge = Ridge(with_constant(X), self.beta, centre=False)
        ones = np.ones((len(Y), 1))
        self.B_: list[Array] = []
        T = Y
        for _ in range(self.layers):
            T1 = np.hstack([T, ones])
            S = T1.T @ T1
            P, Q = corruption_moments(S, self.p)
            system = self.alpha * Q + S - ridge.explained(T1)
            system[np.diag_indices_from(system)] += 1e-8 * np.trace(system) / len(system)  # labels that never occur
            B = self.alpha * linalg.solve(system, P[:-1].T, assume_a="pos").T
            self.B_.append(B)
            completed = T1 @ B.T
            T = np.tanh(completed)
        self.W_ = ridge.solve(completed)[0]

    def _scores(self, X: Any) -> Array:
        return with_constant(X) @ self.W_
