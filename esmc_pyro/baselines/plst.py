"""PLST and CPLST: ridge regression onto a linear code of the labels.

Farbound Tai and Hsuan-Tien Lin, Multilabel classification with principal label space transformation (2012).
Yao-Nan Chen and Hsuan-Tien Lin, Feature-aware label space dimension reduction for multi-label classification (2012).
"""

from __future__ import annotations

from typing import Any, ClassVar

from esmc_pyro.baselines.base import COUNT, POSITIVE, Array, Baseline, latent_width
from esmc_pyro.baselines.ridge import Ridge, leading_eigenvectors


class PLST(Baseline):
    """Principal label space transformation: ``Y - mean = Yc ~ Yc V V'``, ``X -> Yc V`` by ridge regression.

    ``V`` (K x L) are the leading eigenvectors of ``Yc'Yc``. Unlabelled rows are ignored.

    Parameters
    ----------
    latent : L; None is a quarter of the labels
    penalty : of the ridge regression
    """

    limits: ClassVar = {"latent": COUNT, "penalty": POSITIVE}

    def __init__(self, latent: int | None = None, penalty: float = 1.0) -> None:
        self.latent = latent
        self.penalty = penalty

    def _kept(self, Yc: Array, ridge: Ridge) -> Array:
        """The K x K matrix whose trace over the code is as large as can be."""
        return Yc.T @ Yc

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        self.mean_ = Y.mean(axis=0)
        Yc = Y - self.mean_
        ridge = Ridge(X, self.penalty)
        self.V_ = leading_eigenvectors(self._kept(Yc, ridge), latent_width(self.latent, Y.shape[1]))[1]
        self.W_, self.offset_ = ridge.solve(Yc @ self.V_)

    def _scores(self, X: Any) -> Array:
        return (X @ self.W_ + self.offset_) @ self.V_.T + self.mean_


class CPLST(PLST):
    """Conditional PLST: the code keeps what the features can explain, ``V`` from ``Yc'H Yc``, ``H`` the hat matrix."""

    def _kept(self, Yc: Array, ridge: Ridge) -> Array:
        return ridge.explained(Yc)
