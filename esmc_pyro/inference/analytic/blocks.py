"""Blocks of rows as a layer's inputs, with the psi statistics that the bound needs of them (see ``psi``).

Of ``P2`` these are ``sum_n P2[n]`` (M x M), ``<P2[n], Q>`` for one symmetric ``Q`` (n), and the latter's gradients:

- ``SharedBlock``: one variance for all rows. With ``a = l²+2s²`` the exponent falls apart into rows and pairs,
  ``P2[n,m,m'] = C[m,m'] G[n,m] G[n,m']``, and everything is a matrix product, O(n M²).
- ``RowBlock``: a variance for each row; one pseudo-instance ``m`` after the other, O(n M² d) time and O(n M) memory.
- ``FixedBlock``: inputs without variance, any kernel: ``P1 = k``, ``P2[n] = k_n' k_n``.
"""

from __future__ import annotations

from copy import copy
from typing import Self

import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from esmc_pyro.inference.analytic.psi import (
    POINT,
    Radial,
    Slope,
    exponent,
    psi1,
)
from esmc_pyro.models.kernels import near_kernel_matrix


class UncertainBlock:
    """A block of rows ``c_n ~ N(mean_n, var_n)``; ``PER_ROW`` names what is kept for each, ``p1`` (n x M) among it."""

    PER_ROW: tuple[str, ...]
    radial: Radial
    mean: Tensor
    var: Tensor
    p1: Tensor

    def rows(self, keep: Tensor) -> Self:
        """Some of the rows."""
        part = copy(self)
        for name in self.PER_ROW:
            setattr(part, name, getattr(self, name)[keep])
        return part

    def adopt(self, other: UncertainBlock) -> None:
        """Move every row to where ``other`` is."""
        for name in self.PER_ROW:
            setattr(self, name, getattr(other, name))

    def take(self, other: UncertainBlock, rows: Tensor) -> None:
        """Move ``rows`` of this block to where ``other`` (a block of those rows) is."""
        for name in self.PER_ROW:
            getattr(self, name)[rows] = getattr(other, name)

    def moved(self, rows: Tensor | slice, step: Tensor, log_change: Tensor) -> UncertainBlock:
        """A block of these ``rows`` at ``mean + step``, with ``var exp(log_change)`` if each has its own."""
        raise TypeError(f"{type(self).__name__} must define moved(rows, step, log_change)")

    def second_sum(self) -> Tensor:
        """``sum_n P2[n]``, M x M."""
        raise TypeError(f"{type(self).__name__} must define second_sum()")

    @property
    def points(self) -> bool:
        """Whether the inputs are points to rounding: then ``P2[n]`` is ``P1[n]' P1[n]``."""
        return bool((self.var < POINT * self.radial.l2).all())

    def dot(self, Q: Tensor) -> Tensor:
        """``<P2[n], Q>``, n."""
        return self.dot_slope(Q, by_var=False).value

    def dot_slope(self, Q: Tensor, by_var: bool = True) -> Slope:
        """``dot`` with its gradients; the one by ``var`` only if asked for."""
        raise TypeError(f"{type(self).__name__} must define dot_slope(Q, by_var)")


class SharedBlock(UncertainBlock):
    """Rows with one variance (1 x d) for all: ``P2[n,m,m'] = C[m,m'] G[n,m] G[n,m']``, with ``a = l²+2s²``::

    G[n,m]  = exp(-sum_d (mu_nd - S_md)² / (2 a_d))                                            n x M
    C[m,m'] = v² prod_d sqrt(l_d²/a_d) exp(-sum_d (S_md - S_m'd)² (1/l_d² - 1/a_d) / 4)        M x M
    """

    PER_ROW = ("mean", "p1", "G")

    def __init__(self, radial: Radial, mean: Tensor, var: Tensor, C: Tensor | None = None) -> None:
        self.radial, self.mean, self.var = radial, mean, var
        self.a = radial.l2 + 2 * var
        self.p1 = psi1(radial, mean, var)
        self.G = exponent(mean, radial.S, 1 / self.a, 0.0).exp_()
        self.C = self._pairs() if C is None else C

    def _pairs(self) -> Tensor:
        l2, S = self.radial.l2, self.radial.S
        log_scale = 0.5 * (l2.log() - self.a.log()).sum() + 2 * self.radial.v.log()
        return exponent(S, S, (1 / l2 - 1 / self.a) / 2, log_scale).exp_()

    def moved(self, rows: Tensor | slice, step: Tensor, log_change: Tensor) -> SharedBlock:
        return SharedBlock(self.radial, self.mean[rows] + step, self.var, self.C)

    def second_sum(self) -> Tensor:
        """``sum_n P2[n] = C * G'G``, M x M."""
        return self.C * (self.G.mT @ self.G)

    def dot(self, Q: Tensor) -> Tensor:
        """``<P2[n], Q> = G_n (C * Q) G_n'``, n."""
        return (self.G @ (self.C * Q)).mul_(self.G).sum(-1)

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


class RowBlock(UncertainBlock):
    """Rows with a variance each (n x d): pseudo-instance by pseudo-instance, n x M at a time."""

    PER_ROW = ("mean", "var", "p1")

    def __init__(self, radial: Radial, mean: Tensor, var: Tensor) -> None:
        self.radial, self.mean, self.var = radial, mean, var
        self.p1 = psi1(radial, mean, var)

    def moved(self, rows: Tensor | slice, step: Tensor, log_change: Tensor) -> RowBlock:
        return RowBlock(self.radial, self.mean[rows] + step, self.var[rows] * log_change.exp())

    def _slices(self) -> tuple[Tensor, Tensor, Tensor]:
        w = 1 / (self.radial.l2 + 2 * self.var)
        log_scale = 0.5 * (self.radial.l2 * w).log().sum(-1, keepdim=True) + 2 * self.radial.v.log()
        near = exponent(self.radial.S, self.radial.S, 1 / (2 * self.radial.l2), 0.0)
        return w, log_scale, near

    def _slice(self, m: int, w: Tensor, log_scale: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """``P2[:, m, :m+1]`` (n x (m+1)) and the midpoints ``(S_m + S_m')/2``; the rest follows by symmetry."""
        middle = (self.radial.S[m] + self.radial.S[: m + 1]) / 2
        return exponent(self.mean, middle, 2 * w, log_scale, near[m, : m + 1]).exp_(), middle

    def second_sum(self) -> Tensor:
        """``sum_n P2[n]``, M x M."""
        slices = self._slices()
        M = len(self.radial.S)
        out = self.mean.new_zeros(M, M)
        for m in range(M):
            out[m, : m + 1] = self._slice(m, *slices)[0].sum(0)
        return out + out.tril(-1).mT

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

    points = True

    def __init__(self, kernel: Kernel, S: Tensor, x: Tensor) -> None:
        self.p1 = near_kernel_matrix(kernel, x, S)
