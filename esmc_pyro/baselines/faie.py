"""FaIE: an implicit code of the labels that features can predict.

Zijia Lin, Guiguang Ding, Mingqing Hu and Jianmin Wang, Multi-label classification via feature-aware implicit label
space encoding (2014).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from sklearn.metrics.pairwise import euclidean_distances

from esmc_pyro.baselines.base import COUNT, POSITIVE, SEED, Array, Baseline, latent_width
from esmc_pyro.baselines.ridge import dense, leading_eigenvectors


class FaIE(Baseline):
    """``max tr C'(Y Y' + alpha H) C`` over ``C`` (N x L) with ``C'C = 1``; decoder ``C'Y``; kernel ridge ``X -> C``.

    ``H = G (G + penalty)^-1`` is the hat matrix of kernel ridge regression, ``G`` (N x N) the RBF kernel whose width is
    ``width`` mean distances between rows. Above ``landmarks`` rows, ``G`` is Nyström's ``Phi Phi'`` on so many of them;
    up to that it is exact. With ``H = U diag(h) U'``, ``Y Y' + alpha H = B B'`` for ``B = [Y, sqrt(alpha h) U]``, so no
    N x N matrix is needed. Unlabelled rows are ignored.

    Parameters
    ----------
    latent : L; None is a quarter of the labels
    alpha : weight of what the features can predict
    penalty : of the kernel ridge regression
    width : of the kernel, in mean distances
    landmarks : rows of the Nyström approximation
    random_state : draws the landmarks
    """

    limits: ClassVar = {
        "latent": COUNT, "alpha": POSITIVE, "penalty": POSITIVE, "width": POSITIVE, "landmarks": COUNT,
        "random_state": SEED,
    }  # fmt: skip

    def __init__(
        self, latent: int | None = None, alpha: float = 10.0, penalty: float = 0.1, width: float = 2.0,
        landmarks: int = 1000, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.latent = latent
        self.alpha = alpha
        self.penalty = penalty
        self.width = width
        self.landmarks = landmarks
        self.random_state = random_state

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        rows = np.random.default_rng(self.random_state).permutation(len(Y))[: self.landmarks]
        self.landmarks_ = dense(X[rows])
        some = euclidean_distances(self.landmarks_[:1000])
        mean = some.sum() / max(1, len(some) * (len(some) - 1))
        self.scale_ = self.width * mean if mean > 0 else 1.0
        values, vectors = linalg.eigh(self._kernel(self.landmarks_))
        real = values > 1e-10 * values[-1]
        self.whitening_ = vectors[:, real] / np.sqrt(values[real])
        Phi = self._map(X)
        s, P = linalg.eigh(Phi.T @ Phi)
        s = np.maximum(s, 0)
        # sqrt(h) U = Phi P / sqrt(s + penalty)
        B = np.hstack([Y, np.sqrt(self.alpha) * (Phi @ (P / np.sqrt(s + self.penalty)))])
        L = min(latent_width(self.latent, Y.shape[1]), *B.shape)
        kept, vectors = leading_eigenvectors(B.T @ B, L)
        real = kept > 1e-10 * kept[0]
        self.C_ = B @ (vectors[:, real] / np.sqrt(kept[real]))
        self.decoder_ = self.C_.T @ Y
        self.theta_ = (P / (s + self.penalty)) @ (P.T @ (Phi.T @ self.C_))

    def _kernel(self, X: Any) -> Array:
        return np.exp(-euclidean_distances(X, self.landmarks_, squared=True) / (2 * self.scale_**2))

    def _map(self, X: Any) -> Array:
        """``Phi`` (rows x R), Nyström features of the kernel."""
        return self._kernel(X) @ self.whitening_

    def _scores(self, X: Any) -> Array:
        return self._map(X) @ (self.theta_ @ self.decoder_)
