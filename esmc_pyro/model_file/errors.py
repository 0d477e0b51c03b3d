"""The error of model files, and the two ways to read what is in one: checked fields, checked tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from esmc_pyro.tensor_file import Format

T = TypeVar("T")
FLOATS = (torch.float32, torch.float64)


class ModelFileError(ValueError):
    """A model file that cannot be read, or a model that cannot be written to one; the sentence says why."""


# version 2: weights of features; version 3: members; version 4: quantiles of features, Laplacian kernels;
# version 5: the length-scale of f_z; version 6: what is the same in several tensors is written once;
# version 7: the calibration of suitability; version 8: what f_z learned from
FORMAT = Format("esmc-pyro model", 8, "model file", ModelFileError)


class Fields:
    """A JSON object of the file: each field is taken once, with its type checked, and none may be left over."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ModelFileError(f"{where} must be a JSON object; got {value!r:.60}")
        self._left, self.where = dict(value), where

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, *types: type[T]) -> T:
        """The field ``name``, of exactly one of ``types`` (a bool is no int); a float may be written as an int."""
        if name not in self._left:
            raise ModelFileError(f"{self.where} must have the field {name!r}")
        value: Any = self._left.pop(name)
        if type(value) is int and int not in types and float in types and abs(value) < 2**53:
            value = float(value)
        if type(value) not in types:
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise ModelFileError(f"{name!r} of {self.where} must be {names}; got {value!r:.60}")
        return value

    def has_list(self, name: str) -> bool:
        """Whether the field ``name`` is there and a list."""
        return isinstance(self._left.get(name), list)

    def choice(self, name: str, choices: Any) -> str:
        """The text ``name``, one of ``choices``."""
        value = self.take(name, str)
        if value not in tuple(choices):
            raise ModelFileError(f"{name!r} of {self.where} must be one of {sorted(choices)}; got {value!r:.60}")
        return value

    def count(self, name: str, low: int = 1) -> int:
        """The whole number ``name``, at least ``low`` and small enough to count something in memory."""
        value = self.take(name, int)
        if not low <= value < 2**40:
            raise ModelFileError(
                f"{name!r} of {self.where} must be a whole number of at least {low}; got {value!r:.60}"
            )
        return value

    def items(self, name: str, kind: type[T]) -> list[T]:
        """The list ``name`` of values of one type."""
        values = self.take(name, list)
        for value in values:
            if type(value) is not kind:
                raise ModelFileError(f"{name!r} of {self.where} must be a list of {kind.__name__}; got {value!r:.60}")
        return values

    def done(self) -> None:
        """Nothing is left over."""
        if self._left:
            raise ModelFileError(f"{self.where} has fields that mean nothing here: {sorted(self._left)!s:.200}")


class Tensors:
    """The tensors of the file: each is taken once, with type, shape and values checked, and none may be left over."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def size(self, name: str) -> int:
        """How many numbers the tensor ``name`` has; 0 if it is not there."""
        return self._left[name].numel() if name in self._left else 0

    def take(
        self,
        name: str,
        *shapes: tuple[int | None, ...],
        dtypes: tuple[torch.dtype, ...] = FLOATS,
    ) -> Tensor:
        """The tensor ``name`` of one of ``shapes``, where None is any size from 1 on; its numbers are finite."""
        if name not in self._left:
            raise ModelFileError(f"it must have the tensor {name!r}")
        tensor = self._left.pop(name)
        if tensor.dtype not in dtypes:
            raise ModelFileError(f"tensor {name!r} must be of {' or '.join(map(str, dtypes))}; got {tensor.dtype}")
        if not any(_fits(tensor, shape) for shape in shapes):
            expected = " or ".join(str(shape).replace("None", "any") for shape in shapes)
            raise ModelFileError(f"tensor {name!r} must have shape {expected}; got {tuple(tensor.shape)}")
        check_values(name, tensor, ModelFileError)
        return tensor

    def done(self) -> None:
        """Nothing is left over."""
        if self._left:
            raise ModelFileError(f"it has tensors that mean nothing here: {sorted(self._left)!s:.200}")


def check_values(name: str, tensor: Tensor, error: type[ValueError]) -> None:
    """Every number is finite; the logarithm of a spread of zero is minus infinity, which is as good."""
    good = torch.isfinite(tensor) if tensor.is_floating_point() else torch.ones_like(tensor, dtype=torch.bool)
    if name.endswith("_unconstrained"):
        good = good | (tensor == -torch.inf)
    if not good.all():
        raise error(f"tensor {name!r} must be finite everywhere; got {tensor[~good][0].item()}")


def _fits(tensor: Tensor, shape: tuple[int | None, ...]) -> bool:
    return tensor.dim() == len(shape) and all(
        got >= 1 if want is None else got == want for got, want in zip(tensor.shape, shape, strict=True)
    )
