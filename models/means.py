"""Mean functions of a layer: what its Gaussian processes deviate from. Without one the mean is zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esmc_pyro.validation import check_choice


class Constant(nn.Module):
    """``mean(x) = offset``: a number for each output. Shapes: ``(..., d) -> (O,)``, which broadcasts over rows.

    Of all ``outputs``, or of those whose places are given.
    """

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())

    def forward(self, x: Tensor, outputs: Tensor | None = None) -> Tensor:
        return self.offset if outputs is None else self.offset[outputs]


class Linear(nn.Module):
    """``mean(x) = x W + offset``, with ``W`` of shape ``(d, O)``. Shapes: ``(..., d) -> (..., O)``.

    Of all ``outputs``, or of those whose places are given.
    """

    def __init__(self, weight: Tensor, offset: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.offset = nn.Parameter(
            torch.zeros(weight.shape[1]).to(weight) if offset is None else offset.detach().clone()
        )

    def forward(self, x: Tensor, outputs: Tensor | None = None) -> Tensor:
        if outputs is None:
            return x @ self.weight + self.offset
        return x @ self.weight.mT[outputs].mT + self.offset[outputs]


MEANS = ("zero", "constant", "linear")


def make_mean(name: str, inputs: int, constant: Tensor) -> nn.Module | None:
    """The mean function called ``name`` with this constant (O,); slopes (inputs x O) start at zero."""
    check_choice(name, MEANS, "mean")
    if name == "zero":
        return None
    return Constant(constant) if name == "constant" else Linear(constant.new_zeros(inputs, len(constant)), constant)
