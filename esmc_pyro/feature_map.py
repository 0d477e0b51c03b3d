"""Feature maps: the scale on which distances between instances mean something, chosen by looking at training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from torch import Tensor

from esmc_pyro.validation import check_choice

KINDS = ("identity", "standard", "hellinger", "unit")
DENSE_LIMIT = 2**28  # numbers in a dense copy of sparse features; wider ones are projected
PROJECTED = 512


def choose_kind(X: Any) -> str:
    """What the columns look like: ``unit`` for words, ``hellinger`` for counts and histograms, else ``standard``.

    Words are 0 or 1, or sparse and not negative; counts are whole numbers that are not negative; histograms are not
    negative and have rows of equal sums.
    """
    values = X.data if sparse.issparse(X) else np.asarray(X)
    if values.size == 0 or values.min() < 0:
        return "standard"
    if sparse.issparse(X) or np.isin(values, (0, 1)).all():
        return "unit"
    sums = values.sum(axis=1)
    if (values == np.round(values)).all() or (sums.mean() > 0 and np.ptp(sums) < 1e-3 * sums.mean()):
        return "hellinger"
    return "standard"


def candidate_kinds(X: Any, kind: str = "auto") -> tuple[str, ...]:
    """The kinds worth comparing on held-out rows: continuous features may already share a scale, the others speak for
    themselves. A kind that is named is the only one.
    """
    check_choice(kind, ("auto", *KINDS), "features")
    chosen = choose_kind(X) if kind == "auto" else kind
    return ("standard", "identity") if kind == "auto" and chosen == "standard" else (chosen,)


@dataclass
class FeatureMap:
    """``identity``; ``standard``: less the mean, over the standard deviation; ``hellinger``: the square root of each
    row's shares; ``unit``: rows of length one. ``projection`` (F x 512) stands before the rest where sparse features are
    too wide to be held densely.
    """

    kind: str
    mean: npt.NDArray[np.float32] | None = None
    scale: npt.NDArray[np.float32] | None = None
    projection: npt.NDArray[np.float32] | None = None

    @classmethod
    def from_data(cls, X: Any, kind: str = "auto", seed: int = 0) -> FeatureMap:
        """The map for these training rows; ``kind="auto"`` looks at them."""
        check_choice(kind, ("auto", *KINDS), "features")
        kind = choose_kind(X) if kind == "auto" else kind
        made = cls(kind)
        if sparse.issparse(X) and X.shape[0] * X.shape[1] > DENSE_LIMIT:
            width = min(PROJECTED, min(X.shape) - 1)
            svd = TruncatedSVD(width, random_state=seed).fit(_unit_rows(X) if kind == "unit" else X)
            made.projection = svd.components_.T.astype(np.float32)
        if kind == "standard":
            dense = made._dense(X)
            made.mean = dense.mean(axis=0)
            spread = dense.std(axis=0)
            made.scale = np.where(spread > 1e-6 * max(1.0, float(np.abs(made.mean).max())), spread, 1.0).astype(
                np.float32
            )
        return made

    def _dense(self, X: Any) -> npt.NDArray[Any]:
        if self.projection is not None:
            return np.asarray((_unit_rows(X) if self.kind == "unit" else X) @ self.projection, dtype=np.float32)
        dense = X.toarray() if sparse.issparse(X) else np.asarray(X)
        return dense if dense.dtype == np.float32 else dense.astype(np.float32)

    def __call__(self, X: Any) -> Tensor:
        """The mapped rows, a float32 tensor: rows x F (or rows x 512 where projected)."""
        dense = self._dense(X)
        if self.kind == "standard":
            dense = (dense - self.mean) / self.scale
        elif self.kind == "hellinger":
            positive = np.maximum(dense, 0)
            dense = np.sqrt(positive / np.maximum(positive.sum(axis=1, keepdims=True), 1e-12))
        elif self.kind == "unit":
            dense = dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-12)
        return torch.as_tensor(np.ascontiguousarray(dense, dtype=np.float32))


def _unit_rows(X: Any) -> Any:
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel()) if sparse.issparse(X) else np.linalg.norm(X, axis=1)
    inverse = 1 / np.maximum(norms, 1e-12)
    return sparse.diags_array(inverse) @ X if sparse.issparse(X) else X * inverse[:, None]
