"""A model whose posterior is known: one layer, a Gaussian likelihood, so that ``v`` is a linear regression."""

from __future__ import annotations

import torch
from torch import Tensor

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import ESMC, Gaussian
from esmc_pyro.posterior import Posterior

NOISE = 0.7


def data() -> tuple[Tensor, Tensor]:
    """40 instances, one feature, two labels, one of them unknown once."""
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    Y = (torch.sin(2 * X) + torch.randn(40, 2, generator=generator, dtype=torch.float64) > 0).double()
    Y[7, 1] = torch.nan
    return X, Y


def regression(model: ESMC, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (M,) and covariance (M x M) of ``v`` for one label ``y`` (n,), NaN left out, and the variance of ``y``."""
    layer, known = model.layers[0], ~torch.isnan(y)
    A = layer.features(X)[known]
    variance = layer.beta**2 + layer.gamma**2 + NOISE**2
    covariance = torch.linalg.inv(torch.eye(A.shape[1], dtype=A.dtype) + A.mT @ A / variance)
    return covariance @ A.mT @ y[known] / variance, covariance, variance


@torch.no_grad()
def exact_posterior(X: Tensor, Y: Tensor, shrink: float = 1.0) -> Posterior:
    """The posterior itself, or one with standard deviations ``shrink`` times too small."""
    model = ESMC.from_data(
        X, torch.nan_to_num(Y), [], likelihood=Gaussian(NOISE), pseudo=4, alpha=0.4, beta=0.3, gamma=0.5
    )
    guide = DoublyStochasticGuide(model, X, Y, covariance="full", start="zero")
    fits = [regression(model, X, Y[:, k]) for k in range(Y.shape[1])]
    guide.z_v_loc.copy_(torch.stack([mean for mean, _, _ in fits]))
    guide.z_v_tril = shrink * torch.stack([torch.linalg.cholesky(covariance) for _, covariance, _ in fits])
    return Posterior(model, guide)


@torch.no_grad()
def exact_loo(model: ESMC, X: Tensor, Y: Tensor) -> Tensor:
    """``ln p(y_nk | all other entries)`` of the known entries, row by row."""
    A = model.layers[0].features(X)
    terms = []
    for n, k in (~torch.isnan(Y)).nonzero().tolist():
        rest = Y[:, k].clone()
        rest[n] = torch.nan
        mean, covariance, variance = regression(model, X, rest)
        spread = (A[n] @ covariance @ A[n] + variance).sqrt()
        terms.append(torch.distributions.Normal(A[n] @ mean, spread).log_prob(Y[n, k]))
    return torch.stack(terms)
