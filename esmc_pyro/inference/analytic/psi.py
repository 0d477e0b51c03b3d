"""RBF psi statistics: the kernel averaged over uncertain inputs ``c_n ~ N(mu_n, diag s_n²)``, by blocks of rows.

    P1[n,m]    = E k(c_n, S_m)
               = v prod_d sqrt(l_d²/(l_d²+s_nd²)) exp(-(mu_nd - S_md)² / (2 (l_d²+s_nd²)))
    P2[n,m,m'] = E k(c_n, S_m) k(c_n, S_m')
               = v² prod_d sqrt(l_d²/a_nd) exp(-(S_md - S_m'd)²/(4 l_d²) - (mu_nd - (S_md+S_m'd)/2)²/a_nd),
                 a_nd = l_d² + 2 s_nd²

``v`` is the kernel's variance, ``l`` its length-scales. ``P2`` is never formed. All that the bound needs of it is
``sum_n P2[n]`` (M x M), ``<P2[n], Q>`` for one symmetric ``Q`` (n), and the gradients of the latter:

- ``SharedBlock``: one variance for all rows. With ``a = l²+2s²`` the exponent falls apart into rows and pairs,
  ``P2[n,m,m'] = C[m,m'] G[n,m] G[n,m']``, and everything is a matrix product, O(n M²).
- ``RowBlock``: a variance for each row; one pseudo-instance ``m`` after the other, O(n M² d) time and O(n M) memory.
- ``FixedBlock``: inputs without variance, any kernel: ``P1 = k``, ``P2[n] = k_n' k_n``.
"""

from __future__ import annotations

from copy import copy
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
        if not isinstance(kernel, RBF):
            raise ValueError(
                f"a layer above the first must have the kernel 'rbf' for the analytic solver, whose psi statistics are "
                f"closed forms; got {type(kernel).__name__}"
            )
        l2 = kernel.lengthscale.detach().square().expand(S.shape[1]).unsqueeze(0)
        return cls(S.detach(), l2.to(S), kernel.variance.detach().to(S))


def _weighted_distances(mean: Tensor, points: Tensor, weight: Tensor) -> Tensor:
    """``sum_d w_nd (mean_nd - points_md)²`` as a product: n x M. Centred first, so that little cancels."""
    centre = points.mean(0)
    mean, points = mean - centre, points - centre
    if len(weight) == 1:
        root = weight.sqrt()
        mean, points = mean * root, points * root
        square = mean.square().sum(-1, keepdim=True) + points.square().sum(-1)
        return torch.addmm(square, mean, points.mT, alpha=-2).clamp_(min=0)
    left = torch.cat([weight, -2 * weight * mean], dim=-1)
    right = torch.cat([points.square(), points], dim=-1)
    return torch.addmm((weight * mean.square()).sum(-1, keepdim=True), left, right.mT).clamp_(min=0)


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
    log_scale = 0.5 * (radial.l2.log() - spread.log()).sum(-1, keepdim=True)
    return _weighted_distances(mean, radial.S, 1 / spread).mul_(-0.5).add_(log_scale).exp_().mul_(radial.v)


@dataclass
class Slope:
    """``value`` (n) and its gradients by ``mean`` (n x d) and ``var`` (n x d, or 1 x d, summed, if rows share it)."""

    value: Tensor
    mean: Tensor
    var: Tensor


def psi1_slope(radial: Radial, mean: Tensor, var: Tensor, p1: Tensor, R: Tensor) -> Slope:
    """``<P1[n], R[n]>`` for ``R`` (n x M): ``d P1/d mu = -P1 w (mu - S)``, ``d P1/d s² = P1 (w² (mu - S)² - w)/2``."""
    w = 1 / (radial.l2 + var)
    weighted = p1 * R
    total = weighted.sum(-1, keepdim=True)
    first, second = weighted @ radial.S, weighted @ radial.S.square()
    by_var = 0.5 * (w.square() * (mean.square() * total - 2 * mean * first + second) - w * total)
    if len(var) == 1:
        by_var = by_var.sum(0, keepdim=True)
    return Slope(total.squeeze(-1), -w * (mean * total - first), by_var)


