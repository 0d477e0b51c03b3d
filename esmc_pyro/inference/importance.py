"""Importance sampling: the posterior itself, from weighted draws of a guide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro.guides import Guide
from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_data, check_number

TOGETHER = 1000  # draws made at once


class WeightedDraws(NamedTuple):
    """Draws of a guide with ``ln w = ln p(sites, y) - ln q(sites)``: together they stand for the posterior.

    ``log_weights`` (draws,); ``sites`` holds draws x ... for each site asked for. Means are self-normalised,
    ``sum_i w_i h_i / sum_i w_i``.
    """

    log_weights: Tensor
    sites: dict[str, Tensor]

    @property
    def weights(self) -> Tensor:
        """The weights, scaled to a sum of one: (draws,)."""
        return torch.softmax(self.log_weights.double(), 0)

    @property
    def effective_size(self) -> float:
        """``(sum w)^2 / sum w^2``: how many draws of the posterior itself the weighted ones are worth, roughly."""
        return 1 / self.weights.square().sum().item()

    def mean(self, site: str) -> tuple[Tensor, Tensor]:
        """The posterior mean of a site and its standard error, ``sqrt(sum_i w_i^2 (h_i - mean)^2)``."""
        values = self.sites[site].double()
        w = self.weights.reshape(-1, *[1] * (values.dim() - 1))
        mean = (w * values).sum(0)
        return mean, (w * (values - mean)).square().sum(0).sqrt()

    def log_evidence(self) -> float:
        """``ln p(y)``, estimated by ``ln mean_i w_i``."""
        return (torch.logsumexp(self.log_weights.double(), 0) - torch.tensor(len(self.log_weights)).log()).item()


def log_weights(
    posterior: Posterior, X: Any, Y: Any, draws: int = 1000, *, X_unlabeled: Any = None, seed: int | None = 0
) -> Tensor:
    """``ln p(sites, y) - ln q(sites)`` for draws of the guide ``q`` against its program ``guide.joint``: (draws,).

    What PSIS k-hat and importance sampling are made of. Arguments as for the fit.
    """
    return importance_sample(
        posterior, X, Y, draws, X_unlabeled=X_unlabeled, sites=(), seed=seed, progress=False
    ).log_weights


def check_is_density(guide: Guide) -> None:
    """Raise ``ValueError`` unless ``q`` has a density that the posterior's can be divided by."""
    if isinstance(guide, DrawsGuide):
        raise ValueError("posterior must be variational to be weighed; got chains, of which R-hat and ESS speak")
    if guide.is_point:
        raise ValueError("posterior must have a density to be weighed; got a guide that is a single point")


@torch.no_grad()
def importance_sample(
    posterior: Posterior,
    X: Any,
    Y: Any,
    draws: int = 10_000,
    *,
    X_unlabeled: Any = None,
    sites: Sequence[str] = ("z",),
    seed: int | None = 0,
    progress: bool = True,
) -> WeightedDraws:
    """Draw from the guide of ``posterior`` and weigh the draws towards the exact posterior; arguments as for the fit.

    Ctrl-C keeps the draws made so far. Honest as far as ``effective_size`` goes: where it is a handful of draws,
    neither means nor errors can be trusted.
    """
    X, Y = check_data(X, Y, X_unlabeled)
    check_number(draws, "draws", low=1, whole=True)
    known = {site for layer in posterior.model.layers for site in (f"u_{layer.site}", layer.site)}
    for site in sites:
        check_choice(site, known, "sites")
    check_is_density(posterior.guide)
    like = posterior.model.layers[0].pseudo_instances
    X, Y = X.to(like), Y.to(like)
    parts: list[WeightedDraws] = []
    with seeded(seed), tqdm(total=draws, disable=not progress, desc="importance sampling", unit="draw") as bar:
        try:
            for done in range(0, draws, TOGETHER):
                parts.append(_draw(posterior, X, Y, min(TOGETHER, draws - done), sites))
                bar.update(len(parts[-1].log_weights))
        except KeyboardInterrupt:
            if not parts:
                raise
    values = {site: torch.cat([part.sites[site] for part in parts]) for site in sites}
    return WeightedDraws(torch.cat([part.log_weights for part in parts]), values)


def _draw(posterior: Posterior, X: Tensor, Y: Tensor, count: int, sites: Sequence[str]) -> WeightedDraws:
    """Draws made at once, in a plate left of every plate of the model's."""
    with pyro.plate("draws", count, dim=-3):
        q = poutine.trace(posterior.guide).get_trace(X, Y)
        p = poutine.trace(poutine.replay(posterior.guide.joint, trace=q)).get_trace(X, Y)
    values = {site: p.nodes[site]["value"] for site in sites}  # an autoguide draws v, of which the model makes u
    values = {site: value.reshape(count, *value.shape[-2:]) for site, value in values.items()}
    return WeightedDraws(_log_prob(p, count) - _log_prob(q, count), values)


def _log_prob(trace: poutine.Trace, count: int) -> Tensor:
    """The log density of each draw: (count,)."""
    trace.compute_log_prob()
    total = torch.zeros(count, dtype=torch.float64)
    for node in trace.nodes.values():
        if "log_prob" in node and node["log_prob"].dim() > 0:  # that of a plate is a plain zero
            total = total + node["log_prob"].double().reshape(count, -1).sum(1)
    return total
