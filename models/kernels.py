"""Kernels by name: some of ``pyro.contrib.gp.kernels`` and ``Laplacian``.

Any of Pyro's but ``WhiteNoise`` can be passed as an object.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pyro.contrib.gp.kernels import RBF, Combination, Exponential, Isotropy, Kernel, Matern32, Matern52, Sum, WhiteNoise
from torch import Tensor

BLOCK = 2**24  # bytes of k(x, s) at a time: a kernel makes several matrices on its way to one, fast if they are small


LengthScale = float | Callable[..., float]  # a number, or called with the norm of a distance
SMALL = 2**16  # numbers in x - s that are made at once


class Laplacian(Isotropy):
    """``variance * exp(-sum_d |x_d - x'_d| / lengthscale)``: Matern-1/2 in each dimension, their product.

    The heavy tails of its spectrum lie along the axes: what is rough in few features is likelier than under a kernel of
    the Euclidean distance. ``k(x, s)`` is n M F differences instead of a matrix product: slow with many features.
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """``k(X, Z)`` (n x m), ``k(X, X)`` without ``Z``, or its diagonal."""
        if diag:
            return self.variance.expand(len(X))
        x = self._slice_input(X) / self.lengthscale
        z = x if Z is None else self._slice_input(Z) / self.lengthscale
        # cdist, which makes no n x m x F numbers, has no second derivatives; who wants these has few numbers
        small = x.numel() * len(z) <= SMALL
        distance = (x[:, None] - z).abs().sum(-1) if small else torch.cdist(x, z, p=1)
        return self.variance * torch.exp(-distance)


# "matern12" is exp(-r / l), the roughest of the family; Pyro calls it Exponential.
KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "laplacian": Laplacian,
    "matern12": Exponential,
    "matern32": Matern32,
    "matern52": Matern52,
}


def make_kernel(
    name: str | Kernel, inputs: int, *, lengthscale: LengthScale = 1.0, variance: float = 1.0, ard: bool = False
) -> Kernel:
    """The kernel called ``name`` over ``inputs`` dimensions, or ``name`` itself if it is a kernel already.

    ``"rbf"`` is the paper's ``variance * exp(-|x - x'|^2 / (2 lengthscale^2))``. ``"a+b"`` is a sum of kernels, which
    share the variance equally. ``ard=True`` gives each dimension a length-scale of its own. A ``lengthscale`` may be a
    function of ``distance_norm``, so that each part of a sum has one for its own distance.
    """
    if isinstance(name, Kernel):
        if max(name.active_dims) >= inputs:
            raise ValueError(
                f"kernel {type(name).__name__} must work on the {inputs} inputs of its layer; "
                f"got one for {max(name.active_dims) + 1}"
            )
        if any(isinstance(part, WhiteNoise) for part in name.modules()):
            raise ValueError("kernel must be of functions: noise is what alpha, beta and gamma are; got WhiteNoise")
        return name
    parts = name.split("+")
    if any(part not in KERNELS for part in parts):
        raise ValueError(f"kernel must be a Pyro kernel or a '+' of {sorted(KERNELS)}; got {name!r}")

    def one(part: str) -> Kernel:
        scale = _of_norm(lengthscale, distance_norm(KERNELS[part]))
        scales = torch.full((inputs,), scale) if ard else torch.tensor(scale)
        return KERNELS[part](inputs, variance=torch.tensor(float(variance) / len(parts)), lengthscale=scales)

    kernel = one(parts[0])
    for part in parts[1:]:
        kernel = Sum(kernel, one(part))
    return kernel


def set_lengthscale(kernel: Kernel, lengthscale: LengthScale) -> None:
    """Give every length-scale inside ``kernel`` (parts of a sum, dimensions of an ARD kernel) this value."""
    for part in kernel.modules():
        if isinstance(part, Isotropy):
            scale = _of_norm(lengthscale, distance_norm(part))
            part.lengthscale = torch.full_like(part.lengthscale.detach(), scale)


def distance_norm(kernel: type[Kernel] | Kernel) -> int:
    """The ``p`` of the distance ``|x - x'|_p`` that its length-scale divides: 1 for ``Laplacian``, else 2."""
    kind = kernel if isinstance(kernel, type) else type(kernel)
    return 1 if issubclass(kind, Laplacian) else 2


def _of_norm(lengthscale: LengthScale, norm: int) -> float:
    return float(lengthscale(norm=norm) if callable(lengthscale) else lengthscale)


def is_stationary(kernel: Kernel) -> bool:
    """Whether ``k(x, s)`` is known to depend on ``x - s`` only."""
    if isinstance(kernel, Combination):
        return is_stationary(kernel.kern0) and (not isinstance(kernel.kern1, Kernel) or is_stationary(kernel.kern1))
    return isinstance(kernel, Isotropy)


def has_a_root(kernel: Kernel) -> bool:
    """Whether it is stationary and has a part like ``1 - |x - s|`` near zero: in single precision a row and a
    pseudo-instance that are equal would be some 1e-3 apart, the root of what rounding leaves of ``|x - s|^2``.
    """
    return is_stationary(kernel) and any(isinstance(part, Exponential) for part in kernel.modules())


def kernel_matrix(kernel: Kernel, x: Tensor, s: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``k(x, s)`` for rows of any batch shape: ``(..., n, d), (M, d) -> (..., n, M)``.

    ``dtype`` is what the numbers are rounded to, block by block, if not to that of ``x``.

    Pyro's kernels take matrices only; draws of a latent layer have more dimensions (vectorised particles). They find
    ``|x - s|^2`` from ``|x|^2 - 2 x s' + |s|^2``, which loses digits far from the origin, so the origin is moved to the
    middle of ``s`` where that changes nothing else.
    """
    itself = x is s
    if is_stationary(kernel):
        middle = s.detach().mean(0)
        x, s = x - middle, s - middle
    flat = x.reshape(-1, x.shape[-1])
    learned = torch.is_grad_enabled() and any(t.requires_grad for t in (flat, s, *kernel.parameters()))
    block = max(256, BLOCK // (len(s) * x.element_size()))
    if learned or len(flat) <= block:
        k = kernel(flat, s).to(dtype or x.dtype)
    else:
        k = torch.empty(len(flat), len(s), dtype=dtype or x.dtype, device=x.device)
        for first in range(0, len(flat), block):
            rows = slice(first, first + block)
            columns = slice(rows.stop if itself else None)  # of k(s, s) the lower half, and its mirror image
            k[rows, columns] = kernel(flat[rows], s[columns])
            if itself:
                k[:first, rows] = k[rows, :first].mT
    return k.reshape(*x.shape[:-1], len(s))


def near_kernel_matrix(kernel: Kernel, x: Tensor, s: Tensor) -> Tensor:
    """``kernel_matrix`` for rows that may be some of ``s``: one that ``has_a_root`` is found in double, so that
    such a row is at no distance from itself.
    """
    if not has_a_root(kernel):
        return kernel_matrix(kernel, x, s)
    return kernel_matrix(kernel, x.double(), s.double(), dtype=x.dtype)
