"""Cholesky factors that hold: enough digits, escalating jitter, a clear error when nothing helps."""

from __future__ import annotations

import torch
from torch import Tensor

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


class NotPositiveDefiniteError(ValueError):
    """A matrix that should be positive definite is not, even with the largest jitter."""


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """``matrix + value I`` without a second matrix for ``I``: ``(M, M), () -> (M, M)``."""
    total = matrix.clone()
    total.diagonal().add_(value)
    return total


def bears_rounding(rows: int, noise: float, scale: float, dtype: torch.dtype) -> bool:
    """Whether ``noise`` on the diagonal stands above what rounding does to a matrix of so many rows.

    Entries of ``L L'`` are within about ``rows * eps * scale`` of those given, ``scale`` being the mean diagonal, and
    mostly far closer; ``noise`` bounds the eigenvalues from below.
    """
    return noise >= 4 * rows * torch.finfo(dtype).eps * scale


def jittered_cholesky(matrix: Tensor, name: str = "matrix", precision: torch.dtype = torch.float64) -> Tensor:
    """Lower factor ``L`` of ``matrix + jitter * mean(diag(matrix)) * I = L L'``, in the dtype of ``matrix``.

    It is computed in ``precision`` and, if that does not succeed, in float64, with the smallest jitter of ``JITTERS``
    that does. Shapes: ``(M, M) -> (M, M)``.
    """
    if not all(map(torch.isfinite, torch.aminmax(matrix.detach()))):  # no second matrix; NaN is either
        raise NotPositiveDefiniteError(
            f"{name} has entries that are not finite, so it has no Cholesky factor; "
            "expected finite features, length-scales and noises"
        )
    if precision != torch.float64:
        factor, failed = torch.linalg.cholesky_ex(matrix.to(precision))
        if not failed:
            return factor.to(matrix.dtype)
    double = matrix.to(torch.float64)
    scale = double.diagonal().mean().detach()
    for jitter in JITTERS:
        factor, failed = torch.linalg.cholesky_ex(add_to_diagonal(double, jitter * scale) if jitter else double)
        if not failed:
            return factor.to(matrix.dtype)
    raise NotPositiveDefiniteError(
        f"{name} ({len(double)} x {len(double)}) is not positive definite even with {JITTERS[-1]:g} times its mean "
        f"diagonal {scale.item():.3g} added; expected a valid kernel (check its length-scale and variance)"
    )
