"""New rows for a fitted default model: what was learned is the prior of what comes.

With whitened functions this needs no old row. Pseudo-instances at new rows go under the old ones, so the Cholesky
factor of ``K + alpha^2 I`` grows below and the old coordinates of ``v`` keep their meaning and their posterior; the new
ones begin at their prior, ``N(0, 1)``. Means move to the most probable ones given the new rows and that prior, and the
precisions of Laplace's approximation add up: ``1 / s^2 = 1 / s_0^2 + mean_o sum_n h_no A_nm^2`` over the new rows.
``c`` and ``f_z`` move together, also where ``f_z`` was fitted by rows without their own labels (``cavity``).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyro.nn import PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from esmc_pyro import default
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import Layer
from esmc_pyro.objectives import MAP, laplace_spread
from esmc_pyro.posterior import Posterior
from esmc_pyro.stack import Member, Stack


def take_in(
    posterior: Posterior, X: Tensor, Y: Tensor, *, seed: int = 0, pseudo: int | None = None, **options: Any
) -> tuple[Posterior, Any]:
    """The posterior after new rows ``X`` (n x F) with labels ``Y`` (n x K), and which of them are pseudo-instances now.

    The posterior given is changed, or, if the fit fails, left as it was. Label coupling and label frequencies stay.
    There are at most ``pseudo`` pseudo-instances (None: ``default.PSEUDO``). ``options`` are ``default.fit_means``'s.
    """
    model, guide = posterior.model, posterior.guide
    layers = list(model.layers)
    room = max(0, (default.PSEUDO if pseudo is None else pseudo) - layers[0].pseudo_count)
    added = np.sort(np.random.default_rng(seed).permutation(len(X))[:room])
    learned = [p for p in model.parameters() if p.requires_grad]
    earlier = [
        (layer.pseudo_instances, guide.v_loc(layer).detach().clone(), _scale(guide, layer.site).clone())
        for layer in layers
    ]
    try:
        with torch.no_grad():
            _add_pseudo_instances(guide, X[added])
        prior = [(guide.v_loc(layer).detach().clone(), _scale(guide, layer.site).clone()) for layer in layers]
        for parameter in learned:
            parameter.requires_grad_(False)  # the offsets have no prior: a few new rows would carry them anywhere
        objective = MAP(prior, absent=default.absent_labels(Y.shape[1], model.likelihood))
        now = default.fit_means(guide, X, Y, objective=objective, seed=seed, **options)
        laplace_spread(model, guide, X, Y)
    except BaseException:
        for layer, state in zip(layers, earlier, strict=True):
            _set(guide, layer, *state)
        raise
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
    for layer, (_, before) in zip(layers, prior, strict=True):
        fresh = _scale(guide, layer.site)
        setattr(guide, f"{layer.site}_v_scale", (before**-2 + fresh**-2 - 1).rsqrt())
    return Posterior(model, guide, _joined(posterior.history, now.history), now.interrupted), added


def take_in_stack(stack: Stack, X: Any, Y: Tensor, **options: Any) -> tuple[Stack, Any]:
    """``take_in`` for every member, of new rows ``X`` as they came.

    Several members take them in all or, if one fails or is interrupted, not at all: they share their pseudo-instances.
    """
    taken: list[Member] = []
    added: Any = None
    alone = len(stack.members) == 1
    for member, x in zip(stack.members, stack.mapped(X), strict=True):
        posterior, added = take_in(member.posterior if alone else copy.deepcopy(member.posterior), x, Y, **options)
        if posterior.interrupted and not alone:
            raise KeyboardInterrupt
        taken.append(replace(member, posterior=posterior))
    return Stack(taken), added


def _scale(guide: DoublyStochasticGuide, site: str) -> Tensor:
    return getattr(guide, f"{site}_v_scale").detach()


def _add_pseudo_instances(guide: DoublyStochasticGuide, x: Tensor) -> None:
    layer = guide.model.layers[0]
    v, scale = guide.v_loc(layer).detach(), _scale(guide, layer.site)
    points = nn.Parameter(torch.cat([layer.pseudo_instances.detach(), x]), requires_grad=False)
    wider = torch.cat([scale, scale.new_ones(len(scale), len(x))], 1)
    _set(guide, layer, points, torch.cat([v, v.new_zeros(len(v), len(x))], 1), wider)


def _set(guide: DoublyStochasticGuide, layer: Layer, points: nn.Parameter, v: Tensor, scale: Tensor) -> None:
    learned = guide.v_loc(layer).requires_grad
    layer.pseudo_instances = points
    setattr(guide, f"{layer.site}_v_loc", nn.Parameter(v, requires_grad=learned))
    setattr(guide, f"{layer.site}_v_scale", PyroParam(scale, constraints.positive))


def _joined(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """One history: epochs and seconds count on."""
    if before.empty or after.empty:
        return after if before.empty else before
    last = before.iloc[-1]
    moved = after.assign(epoch=after["epoch"] + last["epoch"], seconds=after["seconds"] + last["seconds"])
    return pd.concat([before, moved], ignore_index=True)
