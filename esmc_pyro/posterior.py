"""What every fit returns: the model, its guide and the history, with prediction on top."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyro
import torch
from pyro import poutine
from torch import Tensor

from esmc_pyro.guides import Guide
from esmc_pyro.models import ESMC
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_features, check_number

SITES = ("z", "suitability", "y")
LIMIT = 2e7  # numbers in the largest tensor of draws made at once


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
    def predict_layers(self, X: Any) -> list[Tensor]:
        """Plug-in means of every layer's output, ``[E f_c(x), E f_z(E f_c(x))]``: (rows x L), ..., (rows x K)."""
        return self.guide.plug_in(self._check(X))

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
        likelihood = self.model.likelihood
        experts = likelihood.B if getattr(likelihood, "explicit", False) else 1
        widest = max(self.model.labels * experts, *self._pseudo_counts())
        # kernels take one value of a parameter that was drawn
        together = 1 if self.model.has_priors else max(1, int(LIMIT // (widest * min(block, len(X)))))
        with seeded(seed):
            parts = [self._draw(X, min(together, draws - done), sites, block) for done in range(0, draws, together)]
        return {site: torch.cat([part[site] for part in parts]) for site in sites}

    def to_arviz(self, X: Any, Y: Any, **options: Any) -> Any:
        """Posterior, prior, posterior predictive, log-likelihood and data as ArviZ holds them; see ``arviz_data``.

        ``options``: ``draws``, ``unit`` ("entries" or "instances", what LOO leaves out), ``rows``, ``label_names``,
        ``inner``, ``seed``.
        """
        from esmc_pyro.arviz_data import to_arviz  # ArviZ takes a second to load

        return to_arviz(self, X, Y, **options)

    def _pseudo_counts(self) -> list[int]:
        return [layer.pseudo_count for layer in self.model.layers]

    def _draw(self, X: Tensor, draws: int, sites: Sequence[str], block: int) -> dict[str, Tensor]:
        """Some draws at once, in a plate left of the model's own; the rows of a draw share its functions."""
        parts: dict[str, list[Tensor]] = {site: [] for site in sites}
        with nullcontext() if self.model.has_priors else pyro.plate("draws", draws, dim=-3):
            functions = poutine.trace(self.guide.sample_globals).get_trace()
            drawn = ("f_", "u_", "esmc.")  # functions, and parameters with priors
            values = {name: node["value"] for name, node in functions.nodes.items() if name.startswith(drawn)}
            model = poutine.condition(self.model, data=values)
            for x in X.split(block):
                nodes = poutine.trace(model).get_trace(x).nodes
                for site in sites:
                    value = nodes["z" if site == "suitability" else site]["value"]
                    value = value.reshape(draws, *value.shape[-2:])
                    parts[site].append(self.model.likelihood.suitability(value) if site == "suitability" else value)
        return {site: torch.cat(values, dim=1) for site, values in parts.items()}
