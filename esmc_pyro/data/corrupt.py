"""Labels made worse on purpose: ones removed, rows hidden, entries hidden. Seeded, with exact counts, on a copy.

`Y` is N × K of 0, 1 or NaN (not known), a NumPy array or a SciPy sparse matrix; the result is of the same kind, and the
same seed picks the same entries in both. Hiding needs NaN: integer and boolean labels become float32, and a sparse
result stores its NaN entries.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

__all__ = ["hide_entries", "hide_rows", "remove_ones"]

LabelMatrix = TypeVar("LabelMatrix", bound="npt.NDArray[Any] | sparse.sparray | sparse.spmatrix")
Indices = npt.NDArray[np.int64]


def remove_ones(Y: LabelMatrix, fraction: float, seed: int) -> LabelMatrix:
    """`round(fraction × number of ones)` ones, drawn without replacement from the whole matrix, become zeros.

    This is how labels go missing in the paper: a zero may be a true label that nobody wrote down. NaN stays NaN.
    """
    y = _copy(Y, fraction)
    # stored entries of a row-ordered sparse matrix come in the order of the dense one, so both see the same draw
    values = y.reshape(-1) if isinstance(y, np.ndarray) else y.data
    ones = np.flatnonzero(values == 1)
    values[ones[_draw(len(ones), fraction, seed)]] = 0
    if not isinstance(y, np.ndarray):
        y.eliminate_zeros()
    return _in_format_of(Y, y)


def hide_rows(Y: LabelMatrix, fraction: float, seed: int) -> LabelMatrix:
    """`round(fraction × number of rows)` whole rows become NaN: unlabelled instances.

    Rows that are NaN throughout are hidden already: they are neither counted nor drawn.
    """
    y = _copy(Y, fraction)
    rows, labels = y.shape
    unknown = np.bincount(_unknown(y) // labels, minlength=rows)
    seen = np.flatnonzero(unknown < labels)
    hidden = seen[_draw(len(seen), fraction, seed)]
    return _in_format_of(Y, _with_unknown(y, (hidden[:, None] * labels + np.arange(labels)).reshape(-1)))


def hide_entries(Y: LabelMatrix, fraction: float, seed: int) -> LabelMatrix:
    """`round(fraction × number of known entries)` single entries, zeros and ones alike, become NaN."""
    y = _copy(Y, fraction)
    unknown = _unknown(y)
    drawn = _draw(y.shape[0] * y.shape[1] - len(unknown), fraction, seed)
    # the j-th known entry stands at j plus the number of unknown entries before it
    known_before = unknown - np.arange(len(unknown))
    return _in_format_of(Y, _with_unknown(y, drawn + np.searchsorted(known_before, drawn, side="right")))


def _draw(size: int, fraction: float, seed: int) -> Indices:
    return np.sort(np.random.default_rng(seed).choice(size, round(fraction * size), replace=False)).astype(np.int64)


def _unknown(y: Any) -> Indices:
    """Places of the NaN entries, row by row, counted from 0 to N K - 1; ascending."""
    if isinstance(y, np.ndarray):
        return np.flatnonzero(np.isnan(y)).astype(np.int64)
    return _stored(y)[np.isnan(y.data)]


def _stored(y: Any) -> Indices:
    rows = np.repeat(np.arange(y.shape[0], dtype=np.int64), np.diff(y.indptr))
    return rows * y.shape[1] + y.indices


def _with_unknown(y: Any, places: Indices) -> Any:
    dtype = y.dtype if y.dtype.kind == "f" else np.dtype(np.float32)
    if isinstance(y, np.ndarray):
        y = y.astype(dtype)
        y.reshape(-1)[places] = np.nan
        return y
    stored = _stored(y)
    keep = ~np.isin(stored, places)
    at = np.concatenate([stored[keep], places])
    values = np.concatenate([y.data[keep].astype(dtype), np.full(len(places), np.nan, dtype)])
    return type(y)((values, np.divmod(at, y.shape[1])), shape=y.shape)


def _copy(given: object, fraction: float) -> Any:
    """A row-ordered copy that may be changed: a C-ordered array, or CSR with sorted indices."""
    if not isinstance(given, (np.ndarray, sparse.sparray, sparse.spmatrix)):
        raise ValueError(f"Y must be a NumPy array or a SciPy sparse matrix, but it is a {type(given).__name__}.")
    Y: Any = given
    if Y.ndim != 2:
        raise ValueError(f"Y must be a matrix of rows × labels, but its shape is {Y.shape}.")
    if Y.dtype.kind not in "biuf":
        raise ValueError(f"Y must hold numbers (0, 1 or NaN for unknown), but its type is {Y.dtype}.")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie between 0 and 1, but it is {fraction}.")
    if isinstance(Y, np.ndarray):
        return np.array(Y, order="C")
    y = Y.tocsr(copy=True)
    y.sum_duplicates()
    return y


def _in_format_of(Y: LabelMatrix, y: Any) -> LabelMatrix:
    return cast(LabelMatrix, y if isinstance(y, np.ndarray) else y.asformat(cast(Any, Y).format))
