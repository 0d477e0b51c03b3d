"""Coordinate ascent on the closed-form bound, a sweep at a time: global factors from sums over rows, then one pass over the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic.bound import Moments, output_term
from esmc_pyro.inference.analytic.functions import Functions
from esmc_pyro.inference.analytic.labels import make_label_term
from esmc_pyro.inference.analytic.latent import Above, climb, own_part, shared_variance
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.psi import FixedBlock, Radial, RowBlock, SharedBlock
from esmc_pyro.models import ESMC

TRIES = 3  # lengths of a step on q(c) that are tried before it is given up for this sweep


class Solver:
    """``q`` of the paper's factorisation while it is being fitted; starts from a ``PaperGuide`` and is written back to one.

    Per layer ``i``: ``functions[i]`` (global factors), ``loc[i]``, ``var[i]`` (rows x O; ``var`` 1 x O if shared), and the sums over rows that the
    global updates need: ``cross[i]`` = P1'm (M x O) and ``second[i]`` = Lw^-1 (sum P2) Lw^-T (M x M). ``frozen`` rows are those whose
    ``q(z)`` is not updated (from that row on).
    """

    def __init__(
        self, model: ESMC, X: Tensor, Y: Tensor, guide: PaperGuide, options: Options, frozen: int | None = None
    ):
        self.model, self.X, self.Y, self.guide, self.options = model, X, Y, guide, options
        self.frozen = len(X) if frozen is None else frozen
        self.layers = list(model.layers)
        self.last = len(self.layers) - 1
        self.functions = [Functions(layer, guide) for layer in self.layers]
        self.loc = [guide.get(layer.site, "loc").detach().clone() for layer in self.layers]
        self.var = [guide.get(layer.site, "scale").detach().square() for layer in self.layers]
        self.shared = options.c_variance == "shared"
        if self.shared:
            self.var[:-1] = [var.mean(0, keepdim=True) for var in self.var[:-1]]
        self.size = [torch.ones(len(X), dtype=X.dtype) for _ in self.layers[:-1]]
        self.labels = make_label_term(
            model.likelihood, Y, self.loc[-1], self.var[-1], float(self.functions[-1].g2), sigmoid=options.sigmoid,
            experts=options.experts, xi=options.xi, xi_start=options.xi_start, clamp=options.clamp,
        )  # fmt: skip
        self.history: list[dict[str, object]] = []
        self.begun = time.perf_counter()
        self.sweeps = 0
        self._gram()
        self.gather()

    # -- the bound ----------------------------------------------------------------------------------------------------

    def terms(self) -> dict[str, float]:
        """The bound's terms by name; their sum is the bound."""
        terms = {f"functions_{f.layer.site}": f.term() for f in self.functions}
        for f, moments in zip(self.functions, self.moments, strict=True):
            terms[f"outputs_{f.layer.site}"] = float(output_term(moments, f.b2, f.g2))
        return terms | {"likelihood": self.likelihood}

    def bound(self) -> float:
        """The bound where ``q`` is now."""
        return sum(self.terms().values())

    def record(self, block: str) -> None:
        """The history gets the bound after an update of ``block``."""
        value = self.bound()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the bound is {value} after {block} in sweep {self.sweeps}; expected a finite number (try larger alpha and gamma)"
            )
        seconds = time.perf_counter() - self.begun
        self.history.append({"sweep": self.sweeps, "block": block, "elbo": value, "seconds": seconds})

    # -- sums over rows -------------------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.X), self.options.block):
            yield slice(start, min(start + self.options.block, len(self.X)))

    @torch.no_grad()
    def _gram(self) -> None:
        """``A'A`` of the first layer's whitened features: its inputs never change, so neither does this."""
        layer, Lw = self.layers[0], self.functions[0].Lw
        self.gram = torch.zeros_like(Lw)
        for rows in self._blocks():
            self.gram += FixedBlock(layer.kernel, layer.pseudo_instances, self.X[rows]).whitened_sum(Lw)

    def _offset(self, i: int, x: Tensor) -> Tensor | float:
        return self.layers[i].offset(x if i == 0 else self.loc[i - 1][:1])

    def _above(self, i: int) -> Above:
        f, dtype = self.functions[i], self.X.dtype
        radial = Radial.of(f.layer.kernel, f.layer.pseudo_instances)
        return Above(radial, f.weights.to(dtype), f.Q.to(dtype), float(f.g2))

    def _psi(self, above: Above, i: int, rows: slice) -> SharedBlock | RowBlock:
        var = self.var[i] if self.shared else self.var[i][rows].clone()
        return above.block(self.loc[i][rows].clone(), var, self.shared)

    @torch.no_grad()
    def gather(self) -> None:
        """The sums over rows and the bound for ``q`` as it is: nothing is updated."""
        self._pass(update=False)

    @torch.no_grad()
    def update_rows(self) -> None:
        """``q(c)``, ``q(z)``, ``xi``, ``q(E)`` of every row; rows are independent given the global factors, so blocks of rows may go in turn."""
        self._pass(update=True)

    def _pass(self, update: bool) -> None:
        L, last = len(self.layers), self.last
        zero = torch.zeros((), dtype=torch.float64)
        second = [self.gram, *(torch.zeros_like(f.Lw) for f in self.functions[1:])]
        cross = [torch.zeros_like(f.u_loc.mT) for f in self.functions]
        cross_before, square, cross_after, var, log_scale = ([zero] * L for _ in range(5))
        blocks = self.labels.blocks if update else ("",)
        values = {block: zero for block in blocks}
        above = [self._above(i) if i else None for i in range(L)]
        weights = [f.weights.to(self.X.dtype).mT.contiguous() for f in self.functions]
        for rows in self._blocks():
            x = self.X[rows]
            psi: FixedBlock | SharedBlock | RowBlock
            psi = FixedBlock(self.layers[0].kernel, self.layers[0].pseudo_instances, x)
            for i in range(L):
                offset = self._offset(i, x)
                hat = psi.p1 @ weights[i]
                cross_before[i] = cross_before[i] + _dot(self.loc[i][rows] - offset, hat)
                following = None
                if i < last:
                    nxt = above[i + 1]
                    assert nxt is not None
                    if update:
                        following = self._update_latent(i, rows, hat + offset, nxt)
                    else:
                        following = self._psi(nxt, i, rows)
                else:
                    active = slice(rows.start, max(rows.start, min(rows.stop, self.frozen)))
                    for block in blocks:
                        if update and active.stop > active.start:
                            self.labels.step(block, active, (hat + offset)[: active.stop - active.start])
                        values[block] = values[block] + self.labels.value(rows)
                m = self.loc[i][rows] - offset
                square[i], cross_after[i] = square[i] + _dot(m, m), cross_after[i] + _dot(m, hat)
                if len(self.var[i]) > 1 or len(self.X) == 1:
                    own = self.var[i][rows]
                    var[i], log_scale[i] = var[i] + own.sum(dtype=torch.float64), log_scale[i] + _half_log(own)
                cross[i] += psi.p1.mT @ m
                if i:
                    second[i] += psi.whitened_sum(self.functions[i].Lw)
                if following is not None:
                    psi = following
        for i in range(L):
            if len(self.var[i]) == 1 < len(self.X):
                var[i] = len(self.X) * self.var[i].sum(dtype=torch.float64)
                log_scale[i] = len(self.X) * _half_log(self.var[i])
        self.cross, self.second = cross, second
        quad = [self._quad(i) for i in range(L)]
        after = [
            Moments(self.loc[i].numel(), square[i], var[i], log_scale[i], cross_after[i], quad[i]) for i in range(L)
        ]
        if not update:
            self.moments, self.likelihood = after, float(values[""])
            return
        for i in range(last):
            self.moments[i] = after[i]
            self.moments[i + 1] = replace(self.moments[i + 1], cross=cross_before[i + 1], quad=quad[i + 1])
            self.record(f"q({self.layers[i].site})")
        self.moments[last] = after[last]
        for block, value in values.items():
            self.likelihood = float(value)
            self.record(block)

    def _quad(self, i: int) -> Tensor:
        """``<P2, Q>`` from the whitened sum."""
        f = self.functions[i]
        return (self.second[i] * (f.Lw.mT @ f.Q @ f.Lw)).sum()

    # -- updates ----------------------------------------------------------------------------------------------------------

    def _update_latent(self, i: int, rows: slice, c_hat: Tensor, above: Above) -> SharedBlock | RowBlock:
        g2 = float(self.functions[i].g2)
        if self.options.q_c == "forward":
            self.loc[i][rows] = c_hat
            self.var[i][rows if not self.shared else slice(None)] = g2
            return self._psi(above, i, rows)
        psi = self._psi(above, i, rows)
        R = (self.loc[i + 1][rows] - self._offset(i + 1, c_hat)) @ above.weights
        size = self.size[i][rows]
        for _ in range(self.options.c_steps):
            climb(psi, c_hat, R, above, g2, size, TRIES)
        self.loc[i][rows] = psi.mean
        if not self.shared:
            self.var[i][rows] = psi.var
        return psi

    @torch.no_grad()
    def update_variance(self, i: int) -> None:
        """The variance of ``q(c)`` that all rows of hidden layer ``i`` share: a step towards its fixed point, kept if the bound rises."""
        above, g2, N = self._above(i + 1), float(self.functions[i].g2), len(self.X)
        offset = self._offset(i + 1, self.X)

        def total(var: Tensor, slope: bool) -> tuple[Tensor, Tensor, Tensor]:
            value, cross, by_var = (torch.zeros((), dtype=torch.float64) for _ in range(3))
            for rows in self._blocks():
                psi = SharedBlock(above.radial, self.loc[i][rows], var)
                R = (self.loc[i + 1][rows] - offset) @ above.weights
                if slope:
                    cost, _, change = above.cost_slope(psi, R)
                    by_var = by_var + change.double()
                else:
                    cost = above.cost(psi, R)
                value, cross = value - cost.sum(dtype=torch.float64), cross + _dot(psi.p1, R)
            zero = torch.zeros_like(var)
            return value + N * own_part(zero, var, zero, g2).double().sum(), cross, by_var

        now, _, by_var = total(self.var[i], slope=True)
        size = 1.0
        for _ in range(TRIES):
            var = shared_variance(self.var[i], by_var.to(self.X.dtype), N, g2, size)
            value, cross, _ = total(var, slope=False)
            if value > now:
                quad = 2 * above.g2 * (N * own_part(0 * var, var, 0 * var, g2).double().sum() - value) + 2 * cross
                self.var[i] = var
                own = replace(self.moments[i], var=N * var.sum().double(), log_scale=N * _half_log(var))
                self.moments[i], self.moments[i + 1] = own, replace(self.moments[i + 1], cross=cross, quad=quad)
                break
            size /= 4
        self.record(f"q({self.layers[i].site}) variance")

    def update_u(self, i: int) -> None:
        """``q(u)`` of layer ``i`` (and ``q(f)``, if joint)."""
        f, joint = self.functions[i], self.options.functions == "joint"
        f.update_u(self.second[i], self.cross[i], joint=joint)
        self.moments[i] = replace(self.moments[i], cross=(self.cross[i] * f.weights.mT).sum(), quad=self._quad(i))
        site = f.layer.site
        self.record(f"q(f_{site}) q(u_{site})" if joint else f"q(u_{site})")

    def update_f(self, i: int) -> None:
        """``q(f)`` of layer ``i``."""
        self.functions[i].update_f()
        self.record(f"q(f_{self.layers[i].site})")

    @torch.no_grad()
    def refresh(self) -> None:
        """New pseudo-instances for the layers above the first, as ``options.refresh`` says: another model, so the bound may fall."""
        for i in range(self.last):
            if isinstance(self.options.refresh, str):
                below = self.layers[i]
                points = below.predict(below.pseudo_instances, self.functions[i].u_loc.to(self.X.dtype))
            else:
                points = self.loc[i][self.options.refresh]
            self.layers[i + 1].pseudo_instances.copy_(points)
            self.functions[i + 1].layer_changed()
        self.gather()
        self.record("refresh")

    def sweep(self) -> float:
        """Every block once; returns the bound."""
        self.sweeps += 1
        order = range(self.last, -1, -1)
        for i in order:
            self.update_u(i)
        if self.options.refresh is not None:
            self.refresh()
        if self.options.functions == "alternate":
            for i in order:
                self.update_f(i)
        if self.shared and self.options.q_c == "gradient":
            for i in range(self.last):
                self.update_variance(i)
        self.update_rows()
        return self.bound()

    @torch.no_grad()
    def write(self) -> PaperGuide:
        """``q`` into the guide, in its own dtype."""
        for i, f in enumerate(self.functions):
            site, dtype = f.layer.site, self.X.dtype
            values = {"f_loc": f.f_loc, "f_tril": f.f_tril, "u_loc": f.u_loc, "loc": self.loc[i]}
            values["u_tril" if f.full else "u_scale"] = f.u_spread
            values["scale"] = self.var[i].sqrt().expand_as(self.loc[i])
            for what, value in values.items():
                name = f"{site}_{what}"
                value = value.to(dtype).clone()
                if isinstance(getattr(self.guide, name), nn.Parameter):
                    getattr(self.guide, name).data = value
                else:
                    setattr(self.guide, name, value)
        return self.guide


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dtype=torch.float64)


def _half_log(var: Tensor) -> Tensor:
    """``sum ln s`` of ``s²``."""
    return 0.5 * var.log().sum(dtype=torch.float64)
