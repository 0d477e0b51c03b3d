"""Weighted nearest neighbours."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.neighbors import NearestNeighbors

from esmc_pyro.baselines.base import COUNT, POSITIVE, Array, Baseline


class KNN(Baseline):
    """Scores ``sum_j w_j y_j / sum_j w_j`` over the nearest rows, ``w_j = exp(-(d_j / (width mean))² / 2)``.

    The mean distance is over the neighbours of training rows. Labels that no neighbour has are ranked by their
    frequency. Unlabelled rows are ignored.

    Parameters
    ----------
    neighbours : how many
    width : of the weights, in mean distances to a neighbour
    """

    limits: ClassVar = {"neighbours": COUNT, "width": POSITIVE}

    def __init__(self, neighbours: int = 50, width: float = 0.4) -> None:
        self.neighbours = neighbours
        self.width = width

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        self.Y_, self.frequency_ = Y, Y.mean(axis=0)
        self.index_ = NearestNeighbors(n_neighbors=min(self.neighbours, len(Y)), algorithm="brute").fit(X)
        some = np.random.default_rng(0).permutation(len(Y))[:1000]
        self.distance_ = max(float(self.index_.kneighbors(X[some])[0].mean()), 1e-12)

    def _scores(self, X: Any) -> Array:
        distance, rows = self.index_.kneighbors(X)
        squares = (distance / (self.width * self.distance_)) ** 2 / 2
        weight = np.exp(squares.min(axis=1, keepdims=True) - squares)  # the nearest weighs one: no row is all zeros
        weight /= weight.sum(axis=1, keepdims=True)
        scores = np.stack([w @ self.Y_[r] for w, r in zip(weight, rows, strict=True)])
        return scores + 1e-6 * self.frequency_
