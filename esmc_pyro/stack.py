"""Several fits as one: members whose ``z`` are averaged with weights that held-out rows chose (stacking).

What held-out rows prefer is uncertain where they are few, and the best of many candidates is partly the luckiest: on
new rows a weighted mean of several does better, even where it scores less on the rows that chose (benchmarks/results/
choices.md). As a posterior it is their mixture: a draw comes from member ``g`` with probability ``w_g``, and ``E[z] =
sum_g w_g E_g[z]``. The weights are those of the mean, the plug-in that predicts (Wolpert, 1992, stacks predictions so);
those of Yao, Vehtari, Simpson and Gelman (2018) are of the mixture's density.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from esmc_pyro.feature_map import FeatureMap
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.guides.whitened import WhitenedGuide
from esmc_pyro.models import Likelihood
from esmc_pyro.models.kernels import kernel_matrix, near_kernel_matrix
from esmc_pyro.objectives import propagate
from esmc_pyro.posterior import SITES, Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.threads import few_threads
from esmc_pyro.validation import check_number

if TYPE_CHECKING:
    from esmc_pyro.default import Settings

LEAST_WEIGHT = 0.05  # a member with less is not worth its fit
DRAWN = 2**27  # numbers of z that are drawn together at most


def member_weights(
    z: Sequence[Tensor], Y: Tensor, likelihood: Likelihood, most: int | None = None
) -> npt.NDArray[np.float64]:
    """The weights ``w_g >= 0``, ``sum_g w_g = 1``, of held-out ``z_g`` (each n x K) for labels ``Y`` (n x K).

    They maximise ``sum ln p(y | sum_g w_g z_g)`` over the known labels, first without their sum being one: calibration
    follows. While one is below ``LEAST_WEIGHT``, or more than ``most`` are above zero, the lightest is left out and the
    others are chosen anew.
    """
    known = ~torch.isnan(Y)
    y = torch.nan_to_num(Y).double()
    # its numbers are in single precision; the copy leaves the caller's as they are
    likelihood = copy.deepcopy(likelihood).double().requires_grad_(False)
    flat = torch.stack([part.flatten() for part in z]).double()
    if not torch.isfinite(flat).all():
        raise ValueError(f"z must be finite; got {flat[~torch.isfinite(flat)][0].item()}")

    def loss(w: npt.NDArray[np.float64], parts: Tensor) -> tuple[float, npt.NDArray[np.float64]]:
        mean = (torch.from_numpy(w) @ parts).view_as(y).requires_grad_(True)
        with torch.enable_grad():
            value = -(likelihood.log_prob(y, mean) * known).sum() / len(y)
        (slope,) = torch.autograd.grad(value, mean)
        return value.item(), (parts @ slope.flatten()).numpy()

    kept = np.arange(len(flat))
    begin = np.full(len(kept), 1 / len(kept))
    with few_threads(flat.numel()):
        while True:
            found = minimize(
                loss, begin, (flat,), "L-BFGS-B", jac=True, bounds=[(0, None)] * len(kept),
                options={"ftol": 1e-12, "gtol": 1e-8},
            ).x  # fmt: skip
            if not found.sum() > 0:  # zero suits the labels better than any z: nothing to tell the members apart
                found = begin
            share = found / found.sum()
            if share.min() >= min(LEAST_WEIGHT, share.max()) and (most is None or len(share) <= most):
                break
            stays = share > 0
            stays[share.argmin()] = False
            kept, begin, flat = kept[stays], found[stays], flat[torch.from_numpy(stays)]
    chosen = np.zeros(len(z))
    chosen[kept] = share
    return chosen


@dataclass
class Member:
    """A fit, the feature map it sees rows through, the settings it was made with (None: none of the default's)."""

    weight: float
    feature_map: FeatureMap
    posterior: Posterior
    settings: Settings | None = None


class Stack:
    """Members, the heaviest first, all with one likelihood and pseudo-instances at the same rows; their weights sum to
    one.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        total = sum(member.weight for member in members)
        if abs(total - 1) < 1e-9:
            total = 1.0  # it is one already, but for rounding
        ordered = sorted(members, key=lambda member: -member.weight)
        self.members = tuple(replace(member, weight=member.weight / total) for member in ordered)

    @property
    def lead(self) -> Member:
        """The heaviest member."""
        return self.members[0]

    def mapped(self, X: Any) -> list[Tensor]:
        """The rows of ``X`` as each member sees them."""
        made: dict[int, Tensor] = {}
        for member in self.members:
            if id(member.feature_map) not in made:
                x = member.feature_map(X)
                # the authors' presets compute in float64
                made[id(member.feature_map)] = x.to(member.posterior.model.layers[0].pseudo_instances.dtype)
        return [made[id(member.feature_map)] for member in self.members]

    def predict(self, X: Any) -> Tensor:
        """``sum_g w_g E_g[z]``, rows x K."""
        total: Any = 0.0
        for member, x in zip(self.members, self.mapped(X), strict=True):
            total = total + member.weight * member.posterior.predict(x)
        return total

    def _shares(self, draws: int, seed: int) -> tuple[list[int], Tensor]:
        """How many of the draws each member makes, and an order that mixes them.

        A share is ``w_g draws`` in the mean over seeds, and never off by one.
        """
        check_number(draws, "draws", low=1, whole=True)
        rng = np.random.default_rng(seed)
        ends = np.cumsum([member.weight for member in self.members])
        which = np.searchsorted(ends, (np.arange(draws) + rng.random()) / draws)
        shares = np.bincount(np.minimum(which, len(ends) - 1), minlength=len(ends)).tolist()
        return shares, torch.from_numpy(rng.permutation(draws) if len(ends) > 1 else np.arange(draws))

    def sample(self, X: Any, draws: int = 100, sites: Sequence[str] = SITES, *, seed: int = 0) -> dict[str, Tensor]:
        """Joint draws of the sites (``Posterior.sample``), draws x rows x K each; each from one member."""
        shares, order = self._shares(draws, seed)
        parts = [
            member.posterior.sample(x, share, sites, seed=seed + place)
            for place, (member, x, share) in enumerate(zip(self.members, self.mapped(X), shares, strict=True))
            if share
        ]
        return {site: torch.cat([part[site] for part in parts])[order] for site in sites}

    @torch.no_grad()
    def z_draws(self, X: Any, draws: int, seed: int) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows with posterior draws of their ``z`` (draws x n x K, at most ``DRAWN`` numbers).

        With the doubly stochastic guide ``u`` is integrated out a row at a time (``objectives.propagate``): each entry
        has its exact marginal, and no draw costs an M x M factor. Other guides are sampled.
        """
        (shares, order), mapped = self._shares(draws, seed), self.mapped(X)
        block = min(1024, max(1, DRAWN // (draws * self.lead.posterior.model.labels)))
        with seeded(seed):
            for start in range(0, len(mapped[0]), block):
                rows = slice(start, min(start + block, len(mapped[0])))
                parts = [
                    _z_draws(member.posterior, x[rows], share)
                    for member, x, share in zip(self.members, mapped, shares, strict=True)
                    if share
                ]
                yield rows, torch.cat(parts)[order]

    @torch.no_grad()
    def similarity(self, X: Any) -> Tensor:
        """``sum_g w_g k_g(x, s_m) / k_g(x, x)`` for the pseudo-instances ``s_m`` of ``c``: rows x M."""
        total = torch.zeros(())
        for member, x in zip(self.members, self.mapped(X), strict=True):
            layer = member.posterior.model.layers[0]
            k = near_kernel_matrix(layer.kernel, x, layer.pseudo_instances)
            total = total + member.weight * k / layer.kernel(x, diag=True).unsqueeze(-1)
        return total

    @torch.no_grad()
    def correlation(self, X: Any) -> Tensor:
        """``sum_g w_g r_g(x, x')``, how alike the rows of ``X`` are to the functions of ``c``: rows x rows.

        ``r`` is the correlation that the posterior leaves between two rows where ``q(u)`` is whitened (the default),
        ``S(x, x') = k(x, x') - A(x) (I - V) A(x')'`` with ``V`` the mean covariance of ``v``, else that of the prior.
        """
        total = torch.zeros(())
        for member, x in zip(self.members, self.mapped(X), strict=True):
            layer, guide = member.posterior.model.layers[0], member.posterior.guide
            S = kernel_matrix(layer.kernel, x, x)
            if isinstance(guide, WhitenedGuide):
                a = layer.features(x)
                S = S - a @ a.mT + guide.mean_covariance(layer, a)
            scale = S.diagonal().clamp(min=1e-6 * layer.kernel(x, diag=True)).sqrt()
            total = total + member.weight * (S / (scale.unsqueeze(1) * scale)).float().clamp(-1, 1)
        return total.fill_diagonal_(1.0)


def _z_draws(posterior: Posterior, x: Tensor, draws: int) -> Tensor:
    if not isinstance(posterior.guide, DoublyStochasticGuide):
        return posterior.sample(x, draws, ("z",))["z"]
    features, z = posterior.model.layers[0].features(x), []
    for _ in range(draws):
        mean, var = propagate(posterior.model, posterior.guide, x, features)
        z.append(mean + var.sqrt() * torch.randn_like(mean))
    return torch.stack(z)
