"""Coordinate ascent on the closed-form bound: global factors from sums over rows, then one pass over the rows."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic.bound import Moments, output_term
from esmc_pyro.inference.analytic.functions import Functions
from esmc_pyro.inference.analytic.labels import make_label_term
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.rows import Rows
from esmc_pyro.models import ESMC

REST = 10  # sweeps for which a shared variance that has settled is left alone
SETTLED = 0.01  # relative change below which it has


class Solver:
    """``q`` of the paper's factorisation while it is fitted; begins at a ``PaperGuide`` and is written back to it.

    Per layer ``i``: ``functions[i]`` (global factors), ``rows.loc[i]``, ``rows.var[i]`` (local ones), and the sums over
    rows that the global updates need, ``cross[i]`` = P1'm (M x O) and ``second[i]`` = Lw^-1 (sum P2) Lw^-T (M x M).
    From row ``frozen`` on, ``q(z)`` is held. ``history`` gets the bound after every update, by the name of its block,
    or after every sweep, as the options say.
    """

    def __init__(
        self, model: ESMC, X: Tensor, Y: Tensor, guide: PaperGuide, options: Options, frozen: int | None = None
    ) -> None:
        self.model, self.guide, self.options = model, guide, options
        self.layers = list(model.layers)
        self.last = len(self.layers) - 1
        self.functions = [Functions(layer, guide) for layer in self.layers]
        loc = [guide.get(layer.site, "loc").detach().clone() for layer in self.layers]
        var = [guide.get(layer.site, "scale").detach().square() for layer in self.layers]
        labels = make_label_term(model.likelihood, Y, loc[-1], var[-1], float(self.functions[-1].g2), options)
        self.rows = Rows(self.functions, X, loc, var, labels, options, len(X) if frozen is None else frozen)
        self.resting = [0] * self.last
        self.history: list[dict[str, object]] = []
        self.begun = time.perf_counter()
        self.sweeps = 0
        self.gather()

    # the bound

    def terms(self) -> dict[str, float]:
        """The bound's terms by name; their sum is the bound."""
        terms = {f"functions_{f.layer.site}": f.term() for f in self.functions}
        for f, moments in zip(self.functions, self.moments, strict=True):
            terms[f"outputs_{f.layer.site}"] = float(output_term(moments, f.b2, f.g2))
        return terms | {"likelihood": self.likelihood}

    def bound(self) -> float:
        """The bound where ``q`` is now."""
        return sum(self.terms().values())

    def record(self, block: str, *, ends: bool = False) -> None:
        """The history gets the bound after an update of ``block``, if it is of all blocks or this one ends a sweep."""
        if self.options.history == "sweeps" and not ends:
            return
        value = self.bound()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the bound is {value} after {block} in sweep {self.sweeps}; expected a finite number "
                "(try larger alpha and gamma)"
            )
        seconds = time.perf_counter() - self.begun
        self.history.append({"sweep": self.sweeps, "block": block, "elbo": value, "seconds": seconds})

    def _quad(self, i: int) -> Tensor:
        """``<sum P2, Q>`` from the whitened sum."""
        f = self.functions[i]
        return (self.second[i] * f.whitened_Q).sum()

    # updates

    @torch.no_grad()
    def gather(self, labels: bool = True) -> None:
        """The sums over rows and the bound for ``q`` as it is: nothing is updated.

        ``labels=False``: the likelihood's term is what it was.
        """
        totals, values = self.rows.sweep(update=False, labels=labels)
        self.cross, self.second = [t.cross for t in totals], [t.second for t in totals]
        self.moments = [t.moments(self._quad(i)) for i, t in enumerate(totals)]
        if labels:
            self.likelihood = float(values["gather"])

    @torch.no_grad()
    def update_rows(self) -> None:
        """``q(c)``, ``q(z)``, ``xi``, ``q(E)`` of every row.

        Rows are independent given the global factors, so a block of rows may finish before the next begins; the history
        shows the bound as if each factor had been updated in all rows before the next factor.
        """
        totals, values = self.rows.sweep(update=True)
        self.cross, self.second = [t.cross for t in totals], [t.second for t in totals]
        after: list[Moments] = [t.moments(self._quad(i)) for i, t in enumerate(totals)]
        for i in range(self.last):
            self.moments[i] = after[i]
            self.moments[i + 1] = replace(
                self.moments[i + 1], cross=totals[i + 1].dot_before, quad=after[i + 1].quad
            )  # fmt: skip
            self.record(f"q({self.layers[i].site})")
        self.moments[-1] = after[-1]
        for block, value in values.items():
            self.likelihood = float(value)
            self.record(block, ends=block == self.rows.labels.blocks[-1])

    @torch.no_grad()
    def update_variance(self, i: int) -> None:
        """The variance of ``q(c)`` that all rows of hidden layer ``i`` share; ``update_rows`` must follow.

        Once it has settled it is looked at only now and then.
        """
        if self.resting[i]:
            self.resting[i] -= 1
            return
        change, own, above = self.rows.update_shared_variance(i, self.moments[i], self.moments[i + 1])
        self.moments[i], self.moments[i + 1] = own, above
        self.resting[i] = REST if change < SETTLED else 0
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
        """New pseudo-instances above the first layer, as ``options.refresh`` says: another model, so the bound may
        fall.
        """
        for i in range(self.last):
            if isinstance(self.options.refresh, str):
                below = self.layers[i]
                u = self.functions[i].u_loc.to(below.pseudo_instances.dtype)
                points = below.predict(below.pseudo_instances, u)
            else:
                points = self.rows.loc[i][self.options.refresh]
            self.layers[i + 1].pseudo_instances.copy_(points)
            self.functions[i + 1].layer_changed()
        if self.options.history == "blocks":  # the sums are of use to the bound only: a pass over the rows follows
            self.gather(labels=False)  # the likelihood depends on z, which stays
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
        if self.options.c_variance == "shared" and self.options.q_c == "gradient":
            for i in range(self.last):
                self.update_variance(i)
        self.update_rows()
        return self.bound()

    @torch.no_grad()
    def write(self) -> PaperGuide:
        """``q`` into the guide, in its own dtype."""
        for i, f in enumerate(self.functions):
            loc = self.rows.loc[i]
            values = {"f_loc": f.f_loc, "f_tril": f.f_tril, "u_loc": f.u_loc, "loc": loc}
            values["u_tril" if f.full else "u_scale"] = f.u_spread
            values["scale"] = self.rows.var[i].sqrt().expand_as(loc)
            for what, value in values.items():
                name, value = f"{f.layer.site}_{what}", value.to(loc.dtype, copy=True)
                if isinstance(getattr(self.guide, name), nn.Parameter):
                    getattr(self.guide, name).data = value
                else:
                    setattr(self.guide, name, value)
        return self.guide
