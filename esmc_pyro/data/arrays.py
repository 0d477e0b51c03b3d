"""Which named arrays of a file make a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from esmc_pyro.data.errors import data_error

_SPLIT = ("X_train", "Y_train", "X_test", "Y_test")
_WHOLE = (("X_train", "Y_train"), ("X_all", "Y_all"), ("X", "Y"))


def parts_wanted() -> list[str]:
    """Every array name that means something."""
    return sorted({*_SPLIT, *(name for pair in _WHOLE for name in pair)})


def named_parts(path: str | PathLike[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays under the names `Dataset` uses; a half-named split is refused."""
    if all(name in arrays for name in _SPLIT):
        return {name: arrays[name] for name in _SPLIT}
    half = [name for name in ("X_test", "Y_test") if name in arrays]
    for X, Y in _WHOLE:
        if X in arrays and Y in arrays and not half:
            return {"X_train": arrays[X], "Y_train": arrays[Y]}
    found = ", ".join(name for name in parts_wanted() if name in arrays) or "none of them"
    wanted = "X_train and Y_train (with X_test and Y_test or without), X_all and Y_all, or X and Y"
    raise data_error(path, f"holds {found}, expected {wanted}.")
