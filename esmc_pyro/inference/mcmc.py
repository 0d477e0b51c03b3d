"""NUTS and HMC: the posterior itself, for small data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pandas as pd
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to
from tqdm.auto import tqdm

from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.guides.start import label_informed_start
from esmc_pyro.inference.hamiltonian import HMC, NUTS, Draw, Sampler, run
from esmc_pyro.models import ESMC, NotPositiveDefiniteError, observed
from esmc_pyro.models.marginal import local_mean_and_scale
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_number

KERNELS = ("nuts", "hmc")
STARTS = ("labels", "prior")
HISTORY = ("chain", "draws", "divergences", "accept", "step_size", "steps", "seconds")
STATS = ("energy", "accept", "steps", "diverging", "step_size")
LIMIT = 50_000  # numbers in one state of a chain
PORTION = 2**24  # numbers in the largest tensor made at once after the last draw
SPREAD = 0.5  # of the chains' first states around a start


class Noises:
    """``Marginal`` as a function of standard normal noises, whose posterior has no funnels and few stiff directions.

    For a layer called ``c``: ``v_c`` (O x M) and ``e_c`` (n x O) are N(0, I) a priori, and::

        c = mean(x) + A(x) v_c + sqrt(residual_variance(x) + gamma^2) e_c

    Parameters with priors come along, unconstrained. States of several chains are the rows of a matrix (C x D), the
    noises one after the other in the order of ``shapes``.
    """

    def __init__(self, model: ESMC, X: Tensor, Y: Tensor) -> None:
        self.model, self.X = model, X
        self.y, self.known = observed(Y, torch.arange(len(X), device=X.device))
        with model._pyro_context:
            nodes = poutine.trace(model.draw_priors).get_trace().nodes
        self.priors = {name: node["fn"] for name, node in nodes.items() if node["type"] == "sample"}
        self.shapes = {
            name: tuple(biject_to(p.support).inv(nodes[name]["value"]).shape) for name, p in self.priors.items()
        }
        for layer in model.layers:
            self.shapes[f"v_{layer.site}"] = (layer.outputs, layer.pseudo_count)
            self.shapes[f"e_{layer.site}"] = (len(X), layer.outputs)
        self._normal = sum(math.prod(shape) for name, shape in self.shapes.items() if name not in self.priors)
        # what stays the same from gradient to gradient, unless parameters are drawn
        self.factors = None if self.priors else [layer.factor() for layer in model.layers]
        self.features = None if self.factors is None else model.layers[0].features(X, self.factors[0])

    @property
    def size(self) -> int:
        """``D``."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def noises(self, q: Tensor) -> dict[str, Tensor]:
        """States by name: ``(..., D) -> (..., *shape)`` each."""
        parts = q.split([math.prod(shape) for shape in self.shapes.values()], dim=-1)
        return {
            name: part.reshape((*q.shape[:-1], *shape))
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def start(self, chains: int, vs: dict[str, Tensor]) -> Tensor:
        """First states: draws of the prior, or, where ``vs`` has a value for a name, ``SPREAD`` around it."""
        q = torch.randn(chains, self.size, dtype=self.X.dtype)
        parts = self.noises(q)
        parts |= {name: v + SPREAD * parts[name] for name, v in vs.items()}
        for name, prior in self.priors.items():
            parts[name] = biject_to(prior.support).inv(prior.sample((chains,))).to(q)
        return torch.cat([part.reshape(chains, -1) for part in parts.values()], dim=1)

    def sites(self, q: Tensor, functions: bool = True) -> dict[str, Tensor]:
        """The sites of ``Marginal``: ``(..., D) -> (..., *shape)`` each; with priors only ``(D,) -> (*shape)``.

        ``functions`` asks for ``u`` too.
        """
        noise = self.noises(q)
        sites = {name: biject_to(prior.support)(noise[name]) for name, prior in self.priors.items()}
        h = self.X
        with self._with(sites):
            for depth, layer in enumerate(self.model.layers):
                v = noise[f"v_{layer.site}"]
                loc, scale = local_mean_and_scale(layer, h, v, self._features(depth, h))
                h = loc + scale * noise[f"e_{layer.site}"]
                sites |= {f"v_{layer.site}": v, layer.site: h}
                if functions:
                    sites[f"u_{layer.site}"] = v @ layer.factor().mT
        return sites

    def sites_of(self, q: Tensor) -> dict[str, Tensor]:
        """``sites``, a portion of the states at a time: ``(C, draws, D) -> (C, draws, *shape)`` each."""
        widest = max(layer.pseudo_count for layer in self.model.layers)
        together = max(1, PORTION // (len(self.X) * widest))
        flat = q.flatten(0, 1)
        parts = [self.sites(some) for some in (flat if self.priors else flat.split(together))]
        join = torch.stack if self.priors else torch.cat
        return {name: join([part[name] for part in parts]).unflatten(0, q.shape[:2]) for name in parts[0]}

    def _features(self, depth: int, h: Tensor) -> Tensor | None:
        if self.factors is None or depth == 0:
            return self.features
        return self.model.layers[depth].features(h, self.factors[depth])

    @contextmanager
    def _with(self, parameters: dict[str, Tensor]) -> Iterator[None]:
        """The model's parameters at these values, inside the block."""
        if not parameters:
            yield
            return
        with self.model._pyro_context, poutine.condition(data=dict(parameters)):
            yield

    def energy(self, q: Tensor) -> Tensor:
        """``-ln p(noises, y)`` up to a constant: ``(C, D) -> (C,)``."""
        if self.priors:  # kernels take one length-scale at a time
            return torch.stack([self._energy(one) for one in q])
        return self._energy(q)

    def _energy(self, q: Tensor) -> Tensor:
        try:
            sites = self.sites(q, functions=False)
        except NotPositiveDefiniteError:  # a kernel scale far outside all reason: no such place
            return q.sum(-1) * 0 + math.inf
        parameters = {name: sites[name] for name in self.priors}
        with self._with(parameters):
            fit = self.model.likelihood.log_prob(self.y, sites["z"])
        energy = -torch.where(self.known, fit, 0.0).sum((-2, -1))
        energy = energy + 0.5 * q[..., -self._normal :].square().sum(-1)  # priors come first
        if parameters:
            noise = self.noises(q)
            for name, prior in self.priors.items():
                volume = biject_to(prior.support).log_abs_det_jacobian(noise[name], sites[name])
                energy = energy - prior.log_prob(sites[name]).sum() - volume.sum()
        return energy


def fit_nuts(
    model: ESMC,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    kernel: Literal["nuts", "hmc"] = "nuts",
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    trajectory: float = 2.0,
    start: Literal["labels", "prior"] = "labels",
    seed: int | None = 0,
    progress: bool = True,
) -> Posterior:
    """Draw from the posterior by the No-U-Turn sampler, or Hamiltonian Monte Carlo; the guide is a ``DrawsGuide``.

    ``X`` is N x F, ``Y`` N x K of 0, 1 and NaN for unknown, ``X_unlabeled`` I x F. The chains move in the noises of
    ``Noises``; a gradient needs all rows, so this is for small data. The model's parameters stay as they are, but for
    those with priors (``PyroSample``), which are drawn along. ``trajectory`` is the length of HMC's.

    Chains move in step. They take ``warmup`` steps to settle step size and diagonal mass matrix, one for all of them,
    then ``draws`` more. They begin near ``label_informed_start``, which also moves the model's later layers as the
    guides' starts do, or, with ``start="prior"``, at draws of the prior, and leave the model as it is. Ctrl-C keeps the
    draws made so far. The history has a row a chain (``HISTORY``), the guide's ``stats`` a number a draw (``STATS``).
    """
    X, Y = model.check_data(X, Y, X_unlabeled)
    check_choice(kernel, KERNELS, "kernel")
    check_choice(start, STARTS, "start")
    for value, name in ((chains, "chains"), (warmup, "warmup"), (draws, "draws"), (max_tree_depth, "max_tree_depth")):
        check_number(value, name, low=1, whole=True)
    check_number(trajectory, "trajectory", low=0, above=True)
    check_number(target_accept, "target_accept", low=0, above=True)
    if target_accept >= 1:
        raise ValueError(f"target_accept must be below 1; got {target_accept!r}")
    if model.has_priors and start == "labels":
        raise ValueError(
            "start must be 'prior' for a model with priors on parameters, which labels cannot start; got 'labels'"
        )
    size = sum(layer.outputs * (layer.pseudo_count + len(X)) for layer in model.layers)
    if size > LIMIT:
        raise ValueError(
            f"X and Y must be small for {kernel.upper()}, whose states hold at most {LIMIT} numbers, one for each "
            f"output of each layer and row or pseudo-instance; got {size} (use fit_svi or fit_analytic, or fewer rows)"
        )
    with seeded(seed), _held(model):
        vs: dict[str, Tensor] = {}
        if start == "labels":
            us = label_informed_start(model, X, Y)
            vs = {f"v_{layer.site}": layer.whiten(u) for layer, u in zip(model.layers, us, strict=True)}
        noises = Noises(model, X, Y)
        q = noises.start(chains, vs)
        step_size, mass = noises.size**-0.25, torch.ones_like(q[0])
        sampler: Sampler = (
            NUTS(noises.energy, step_size, mass, max_tree_depth)
            if kernel == "nuts"
            else HMC(noises.energy, step_size, mass, trajectory)
        )
        kept: list[Draw] = []
        diverged, begun = 0, time.perf_counter()
        with tqdm(total=warmup + draws, disable=not progress, desc=kernel, unit="step") as bar:
            try:
                for draw in run(sampler, q, warmup, draws, target_accept):
                    if draw is not None:
                        kept.append(draw)
                        diverged += int(draw.diverging.sum())
                    bar.set_postfix(step_size=f"{sampler.step_size:.2g}", divergences=diverged, refresh=False)
                    bar.update()
            except KeyboardInterrupt:
                if not kept:
                    raise
        with torch.no_grad():
            sites = noises.sites_of(torch.stack([draw.q for draw in kept], dim=1))
    stats = {name: torch.stack([torch.as_tensor(getattr(d, name)).expand(chains) for d in kept], 1) for name in STATS}
    history = pd.DataFrame(
        {
            "chain": range(1, chains + 1),
            "draws": len(kept),
            "divergences": stats["diverging"].sum(1).tolist(),
            "accept": stats["accept"].mean(1).tolist(),
            "step_size": sampler.step_size,
            "steps": stats["steps"].mean(1).tolist(),
            "seconds": time.perf_counter() - begun,
        }
    )
    if diverged:
        warnings.warn(
            f"{diverged} of {chains * len(kept)} draws diverged, so that parts of the posterior may be missing; "
            f"try a target_accept above {target_accept}",
            RuntimeWarning,
            stacklevel=2,
        )
    return Posterior(model, DrawsGuide(model, sites, stats), history, interrupted=len(kept) < draws)


@contextmanager
def _held(model: ESMC) -> Iterator[None]:
    """Nothing of the model is learned inside the block, so that what it is made of is computed once."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
