"""MATLAB .mat files with `X_train`, `Y_train`, `X_test`, `Y_test`, or with `X_all` and `Y_all` (or `X` and `Y`)."""

from __future__ import annotations

import io
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.io import loadmat

from esmc_pyro.data.arrays import named_parts, parts_wanted
from esmc_pyro.data.dataset import Dataset, dataset_from
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.matlab_check import check_matlab
from esmc_pyro.data.matrix import checked_sparse
from esmc_pyro.data.pair import stem


def read_matlab(path: str | PathLike[str], *, name: str | None = None) -> Dataset:
    """Read a .mat file (versions 4 to 7.2): rows are instances, matrices dense or sparse of any number type."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise data_error(path, f"cannot be opened ({error.strerror}).") from error
    if content[:10] == b"MATLAB 7.3" or content[:4] == b"\x89HDF":
        raise data_error(path, "is a MATLAB 7.3 (HDF5) file, expected one saved with -v7.")
    try:
        check_matlab(content, parts_wanted())
        # from memory: a reader of open files would allocate what a lying header asks for
        file: Any = io.BytesIO(content)
        variables = loadmat(file, variable_names=parts_wanted())
    except Exception as error:  # a damaged file makes SciPy fail in any way: zlib, type, index and key errors
        raise data_error(path, f"cannot be read as a MATLAB file ({type(error).__name__}: {error}).") from error
    parts = {key: _matrix(path, key, value) for key, value in named_parts(path, variables).items()}
    return dataset_from(path, name or stem(path), **parts)


def _matrix(path: str | PathLike[str], key: str, value: Any) -> Any:
    if sparse.issparse(value):
        return checked_sparse(path, key, value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        kind = getattr(value, "dtype", type(value).__name__)
        raise data_error(path, f"{key} holds {kind} values, expected a matrix of numbers.")
    return value
