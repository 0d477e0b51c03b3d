"""What every fit returns: the model, its guide and the history, with prediction on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from pyro import poutine
from torch import Tensor

from esmc_pyro.guides import Guide
from esmc_pyro.models import ESMC
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_features, check_number

SITES = ("z", "suitability", "y")


@dataclass
class Posterior:
    """``q`` after a fit, whichever algorithm made it.

    ``history`` has a row for each epoch (or block update) with at least ``elbo`` and ``seconds``; ``interrupted`` says
    that the user stopped the fit early.
    """

    model: ESMC
    guide: Guide
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    interrupted: bool = False

    def _check(self, X: Any) -> Tensor:
        pseudo = self.model.layers[0].pseudo_instances
        return check_features(X, columns=pseudo.shape[1]).to(pseudo.dtype)

    @torch.no_grad()
    def predict_layers(self, X: Any, block: int = 4096) -> list[Tensor]:
        """Plug-in means of every layer's output, ``[E f_c(x), E f_z(E f_c(x))]``: (rows x L), ..., (rows x K)."""
        us = self.guide.u_means()
        blocks = [self.model.plug_in(x, us) for x in self._check(X).split(block)]
        return [torch.cat(outputs) for outputs in zip(*blocks, strict=True)]

    def predict(self, X: Any) -> Tensor:
        """The paper's prediction ``E[f_z(E[f_c(x)])]`` of ``z``, rows x K."""
        return self.predict_layers(X)[-1]

    @torch.no_grad()
    def sample(
        self, X: Any, draws: int = 100, sites: Sequence[str] = SITES, *, seed: int | None = None, block: int = 4096
    ) -> dict[str, Tensor]:
        """Posterior-predictive draws for the rows of ``X``: draws x rows x K for each of ``sites``.

        Each draw takes ``f`` and ``u`` from the guide, then runs the model itself from ``x`` to ``y``. ``suitability``
        is ``sigma(lambda z)``; any other local site of the model (``c``, ``z_hat``, ...) may be asked for by name.
        """
        X = self._check(X)
        check_number(draws, "draws", low=1, whole=True)
        known = {*SITES, *(site for layer in self.model.layers for site in (layer.site, layer.hat))}
        for site in sites:
            check_choice(site, known, "sites")
        taken: dict[str, list[Tensor]] = {site: [] for site in sites}
        with seeded(seed):
            for _ in range(draws):
                functions = poutine.trace(self.guide.sample_globals).get_trace()
                values = {name: node["value"] for name, node in functions.nodes.items() if name[:2] in ("f_", "u_")}
                model = poutine.condition(self.model, data=values)
                parts: dict[str, list[Tensor]] = {site: [] for site in sites}
                for x in X.split(block):
                    trace = poutine.trace(model).get_trace(x)
                    for site in sites:
                        if site == "suitability":
                            parts[site].append(self.model.likelihood.suitability(trace.nodes["z"]["value"]))
                        else:
                            parts[site].append(trace.nodes[site]["value"])
                for site in sites:
                    taken[site].append(torch.cat(parts[site]))
        return {site: torch.stack(values) for site, values in taken.items()}
