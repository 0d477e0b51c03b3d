"""Feature maps: the scale on which distances between instances mean something, chosen by looking at training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.special import ndtri
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from esmc_pyro.frames import is_sparse
from esmc_pyro.validation import check_choice

KINDS = ("identity", "standard", "quantile", "hellinger", "unit")
DENSE_LIMIT = 2**28  # numbers in a dense copy of sparse features; wider ones are projected
WIDE = 4096  # more words or shares than these are projected, which rcv1-sub1 likes (benchmarks/results/choices.md)
PROJECTED = 512
QUANTILES = 200  # of each column
WORDS = 0.25  # weights of words are zero but for at most this share of their entries
COUNTS = 0.5  # and counts but for this one: ages and marks are whole numbers too, without being counts
EVERYWHERE = 0.9  # a column that this share of the rows fill is measured in every row
FEW = 32  # of so many counts, their total may say more than their shares
NEVER = 3e38  # the scale of a column that does not vary: should it ever, that says nothing
FARTHEST = 1e6  # standard deviations from the mean at most: what goes beyond float32 is no number


def choose_kind(X: Any) -> str:
    """What the columns look like: ``unit`` for words, ``hellinger`` for counts and histograms, else ``standard``.

    Words are 0 or 1, or not negative and zero but for ``WORDS``; counts are whole numbers that are not negative, and
    zero but for ``COUNTS``; unless a few columns drown the others (``_is_drowned``). Histograms are not negative and
    have rows of equal sums. The values decide, not whether they are kept in a sparse matrix.
    """
    values = _values(X)
    if (values < 0).any():
        return "standard"
    if ((values == 0) | (values == 1)).all():
        return "unit"
    if _has_equal_sums(X):
        return "hellinger"
    filled = _filled(X)
    if filled.mean() > COUNTS or _is_drowned(X, filled):
        return "standard"
    if _is_whole(values):
        return "hellinger"
    return "unit" if filled.mean() <= WORDS else "standard"


def candidate_kinds(X: Any, kind: str = "auto") -> tuple[str, ...]:
    """The kinds worth comparing on held-out rows: continuous features may already share a scale, or be better ranked,
    whole numbers may be counts, what is mostly zero may be words, and few shares may say less than what they are shares
    of; the others speak for themselves. A kind that is named is the only one.
    """
    check_choice(kind, ("auto", *KINDS), "features")
    chosen = choose_kind(X) if kind == "auto" else kind
    if kind == "auto" and chosen == "hellinger" and X.shape[1] <= FEW:
        return ("hellinger", "standard")
    if kind != "auto" or chosen != "standard":
        return (chosen,)
    values = _values(X)
    positive = X.shape[1] > 1 and not (values < 0).any()
    counts = ("hellinger",) if positive and _is_whole(values) else ()
    words = ("unit",) if positive and _filled(X).mean() <= WORDS else ()
    return ("standard", "identity", "quantile", *counts, *words)


def is_large(X: Any) -> bool:
    """Whether features are sparse and too many to be held densely."""
    return is_sparse(X) and X.shape[0] * X.shape[1] > DENSE_LIMIT


def is_wide(X: Any, kind: str) -> bool:
    """Whether features of this kind are projected: large ones (``is_large``) always, and more than ``WIDE`` words or
    shares (kinds ``unit`` and ``hellinger``) of more than ``PROJECTED`` rows. Fewer rows do not know the directions.
    """
    return is_large(X) or (kind in ("unit", "hellinger") and X.shape[1] > WIDE and X.shape[0] > PROJECTED)


@dataclass
class FeatureMap:
    """``identity``; ``standard``: less the mean, over the standard deviation; ``quantile``: the normal quantile of the
    share of training rows below; ``hellinger``: the square root of each row's shares; ``unit``: rows of length one.

    ``projection`` (F x ``PROJECTED`` at most, the leading singular vectors) is for features that are wide
    (``is_wide``): after the shares and lengths of rows, before what is done to columns. ``weights`` multiply the
    columns last: how much each says about the labels (``relevance.feature_weights``), None where all count alike.
    """

    kind: str
    mean: npt.NDArray[np.floating] | None = None
    scale: npt.NDArray[np.floating] | None = None
    quantiles: npt.NDArray[np.floating] | None = None
    projection: npt.NDArray[np.float32] | None = None
    weights: npt.NDArray[np.float32] | None = None

    @classmethod
    def from_data(cls, X: Any, kind: str = "auto", seed: int = 0, *, project: bool | None = None) -> FeatureMap:
        """The map for these training rows; ``kind="auto"`` looks at them.

        ``project``: whether features are projected, None where they are wide. For some of the rows it says what is done
        with all of them.
        """
        check_choice(kind, ("auto", *KINDS), "features")
        made = cls(choose_kind(X) if kind == "auto" else kind)
        if is_wide(X, made.kind) if project is None else project:
            X = _thin(X)
            width = min(PROJECTED, *X.shape)
            with threadpool_limits(1):  # the same directions to the last bit on any machine's threads, for checkpoints
                directions = randomized_svd(made._rows(X), width, n_iter=5, random_state=seed)[2]
            made.projection = directions.T.astype(np.float32)
        if made.kind == "quantile":
            dense = made._dense(X)
            flat = np.linspace(-1e30, 1e30, QUANTILES)[:, None]  # every value is in the middle of it
            varies = _moments(dense)[2]
            made.quantiles = np.where(varies, np.quantile(dense, _shares(QUANTILES), axis=0), flat).astype(dense.dtype)
        if made.kind == "standard":
            dense = made._dense(X)
            mean, spread, varies = _moments(dense)
            made.mean = mean.astype(dense.dtype)
            made.scale = np.where(varies, spread, NEVER).astype(dense.dtype)
        return made

    @property
    def is_double(self) -> bool:
        """Whether columns are centred or ranked in double, as the training rows were (``precision.to_single``)."""
        fitted = self.mean if self.quantiles is None else self.quantiles
        return fitted is not None and fitted.dtype == np.float64

    def __str__(self) -> str:
        """The kind, and what else is done: ``unit, projected to 512, weighted``."""
        projected = "" if self.projection is None else f", projected to {self.projection.shape[1]}"
        return self.kind + projected + ("" if self.weights is None else ", weighted")

    def _rows(self, X: Any) -> Any:
        """What the kind does to each row by itself; zeros stay zeros, so sparse rows stay sparse."""
        if self.kind == "hellinger":
            positive = X.maximum(0) if is_sparse(X) else np.maximum(X, 0)
            shares = _scale_rows(positive, np.asarray(positive.sum(axis=1)).ravel())
            return shares.sqrt() if is_sparse(shares) else np.sqrt(shares)
        return _scale_rows(X, _norms(X)) if self.kind == "unit" else X

    def _dense(self, X: Any) -> npt.NDArray[Any]:
        rows = self._rows(X if self.projection is None else _thin(X))
        if self.projection is not None:
            rows = np.asarray(rows @ self.projection)
            if self.kind == "unit":
                rows = _scale_rows(rows, _norms(rows))
        is_fitted = self.mean is not None or self.quantiles is not None
        kept = self.is_double if is_fitted else self.kind in ("standard", "quantile")
        double = kept and rows.dtype == np.float64 and self.projection is None
        return np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64 if double else np.float32)

    def __call__(self, X: Any) -> Tensor:
        """The mapped rows, a float32 tensor: rows x F, or x what they are projected to."""
        dense = self._dense(X)
        if self.mean is not None and self.scale is not None:
            with np.errstate(over="ignore"):
                dense = ((dense - self.mean) / self.scale).clip(-FARTHEST, FARTHEST)
        if self.quantiles is not None:
            dense = _scores(dense, self.quantiles)
        if self.weights is not None:
            dense = dense * self.weights
        # a copy where nothing was done: the model must not share memory with the caller's array
        return torch.as_tensor(np.array(dense, dtype=np.float32, order="C", copy=dense is X or None))


def _values(X: Any) -> npt.NDArray[Any]:
    """Its entries, of a sparse matrix those that it keeps."""
    return np.asarray(X.data if is_sparse(X) else X)


def _filled(X: Any) -> npt.NDArray[np.float64]:
    """The share of rows in which each column is not zero."""
    return np.asarray((X != 0).sum(axis=0)).ravel() / X.shape[0]


def _is_drowned(X: Any, filled: npt.NDArray[np.float64]) -> bool:
    """Whether one column, or those that ``EVERYWHERE`` rows fill, make more than half of the sum of all: an income
    beside one-hots is measured, not counted. Of more than ``WIDE`` columns none does.
    """
    sums = np.asarray(X.sum(axis=0, dtype=np.float64)).ravel()
    return X.shape[1] <= WIDE and bool(max(sums.max(), sums[filled > EVERYWHERE].sum()) > sums.sum() / 2)


def _has_equal_sums(X: Any) -> bool:
    """Whether rows have equal sums, and not only because no column varies much: those of independent columns would
    differ more.
    """
    sums = np.asarray(X.sum(axis=1, dtype=np.float64)).ravel()
    if not np.ptp(sums) < 1e-3 * sums.mean():
        return False
    return bool(sums.std() <= 0.1 * np.sqrt(_variances(X).sum()))


def _variances(X: Any) -> npt.NDArray[np.float64]:
    """Of columns, which are centred before they are squared: of unix times nothing else would be left."""
    if not is_sparse(X):
        return np.asarray(X.var(axis=0, dtype=np.float64))
    rows, kept = X.shape[0], X.tocoo()
    means = np.asarray(X.sum(axis=0, dtype=np.float64)).ravel() / rows
    counts = np.bincount(kept.col, minlength=len(means))
    squares = np.bincount(kept.col, (kept.data - means[kept.col]) ** 2, minlength=len(means))
    return (squares + (rows - counts) * means**2) / rows


def _is_whole(values: npt.NDArray[Any]) -> bool:
    return bool((values == np.round(values)).all())


def _thin(X: Any) -> Any:
    """A sparse copy of what is mostly zero: its products are quicker."""
    return sparse.csr_array(X) if not is_sparse(X) and np.count_nonzero(X) <= WORDS * X.size else X


def _moments(X: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Mean and deviation of columns, and whether they vary by more than their precision can tell from their mean."""
    mean, spread = X.mean(axis=0, dtype=np.float64), X.std(axis=0, dtype=np.float64)
    return mean, spread, spread > (2e-7 if X.dtype == np.float32 else 1e-12) * np.abs(mean)


