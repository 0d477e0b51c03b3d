"""The pass over the rows, block by block: local factors are updated and the sums that the global ones need are
gathered.

Memory: the data, ``q`` of every row (N x (L + K)), and for one block of rows a few matrices of block x M. The first
layer's kernel matrix is computed once a pass. Float32 data stay float32; the psi statistics of a block are float64,
because ``Q`` cancels too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esmc_pyro.inference.analytic.blocks import FixedBlock, SharedBlock, UncertainBlock
from esmc_pyro.inference.analytic.bound import Moments
from esmc_pyro.inference.analytic.functions import Functions
from esmc_pyro.inference.analytic.labels import LabelTerm
from esmc_pyro.inference.analytic.latent import Above, climb, own_part, shared_variance
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.psi import Radial, whitened, whitened_gram

TRIES = 3  # lengths of a step on q(c) that are tried before it is given up for this sweep


def dot(a: Tensor, b: Tensor) -> Tensor:
    """``<a, b>``, summed in float64."""
    return (a * b).sum(dtype=torch.float64)


def log_scale(var: Tensor) -> Tensor:
    """``sum ln s`` of the variances ``s²``."""
    return 0.5 * var.log().sum(dtype=torch.float64)


@dataclass
class Totals:
    """Sums over rows for one layer. ``dot_before``, ``dot_after``: <m, P1 W m_u'> before and after ``q`` of its
    outputs was updated.
    """

    second: Tensor
    cross: Tensor
    count: int
    dot_before: Tensor
    dot_after: Tensor
    square: Tensor
    var: Tensor
    log_scale: Tensor

    @classmethod
    def empty(cls, f: Functions, count: int) -> Totals:
        zeros = [torch.zeros((), dtype=torch.float64) for _ in range(5)]
        return cls(torch.zeros_like(f.Lw), torch.zeros_like(f.u_loc.mT), count, *zeros)

    def moments(self, quad: Tensor) -> Moments:
        """What the bound needs of them."""
        return Moments(self.count, self.square, self.var, self.log_scale, self.dot_after, quad)


class Rows:
    """The local factors: ``loc[i]``, ``var[i]`` of layer ``i`` (rows x O; a hidden ``var`` is 1 x O if ``shared``)."""

    def __init__(
        self,
        functions: list[Functions],
        X: Tensor,
        loc: list[Tensor],
        var: list[Tensor],
        labels: LabelTerm,
        options: Options,
        frozen: int,
    ) -> None:
        self.functions, self.X, self.loc, self.var, self.labels = functions, X, loc, var, labels
        self.options, self.frozen, self.last = options, frozen, len(functions) - 1
        self.shared = options.c_variance == "shared"
        if self.shared:
            self.var[:-1] = [each.mean(0, keepdim=True) for each in var[:-1]]
        self.size = [torch.ones(len(X), dtype=torch.float64) for _ in functions[:-1]]
        self.gram = torch.zeros_like(functions[0].Lw)  # the features never change, so neither do their second moments
        with torch.no_grad():
            for rows in self._blocks():
                self.gram += whitened_gram(self._first(rows).p1, functions[0].Lw)

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.X), self.options.block):
            yield slice(start, min(start + self.options.block, len(self.X)))

    def _first(self, rows: slice) -> FixedBlock:
        layer = self.functions[0].layer
        return FixedBlock(layer.kernel, layer.pseudo_instances, self.X[rows])

    def _above(self, i: int) -> Above:
        """Layer ``i + 1`` as hidden layer ``i`` sees it."""
        f = self.functions[i + 1]
        radial = Radial.of(f.layer.kernel, f.layer.pseudo_instances.double())
        return Above(radial, f.weights, f.Q, float(f.g2))

    def _psi(self, above: Above, i: int, rows: slice) -> UncertainBlock:
        var = self.var[i] if self.shared else self.var[i][rows]
        return above.block(self.loc[i][rows].to(torch.float64, copy=True), var.double(), self.shared)

    def _offset(self, i: int, rows: slice) -> Tensor | float:
        """The layer's mean function: of the features in the first layer, a constant above it."""
        return self.functions[i].layer.offset(self.X[rows] if i == 0 else self.loc[i - 1][:1])

    def _target(self, i: int, rows: slice, above: Above) -> Tensor:
        """``R = m W m_u'`` of the outputs above hidden layer ``i`` (n x M)."""
        return (self.loc[i + 1][rows] - self._offset(i + 1, rows)).double() @ above.weights

    def sweep(self, update: bool, labels: bool = True) -> tuple[list[Totals], dict[str, Tensor]]:
        """One pass: the sums of each layer, and the likelihood's term after each of its blocks (or after "gather").

        ``labels=False`` leaves out the likelihood's term.
        """
        totals = [Totals.empty(f, loc.numel()) for f, loc in zip(self.functions, self.loc, strict=True)]
        totals[0].second = self.gram
        raw = [torch.zeros_like(f.Lw) for f in self.functions]
        blocks = self.labels.blocks if update else ("gather",) if labels else ()
        recorded = blocks if self.options.history == "blocks" else blocks[-1:]
        values = dict.fromkeys(recorded, torch.zeros((), dtype=torch.float64))
        aboves = [self._above(i) for i in range(self.last)]
        dtype = self.X.dtype
        weights = [f.weights.mT.to(torch.float64 if i else dtype).contiguous() for i, f in enumerate(self.functions)]
        for rows in self._blocks():
            psi: FixedBlock | UncertainBlock = self._first(rows)
            for i, total in enumerate(totals):
                offset = self._offset(i, rows)
                hat = (psi.p1 @ weights[i]).to(dtype)
                total.dot_before = total.dot_before + dot(self.loc[i][rows] - offset, hat)
                if i == self.last:
                    self._labels(rows, hat + offset, update, values)
                elif update:
                    following = self._latent(i, rows, hat + offset, aboves[i])
                else:
                    following = self._psi(aboves[i], i, rows)
                m = self.loc[i][rows] - offset
                total.square, total.dot_after = total.square + dot(m, m), total.dot_after + dot(m, hat)
                own = self.var[i].expand(len(m), -1) if i < self.last and self.shared else self.var[i][rows]
                total.var = total.var + own.sum(dtype=torch.float64)
                total.log_scale = total.log_scale + log_scale(own)
                total.cross += psi.p1.mT @ m.to(psi.p1.dtype)
                if i and psi.points:
                    total.second += whitened_gram(psi.p1, self.functions[i].Lw)
                elif isinstance(psi, UncertainBlock):
                    raw[i] += psi.second_sum()
                if i < self.last:
                    psi = following
        for i, f in enumerate(self.functions[1:], start=1):
            totals[i].second += whitened(raw[i], f.Lw)
        return totals, values

    def _labels(self, rows: slice, z_hat: Tensor, update: bool, values: dict[str, Tensor]) -> None:
        stop = max(rows.start, min(rows.stop, self.frozen))
        active = slice(rows.start, stop)
        if update and stop > rows.start:
            for _ in range(self.options.z_steps - 1):
                for block in self.labels.blocks:
                    self.labels.step(block, active, z_hat[: stop - rows.start])
        for block in self.labels.blocks if update else ("gather",):
            if update and stop > rows.start:
                self.labels.step(block, active, z_hat[: stop - rows.start])
            if block in values:
                values[block] = values[block] + self.labels.value(rows)

    def _latent(self, i: int, rows: slice, c_hat: Tensor, above: Above) -> UncertainBlock:
        """``q(c)`` of these rows; returns their psi statistics for the next layer."""
        g2 = float(self.functions[i].g2)
        if self.options.q_c == "forward":
            self.loc[i][rows] = c_hat
            self.var[i][slice(None) if self.shared else rows] = g2
            return self._psi(above, i, rows)
        psi, R = self._psi(above, i, rows), self._target(i, rows, above)
        size = self.size[i][rows]
        for _ in range(self.options.c_steps):
            climb(psi, c_hat.double(), R, above, g2, size, TRIES)
        self.loc[i][rows] = psi.mean.to(c_hat.dtype)
        if not self.shared:
            self.var[i][rows] = psi.var.to(c_hat.dtype)
        return psi

    def update_shared_variance(self, i: int, own: Moments, above: Moments) -> tuple[float, Moments, Moments]:
        """A step of the variance that hidden layer ``i``'s rows share, towards its fixed point, if the bound rises.

        Returns the largest relative change and the moments of this layer and the one above, as they are then.
        """
        view, g2, N = self._above(i), float(self.functions[i].g2), len(self.X)
        before = self.var[i].double()

        def total(var: Tensor, slope: bool) -> tuple[Tensor, Tensor, Tensor]:
            """The cost above, ``<m, P1 W m_u'>``, and the cost's gradient by ``var``, over all rows."""
            cost, cross, by_var = (torch.zeros((), dtype=torch.float64) for _ in range(3))
            for rows in self._blocks():
                psi = SharedBlock(view.radial, self.loc[i][rows].double(), var)
                R = self._target(i, rows, view)
                if slope:
                    each, _, change = view.cost_slope(psi, R)
                    by_var = by_var + change
                else:
                    each = view.cost(psi, R)
                cost, cross = cost + each.sum(), cross + dot(psi.p1, R)
            return cost, cross, by_var

        def entropy(var: Tensor) -> Tensor:
            return N * own_part(torch.zeros_like(var), var, torch.zeros_like(var), g2).sum()

        cost, _, by_var = total(before, slope=True)
        now, size = entropy(before) - cost, 1.0
        for _ in range(TRIES):
            var = shared_variance(before, by_var, N, g2, size).to(self.X.dtype).double()
            cost, cross, _ = total(var, slope=False)
            if entropy(var) - cost > now:
                self.var[i] = var.to(self.X.dtype)
                above = replace(above, cross=cross, quad=2 * view.g2 * cost + 2 * cross)
                return (
                    float((var / before - 1).abs().max()),
                    replace(own, var=N * var.sum(), log_scale=N * log_scale(var)),
                    above,
                )
            size /= 4
        return 0.0, own, above
