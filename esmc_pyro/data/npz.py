"""NumPy .npz files: read without pickle, and written by `write_npz`.

Keys: `X_train`, `Y_train`, `X_test`, `Y_test` (or `X_all`, `Y_all`, or `X`, `Y`), `feature_names`, `label_names`.
A sparse matrix is kept as four arrays: `X_train.data`, `X_train.indices`, `X_train.indptr` and `X_train.shape`.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from scipy import sparse

from esmc_pyro.data.arrays import named_parts
from esmc_pyro.data.dataset import Dataset, dataset_from
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.matrix import checked_sparse
from esmc_pyro.data.pair import stem

_SPARSE = ("data", "indices", "indptr", "shape")
_DEFLATE_RATIO = 1032  # deflate cannot pack better
_NAMES = ("feature_names", "label_names")


def read_npz(path: str | PathLike[str], *, name: str | None = None) -> Dataset:
    """Read a .npz file. Arrays that would need pickle are refused, and so are sizes the file cannot fill."""
    arrays, names = _read(path)
    return dataset_from(path, name or stem(path), **named_parts(path, arrays), **names)


def read_npz_features(path: str | PathLike[str]) -> tuple[Any, list[str]] | None:
    """Features (n x F) and their names, if any, of a .npz file with one `X` and no labels; None of any other."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(name.startswith("Y") for name in archive.namelist()):  # nothing needs to be unpacked for that
                return None
    arrays, names = _read(path)
    found = [key for key in arrays if key in ("X_train", "X_all", "X")]
    return (arrays[found[0]], names.get("feature_names", [])) if len(found) == 1 and "X_test" not in arrays else None


def _read(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The arrays of a file, sparse ones put together, and its names."""
    try:
        arrays = _load(path)
    except OSError as error:
        raise data_error(path, f"cannot be opened ({error.strerror or error}).") from error
    except (ValueError, EOFError, KeyError, SyntaxError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise data_error(path, f"cannot be read as a .npz file ({error}).") from error
    except (NotImplementedError, RuntimeError) as error:  # encrypted members, unknown compression
        raise data_error(path, f"cannot be read as a .npz file ({error}).") from error
    names = {key: _names(path, key, arrays.pop(key)) for key in _NAMES if key in arrays}
    for key in {key.rpartition(".")[0] for key in arrays if key.endswith(".indptr")}:
        arrays[key] = _sparse(path, key, arrays)
    return arrays, names


def write_npz(dataset: Dataset, path: str | PathLike[str]) -> None:
    """Write `dataset` so that `read_npz` gives it back; the file appears under its name only when it is complete."""
    given = [key for key in _NAMES if key not in dataset.numbered]
    arrays: dict[str, Any] = {key: np.array(getattr(dataset, key), dtype=np.str_) for key in given}
    for key in ("X_train", "Y_train", "X_test", "Y_test"):
        value = getattr(dataset, key)
        if sparse.issparse(value):
            arrays |= {f"{key}.{part}": np.asarray(getattr(value, part)) for part in _SPARSE}
        elif value is not None:
            arrays[key] = value
    target = Path(os.path.realpath(path))  # a link stays, as in `files.write_atomic`
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _load(path: str | PathLike[str]) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        if not Path(path).is_file():
            raise FileNotFoundError("no such file")
        raise ValueError("it is no zip archive")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_size(archive, member, Path(path).stat().st_size)
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo, archive_size: int) -> None:
    """NumPy allocates what an array's header says before it reads, so the header must fit what the file can hold."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is packed in a way NumPy does not write")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member.filename} has array format {version[0]}.{version[1]}, expected 1.0 or 2.0")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    if prod(shape) * dtype.itemsize > min(member.file_size, _DEFLATE_RATIO * archive_size):
        raise ValueError(f"{member.filename} claims shape {shape}, more than the file holds")


def _sparse(path: str | PathLike[str], key: str, arrays: dict[str, Any]) -> sparse.csr_array:
    if any(f"{key}.{part}" not in arrays for part in _SPARSE):
        raise data_error(path, f"{key} lacks a part, expected {', '.join(f'{key}.{part}' for part in _SPARSE)}.")
    data, indices, indptr, shape = (arrays[f"{key}.{part}"] for part in _SPARSE)
    whole = all(part.dtype.kind in "iu" for part in (indices, indptr, shape))
    if shape.shape != (2,) or not whole or data.dtype.kind not in "biuf":
        raise data_error(path, f"{key} has a damaged shape, index or value array, expected numbers.")
    try:
        matrix: sparse.csr_array = sparse.csr_array((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))
    except (ValueError, TypeError, IndexError) as error:
        raise data_error(path, f"{key} is a damaged sparse matrix ({error}).") from error
    return checked_sparse(path, key, matrix)


def _names(path: str | PathLike[str], key: str, names: np.ndarray) -> list[str]:
    if names.ndim != 1 or names.dtype.kind != "U":
        raise data_error(path, f"{key} has shape {names.shape} of {names.dtype}, expected a list of texts.")
    return names.tolist()
