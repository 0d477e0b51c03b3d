"""Kernels by name. Every kernel is one of ``pyro.contrib.gp.kernels``; any other of those can be passed as an object."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.contrib.gp.kernels import RBF, Exponential, Kernel, Matern32, Matern52, Sum
from torch import Tensor

# "matern12" is exp(-r / l), the roughest of the family; Pyro calls it Exponential.
KERNELS: dict[str, Callable[..., Kernel]] = {
    "rbf": RBF,
    "matern12": Exponential,
    "matern32": Matern32,
    "matern52": Matern52,
}


def make_kernel(
    name: str | Kernel, inputs: int, *, lengthscale: float = 1.0, variance: float = 1.0, ard: bool = False
) -> Kernel:
    """The kernel called ``name`` over ``inputs`` dimensions, or ``name`` itself if it is a kernel already.

    ``"rbf"`` is the paper's ``variance * exp(-|x - x'|^2 / (2 lengthscale^2))``. ``"a+b"`` is a sum of kernels, which
    share the variance equally. ``ard=True`` gives each dimension a length-scale of its own.
    """
    if isinstance(name, Kernel):
        return name
    parts = name.split("+")
    unknown = [part for part in parts if part not in KERNELS]
    if unknown:
        raise ValueError(f"kernel must be a Pyro kernel or a '+' of {sorted(KERNELS)}; got {name!r}")

    def one(part: str) -> Kernel:
        scales = torch.full((inputs,), float(lengthscale)) if ard else torch.tensor(float(lengthscale))
        return KERNELS[part](inputs, variance=torch.tensor(variance / len(parts)), lengthscale=scales)

    kernel = one(parts[0])
    for part in parts[1:]:
        kernel = Sum(kernel, one(part))
    return kernel


def kernel_matrix(kernel: Kernel, x: Tensor, s: Tensor) -> Tensor:
    """``k(x, s)`` for rows of any batch shape: ``(..., n, d), (M, d) -> (..., n, M)``.

    Pyro's kernels take matrices only; draws of a latent layer have more dimensions (vectorised particles).
    """
    if x.dim() <= 2:
        return kernel(x, s)
    return kernel(x.reshape(-1, x.shape[-1]), s).reshape(*x.shape[:-1], len(s))