def _shares(count: int) -> npt.NDArray[np.float64]:
    """The shares of rows below each of so many quantiles."""
    return (np.arange(count) + 0.5) / count


def _scores(X: npt.NDArray[Any], quantiles: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The normal quantiles of the shares of rows below each value, of equal values that of their middle; values beyond
    the ends have those of the ends. Columns by their ``quantiles`` (Q x F).
    """
    shares, made = _shares(len(quantiles)), np.empty(X.shape, dtype=np.float32)
    for place, (values, nodes) in enumerate(zip(X.T, quantiles.T, strict=True)):
        upper, lower = np.interp(values, nodes, shares), np.interp(-values, -nodes[::-1], 1 - shares[::-1])
        made[:, place] = ndtri((upper + 1 - lower) / 2)
    return made


def _norms(X: Any) -> npt.NDArray[Any]:
    # in double: squares of small numbers would be none in float32
    squares = X.power(2, dtype=np.float64) if is_sparse(X) else np.square(X, dtype=np.float64)
    return np.sqrt(np.asarray(squares.sum(axis=1)).ravel()).astype(np.result_type(X.dtype, np.float32))


def _scale_rows(X: Any, sizes: npt.NDArray[Any]) -> Any:
    """Each row over its size; rows of no size stay zero."""
    inverse = 1 / np.where(sizes > 0, sizes, 1)
    return (sparse.diags_array(inverse) @ X).tocsr() if is_sparse(X) else X * inverse[:, None]
