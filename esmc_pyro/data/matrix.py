"""The two shapes a matrix may have here, dense or CSR, and what is asked of either."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from esmc_pyro.data.errors import MAX_SPARSE_ROWS, check_column_count, data_error
from esmc_pyro.precision import to_single

Matrix: TypeAlias = np.ndarray | sparse.csr_array


def stored(matrix: Matrix) -> np.ndarray:
    """The values that are kept: all of a dense matrix, the explicit ones of a sparse one."""
    return matrix.data if sparse.issparse(matrix) else matrix


def stack(top: Matrix, bottom: Matrix) -> Matrix:
    """(N, F) over (M, F): (N + M, F), sparse when either is."""
    if sparse.issparse(top) or sparse.issparse(bottom):
        return sparse.csr_array(sparse.vstack([sparse.csr_array(top), sparse.csr_array(bottom)]))
    return np.concatenate([top, bottom])


def to_matrix(argument: str, value: Any) -> Matrix:
    """`value` as a matrix of at least one row and one column, or a sentence about `argument`."""
    if not sparse.issparse(value):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{argument} has rows of different lengths, expected a matrix.") from error
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{argument} has shape {value.shape}, expected at least one row and one column.")
    if value.dtype.kind not in "biuf":
        try:
            value = value.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{argument} holds {value.dtype} values, expected numbers.") from error
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and that is refused by name
        if isinstance(value, np.ndarray):
            return np.ascontiguousarray(to_single(value))
        matrix: sparse.csr_array = sparse.csr_array(value.tocsr().astype(np.float32, copy=False))
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the caller's arrays may be shared, and what follows works in place
        matrix.sum_duplicates()  # also sorts the columns of each row
    return matrix


def first_wrong(matrix: Matrix, wrong: np.ndarray) -> tuple[int, int, float]:
    """Row, column and value of the first stored entry that `wrong` marks."""
    at = int(np.argmax(wrong))
    if isinstance(matrix, np.ndarray):
        row, column = divmod(at, matrix.shape[1])
        return row, column, float(matrix[row, column])
    row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
    return row, int(matrix.indices[at]), float(matrix.data[at])


def checked_sparse(path: str | PathLike[str], argument: str, value: Any) -> sparse.csr_array:
    """A sparse matrix out of a file as CSR, once its shape is sensible and its indices are known to stay inside it."""
    rows, columns = (int(size) for size in value.shape)
    check_column_count(path, f"the number of columns of {argument}", columns)
    if rows > MAX_SPARSE_ROWS:
        raise data_error(path, f"the number of rows of {argument} is {rows}, expected at most {MAX_SPARSE_ROWS}.")
    try:
        if value.format != "coo":  # whose constructor has checked already
            value.check_format(full_check=True)
        return sparse.csr_array(value)
    except (TypeError, ValueError, IndexError) as error:
        raise data_error(path, f"{argument} is a damaged sparse matrix ({error}).") from error
