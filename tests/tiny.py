"""Small problems and estimates that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor

from esmc_pyro.guides import AmortizedGuide, DoublyStochasticGuide, Guide, PaperGuide
from esmc_pyro.guides.whitened import COVARIANCES
from esmc_pyro.models import (
    EEOE,
    ESMC,
    MPU,
    Bernoulli,
    Experts,
    Gaussian,
    LearnedEEOE,
    LearnedMPU,
    Likelihood,
    NoisyOr,
    PolyaGamma,
    Probit,
    Propensity,
)

N, I, F, K, M = 8, 3, 3, 4, 5
WIDTHS: dict[int, list[int]] = {1: [], 2: [2], 3: [3, 2]}

# one case for each name in LIKELIHOODS at least; numbers for each label are for K labels
LIKELIHOOD_CASES: dict[str, tuple[str, Callable[[], Likelihood]]] = {
    "bernoulli": ("bernoulli", lambda: Bernoulli(1.7)),
    "eeoe": ("eeoe", lambda: EEOE(4, 0.8)),
    "eeoe learned": ("eeoe_learned", lambda: LearnedEEOE([1.2, 2.0, 3.0, 4.0], 0.8)),
    "polya_gamma": ("polya_gamma", lambda: PolyaGamma(1.3)),
    "probit": ("probit", lambda: Probit(0.7)),
    "mpu": ("mpu", lambda: MPU(0.3, 1.2)),
    "mpu learned": ("mpu_learned", lambda: LearnedMPU([0.1, 0.3, 0.5, 0.7])),
    "propensity": ("propensity", lambda: Propensity([0.9, 0.5, 0.3, 1.0])),
    "noisy_or": ("noisy_or", lambda: NoisyOr([0.1, 0.4, 0.6, 0.2], [0.02, 0.1, 0.01, 0.3], 0.9)),
    "gaussian": ("gaussian", lambda: Gaussian(0.4)),
    "gaussian learned": ("gaussian", lambda: Gaussian(0.4, learn_noise=True)),
    "experts": ("experts", lambda: Experts(3, 0.9)),
    "experts summed out": ("experts", lambda: Experts(3, 0.9, explicit=False)),
}

# one case for each name in GUIDES whose guides draw the sites of the model itself (see AUTOGUIDES for the others)
GUIDE_CASES: dict[str, tuple[str, Callable[..., Guide]]] = {
    "paper": ("paper", PaperGuide),
    "paper full": ("paper", partial(PaperGuide, covariance="full")),
    "paper optimal f": ("paper", partial(PaperGuide, functions="optimal")),
    "amortized": ("amortized", partial(AmortizedGuide, hidden=[5, 4])),
} | {kind: ("doubly_stochastic", partial(DoublyStochasticGuide, covariance=kind)) for kind in COVARIANCES}

# every guide with every likelihood: a quarter of the pairs, in which each guide and each likelihood stands, is quick
guides_and_likelihoods = pytest.mark.parametrize(
    ("case", "likelihood"),
    [
        pytest.param(case, likelihood, marks=() if (i + j) % 4 == 0 else pytest.mark.slow)
        for i, case in enumerate(GUIDE_CASES)
        for j, likelihood in enumerate(LIKELIHOOD_CASES)
    ],
)


def tiny_data(unlabelled: int = I, unknown: bool = True) -> tuple[Tensor, Tensor]:
    """``X`` ((N + I) x F) and ``Y`` (N x K) with one unknown entry."""
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(N + unlabelled, F, generator=generator, dtype=torch.get_default_dtype())
    Y = (torch.rand(N, K, generator=generator) < 0.4).to(X.dtype)
    if unknown:
        Y[1, 2] = torch.nan
    return X, Y


def tiny_model(X: Tensor, Y: Tensor, depth: int = 2, likelihood: Likelihood | None = None, **options: Any) -> ESMC:
    """A model with moderate noises, so that no estimate is dominated by one stiff term."""
    options = {"pseudo": M, "alpha": 0.4, "beta": 0.3, "gamma": 0.5} | options
    return ESMC.from_data(X, Y, WIDTHS[depth], likelihood=likelihood or Bernoulli(), **options)


def shake(guide: Guide, size: float = 0.1) -> Guide:
    """Move every parameter of the guide a little, so that nothing rests on where it starts."""
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter += size * torch.randn_like(parameter)
    return guide


def mean_and_error(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the first dimension and its standard error."""
    return draws.mean(0), draws.std(0) / len(draws) ** 0.5


def elbo(
    model: ESMC, guide: Guide, X: Tensor, Y: Tensor, rows: Tensor | None = None, particles: int = 2000
) -> tuple[Tensor, Tensor]:
    """Mean and standard error of ``ln p - ln q`` over particles drawn at once, in a plate left of all others."""
    with torch.no_grad(), pyro.plate("particles", particles, dim=-3):
        q = poutine.trace(guide).get_trace(X, Y, rows)
        p = poutine.trace(poutine.replay(guide.joint, trace=q)).get_trace(X, Y, rows)
        return mean_and_error(_log_prob(p, particles) - _log_prob(q, particles))


def _log_prob(trace: poutine.Trace, particles: int) -> Tensor:
    trace.compute_log_prob()
    sites = [node["log_prob"] for node in trace.nodes.values() if node["type"] == "sample" and "log_prob" in node]
    return sum(site.reshape(particles, -1).sum(1) for site in sites if torch.is_tensor(site) and site.dim() == 3)


def agree(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], errors: float = 4.0) -> bool:
    """Whether two estimates (mean, standard error) differ by less than ``errors`` standard errors of the difference."""
    return bool(((a[0] - b[0]).abs() < errors * (a[1] ** 2 + b[1] ** 2).sqrt()).all())