class SharedBlock:
    """Rows with one variance (1 x d) for all: ``P2[n,m,m'] = C[m,m'] G[n,m] G[n,m']``, with ``a = l²+2s²``::

    G[n,m]  = exp(-sum_d (mu_nd - S_md)² / (2 a_d))                                            n x M
    C[m,m'] = v² prod_d sqrt(l_d²/a_d) exp(-sum_d (S_md - S_m'd)² (1/l_d² - 1/a_d) / 4)        M x M
    """

    def __init__(self, radial: Radial, mean: Tensor, var: Tensor, C: Tensor | None = None) -> None:
        self.radial, self.mean, self.var = radial, mean, var
        self.a = radial.l2 + 2 * var
        self.p1 = psi1(radial, mean, var)
        self.G = _weighted_distances(mean, radial.S, 1 / self.a).mul_(-0.5).exp_()
        self.C = self._pairs() if C is None else C

    def _pairs(self) -> Tensor:
        l2, S = self.radial.l2, self.radial.S
        log_scale = 0.5 * (l2.log() - self.a.log()).sum()
        distances = _weighted_distances(S, S, 1 / l2 - 1 / self.a)
        return self.radial.v**2 * (log_scale - distances / 4).exp()

    def at(self, mean: Tensor) -> SharedBlock:
        """The same variance at other means."""
        return SharedBlock(self.radial, mean, self.var, self.C)

    def rows(self, keep: Tensor) -> SharedBlock:
        """Some of the rows."""
        part = copy(self)
        part.mean, part.p1, part.G = self.mean[keep], self.p1[keep], self.G[keep]
        return part

    def take(self, other: SharedBlock, rows: Tensor) -> None:
        """Move ``rows`` of this block to where ``other`` (a block of those rows) is."""
        self.mean[rows], self.p1[rows], self.G[rows] = other.mean, other.p1, other.G

    def second_sum(self) -> Tensor:
        """``sum_n P2[n] = C * G'G``, M x M."""
        return self.C * (self.G.mT @ self.G)

    def whitened_sum(self, Lw: Tensor) -> Tensor:
        """``Lw^-1 (sum_n P2[n]) Lw^-T``; inputs that are points, to rounding, are whitened before they are summed."""
        if bool((self.var < POINT * self.radial.l2).all()):
            return whitened_gram(self.p1, Lw)
        return whitened(self.second_sum(), Lw)

    def dot(self, Q: Tensor) -> Tensor:
        """``<P2[n], Q> = G_n (C * Q) G_n'``, n."""
        return ((self.G @ (self.C * Q)) * self.G).sum(-1)

    def dot_slope(self, Q: Tensor, by_var: bool = True) -> Slope:
        """``dot`` with its gradients; the one by ``var`` is summed over rows (zeros if not asked for).

        With ``T = <P2[n], Q>`` and ``H = G (C * Q)``: ``d T/d mu = -2 (mu T - (H * G) S)/a``, and by ``s²`` it is
        ``-T/a + 2/a² <P2[n] * Q, (mu - (S_m + S_m')/2)²>``, whose only pairwise part ``S_m S_m'`` needs only
        ``sum_n P2[n]``.
        """
        S = self.radial.S
        weighted = (self.G @ (self.C * Q)).mul_(self.G)
        total = weighted.sum(-1, keepdim=True)
        first = weighted @ S
        by_mean = -2 * (self.mean * total - first) / self.a
        summed = torch.zeros_like(self.var)
        if by_var:
            pairs = (self.second_sum() * Q) @ S
            square = 0.5 * (weighted.sum(0) @ S.square() + (S * pairs).sum(0))
            rows = (self.mean.square() * total - 2 * self.mean * first).sum(0)
            summed = -total.sum() / self.a + 2 * (rows + square) / self.a.square()
        return Slope(total.squeeze(-1), by_mean, summed)


