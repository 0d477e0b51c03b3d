"""Draws of chains as a guide: the empirical distribution of what NUTS or HMC found."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from esmc_pyro.guides.base import Guide
from esmc_pyro.models import ESMC, Marginal

PLUG_IN_DRAWS = 200  # draws at most that plug-in prediction averages over, evenly spaced


class DrawsGuide(Guide):
    """Every draw with the same probability; nothing is learned.

    ``draws`` holds chains x draws x ... by the site names of ``Marginal``: ``v_c``, ``u_c`` (O x M) and ``c`` (n x O)
    of every layer, and the parameters on which the user put priors, under Pyro's names for them. ``stats`` holds
    chains x draws of what the sampler says of each draw.
    """

    def __init__(self, model: ESMC, draws: Mapping[str, Tensor], stats: Mapping[str, Tensor] | None = None) -> None:
        super().__init__(model)
        self.draws, self.stats = dict(draws), dict(stats or {})
        own = {site for layer in model.layers for site in (f"v_{layer.site}", f"u_{layer.site}", layer.site)}
        missing = sorted(own - set(draws))
        if missing:
            raise ValueError(f"draws must hold the sites {sorted(own)}; got none of {missing}")
        self.drawn_parameters = sorted(set(draws) - own)
        self.rows = draws["z"].shape[2]
        self._joint = (Marginal(model),)

    @property
    def joint(self) -> nn.Module:
        return self._joint[0]

    def flat(self, site: str) -> Tensor:
        """The draws of all chains in a row: ``chains * draws x ...``."""
        return self.draws[site].flatten(0, 1)

    def _at(self, index: Tensor | int) -> ExitStack:
        """The model's parameters as they were drawn, for the length of a ``with`` block."""
        stack = ExitStack()
        stack.enter_context(self.model._pyro_context)
        stack.enter_context(poutine.condition(data={name: self.flat(name)[index] for name in self.drawn_parameters}))
        return stack

    def _pick(self) -> Tensor:
        """A draw at random, or one for each item of a plate left of the model's own: () or (..., 1)."""
        index = pyro.sample("draw", dist.Categorical(torch.ones(len(self.flat("z")))))
        return index[..., 0] if index.dim() else index  # the last dimension is that of the model's plates

    def sample_globals(self) -> list[Tensor]:
        index = self._pick()
        us = []
        with self._at(index):
            self.model.draw_priors()
            for layer, plate in self._plates():
                with plate:
                    u = self.flat(f"u_{layer.site}")[index]
                    us.append(pyro.sample(f"u_{layer.site}", dist.Delta(u, event_dim=1)))
                    pyro.sample(f"f_{layer.site}", layer.functions_given(u))
        return us

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> None:
        """One draw of everything that ``Marginal`` draws, for rows of the training data."""
        index = self._pick()
        with self._at(index):
            self.model.draw_priors()
        for layer, plate in self._plates():
            with plate:
                pyro.sample(f"v_{layer.site}", dist.Delta(self.flat(f"v_{layer.site}")[index], event_dim=1))
        with pyro.plate("instances", len(X), subsample=rows, dim=-1):
            for layer in self.model.layers:
                c = self.flat(layer.site)[index]
                pyro.sample(layer.site, dist.Delta(c if rows is None else c[..., rows, :], event_dim=1))

    def u_means(self) -> list[Tensor]:
        return [self.flat(f"u_{layer.site}").mean(0) for layer in self.model.layers]

    @torch.no_grad()
    def plug_in(self, x: Tensor) -> list[Tensor]:
        """The mean over draws of ``ESMC.plug_in``; a mean of ``u`` would mix orientations of the latent space."""
        count = len(self.flat("z"))
        some = torch.linspace(0, count - 1, min(count, PLUG_IN_DRAWS)).round().long().tolist()
        total: list[Tensor] = []
        for index in some:
            with self._at(index):
                self.model.draw_priors()
                outputs = self.model.plug_in(x, [self.flat(f"u_{layer.site}")[index] for layer in self.model.layers])
            total = [a + b for a, b in zip(total, outputs, strict=True)] if total else outputs
        return [output / len(some) for output in total]
