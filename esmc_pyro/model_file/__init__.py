"""A fitted estimator in one file: safetensors and JSON, versioned, checksummed, nothing in it that could run."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from esmc_pyro import tensor_file
from esmc_pyro.model_file import state
from esmc_pyro.model_file.errors import FORMAT, ModelFileError, check_values

__all__ = ["ModelFileError", "load", "save"]


def save(estimator: Any, path: str | PathLike[str]) -> Path:
    """Write a fitted ``ESMCClassifier`` to ``path``; what cannot be saved is said before any file is touched."""
    check_is_fitted(estimator, "stack_")
    if Path(path).is_dir():
        raise ModelFileError(f"{path}: a model is saved to a file; this is a folder")
    tensors: dict[str, Tensor] = {}
    content = state.encode(estimator, tensors)
    for name, tensor in tensors.items():
        check_values(name, tensor, ModelFileError)
    return tensor_file.write(path, FORMAT, content, tensors)


def load(path: str | PathLike[str], kind: type) -> Any:
    """The estimator, of class ``kind``, that was saved to ``path``; all is checked before anything is built."""
    content, tensors = tensor_file.read(path, FORMAT)
    try:
        return state.decode(content, tensors, kind)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path}: {error}") from None