class RowBlock:
    """Rows with a variance each (n x d): pseudo-instance by pseudo-instance, n x M at a time."""

    def __init__(self, radial: Radial, mean: Tensor, var: Tensor) -> None:
        self.radial, self.mean, self.var = radial, mean, var
        self.p1 = psi1(radial, mean, var)

    def rows(self, keep: Tensor) -> RowBlock:
        """Some of the rows."""
        part = copy(self)
        part.mean, part.var, part.p1 = self.mean[keep], self.var[keep], self.p1[keep]
        return part

    def take(self, other: RowBlock, rows: Tensor) -> None:
        """Move ``rows`` of this block to where ``other`` (a block of those rows) is."""
        self.mean[rows], self.var[rows], self.p1[rows] = other.mean, other.var, other.p1

    def _slices(self) -> tuple[Tensor, Tensor, Tensor]:
        w = 1 / (self.radial.l2 + 2 * self.var)
        log_scale = 0.5 * (self.radial.l2 * w).log().sum(-1, keepdim=True) + 2 * self.radial.v.log()
        near = _weighted_distances(self.radial.S, self.radial.S, 1 / self.radial.l2) / 4
        return w, log_scale, near

    def _slice(self, m: int, w: Tensor, log_scale: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """``P2[:, m, :m+1]`` (n x (m+1)) and the midpoints ``(S_m + S_m')/2``; the rest follows by symmetry."""
        middle = (self.radial.S[m] + self.radial.S[: m + 1]) / 2
        return (log_scale - near[m, : m + 1] - _weighted_distances(self.mean, middle, w)).exp_(), middle

    def second_sum(self) -> Tensor:
        """``sum_n P2[n]``, M x M."""
        slices = self._slices()
        M = len(self.radial.S)
        out = self.mean.new_zeros(M, M)
        for m in range(M):
            out[m, : m + 1] = self._slice(m, *slices)[0].sum(0)
        return out + out.tril(-1).mT

    def whitened_sum(self, Lw: Tensor) -> Tensor:
        """``Lw^-1 (sum_n P2[n]) Lw^-T`` in float64."""
        return whitened(self.second_sum(), Lw)

    def dot(self, Q: Tensor) -> Tensor:
        """``<P2[n], Q>``, n."""
        return self.dot_slope(Q).value

    def dot_slope(self, Q: Tensor, by_var: bool = True) -> Slope:
        """``dot`` with its gradients, from ``T = <P2[n], Q>`` and the same sums over midpoints and their squares."""
        slices = self._slices()
        w, mean = slices[0], self.mean
        total, first, second = mean.new_zeros(len(mean), 1), torch.zeros_like(mean), torch.zeros_like(mean)
        for m in range(len(self.radial.S)):
            p2, middle = self._slice(m, *slices)
            pair = Q[m, : m + 1] * 2
            pair[m] = Q[m, m]
            p2.mul_(pair)
            total += p2.sum(-1, keepdim=True)
            first.addmm_(p2, middle)
            second.addmm_(p2, middle.square())
        by_mean = -2 * w * (mean * total - first)
        change = 2 * w.square() * (mean.square() * total - 2 * mean * first + second) - w * total
        return Slope(total.squeeze(-1), by_mean, change)


class FixedBlock:
    """Rows that are known (the features): ``P1 = k(x, S)``, ``P2[n] = k_n' k_n``, for any kernel."""

    def __init__(self, kernel: Kernel, S: Tensor, x: Tensor) -> None:
        self.p1 = kernel(x, S)

    def whitened_sum(self, Lw: Tensor) -> Tensor:
        """``A'A`` for the whitened features ``A = k Lw^-T``, M x M, in float64."""
        return whitened_gram(self.p1, Lw)
