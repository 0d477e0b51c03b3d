"""RBF psi statistics: the kernel averaged over uncertain inputs ``c_n ~ N(mu_n, diag s_n²)``, by blocks of rows.

    P1[n,m]    = E k(c_n, S_m)
               = v prod_d sqrt(l_d²/(l_d²+s_nd²)) exp(-(mu_nd - S_md)² / (2 (l_d²+s_nd²)))
    P2[n,m,m'] = E k(c_n, S_m) k(c_n, S_m')
               = v² prod_d sqrt(l_d²/a_nd) exp(-(S_md - S_m'd)²/(4 l_d²) - (mu_nd - (S_md+S_m'd)/2)²/a_nd),
                 a_nd = l_d² + 2 s_nd²

``v`` is the kernel's variance, ``l`` its length-scales. ``P2`` is never formed: ``blocks`` has what is needed of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pyro.contrib.gp.kernels import RBF, Kernel
from torch import Tensor
from torch.linalg import solve_triangular


@dataclass(frozen=True)
class Radial:
    """An RBF kernel's numbers and pseudo-instances: ``S`` (M x d), ``l2`` the squared length-scales (1 x d), ``v``."""

    S: Tensor
    l2: Tensor
    v: Tensor

    @classmethod
    def of(cls, kernel: Kernel, S: Tensor) -> Radial:
        """From Pyro's kernel; other kernels have no closed-form statistics."""
        if type(kernel) is not RBF:
            raise ValueError(
                f"a layer above the first must have the kernel 'rbf' for the analytic solver, whose psi statistics are "
                f"closed forms; got {type(kernel).__name__}"
            )
        l2 = kernel.lengthscale.detach().square().expand(S.shape[1]).unsqueeze(0)
        return cls(S.detach(), l2.to(S), kernel.variance.detach().to(S))


def exponent(mean: Tensor, points: Tensor, weight: Tensor, row: Tensor | float, point: Tensor | float = 0.0) -> Tensor:
    """``row_n + point_m - sum_d w_nd (mean_nd - points_md)²/2`` (n x M) as one matrix product.

    ``weight`` is n x d, or 1 x d if the rows share it; ``row`` n x 1 and ``point`` M, or numbers. Centred first, so
    that little cancels.
    """
    centre = points.mean(0)
    mean, points = mean - centre, points - centre
    ones = mean.new_ones(len(mean), 1)
    left = [weight * mean, row - 0.5 * (weight * mean.square()).sum(-1, keepdim=True), ones]
    if len(weight) == 1:
        right = [
            points,
            ones.new_ones(len(points), 1),
            (point - 0.5 * (weight * points.square()).sum(-1)).unsqueeze(-1),
        ]
    else:
        left = [*left, -0.5 * weight]
        right = [points, *(x.expand(len(points)).unsqueeze(-1) for x in (ones[0], torch.as_tensor(point).to(ones)))]
        right = [*right, points.square()]
    return torch.cat(left, -1) @ torch.cat(right, -1).mT


POINT = 1e-13  # variance over squared length-scale: below it an input is a point, to float64's rounding


def whitened(second: Tensor, Lw: Tensor) -> Tensor:
    """``Lw^-1 P2 Lw^-T``, M x M."""
    half = solve_triangular(Lw, second.to(Lw.dtype), upper=False)
    return solve_triangular(Lw, half.mT, upper=False)


def whitened_gram(k: Tensor, Lw: Tensor) -> Tensor:
    """``A'A``, ``A = k Lw^-T`` (n x M): ``Lw^-1`` amplifies rounding once, not twice as in ``whitened(k'k, Lw)``."""
    a = solve_triangular(Lw.to(k.dtype), k.mT, upper=False)
    return (a @ a.mT).to(Lw.dtype)


def psi1(radial: Radial, mean: Tensor, var: Tensor) -> Tensor:
    """``P1`` (n x M)."""
    spread = radial.l2 + var
    log_scale = 0.5 * (radial.l2.log() - spread.log()).sum(-1, keepdim=True) + radial.v.log()
    return exponent(mean, radial.S, 1 / spread, log_scale).exp_()


@dataclass
class Slope:
    """``value`` (n) and its gradients by ``mean`` (n x d) and ``var`` (n x d, or 1 x d, summed, if rows share it)."""

    value: Tensor
    mean: Tensor
    var: Tensor


def psi1_slope(radial: Radial, mean: Tensor, var: Tensor, p1: Tensor, R: Tensor, by_var: bool = True) -> Slope:
    """``<P1[n], R[n]>`` for ``R`` (n x M): ``d P1/d mu = -P1 w (mu - S)``, ``d P1/d s² = P1 (w² (mu - S)² - w)/2``.

    The gradient by ``var`` is zeros if not asked for.
    """
    w = 1 / (radial.l2 + var)
    weighted = p1 * R
    total = weighted.sum(-1, keepdim=True)
    first = weighted @ radial.S
    change = torch.zeros_like(var)
    if by_var:
        square = mean.square() * total - 2 * mean * first + weighted @ radial.S.square()
        change = 0.5 * (w.square() * square - w * total)
        change = change.sum(0, keepdim=True) if len(var) == 1 else change
    return Slope(total.squeeze(-1), -w * (mean * total - first), change)
