"""Probabilities that mean what they say, and the threshold that turns them into labels; both from held-out rows."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from esmc_pyro.models import Likelihood

SURE = 20.0  # log-odds, a chance of 1 in 5e8


@torch.no_grad()
def log_odds(likelihood: Likelihood, z: Tensor) -> Tensor:
    """``likelihood.log_odds``, in double; above ``SURE`` and below minus that they grow as a logarithm does: still in
    order, but a likelihood that is sure beyond reason does not make a calibration of the others impossible.
    """
    t = likelihood.log_odds(z.double())
    size = t.abs().clamp(max=1e300)
    return torch.where(size <= SURE, t, t.sign() * (SURE + torch.log1p((size - SURE).clamp(min=0))))


def fit(log_odds: Tensor, Y: Tensor) -> tuple[float, float]:
    """Slope and offset of ``sigma(slope * log_odds + offset)`` that are most probable on the known labels of ``Y``.

    The slope stays positive, so that no ranking changes. With Platt's (1999) targets, ``(n_1 + 1) / (n_1 + 2)`` for the
    ``n_1`` ones and ``1 / (n_0 + 2)`` for the ``n_0`` zeros, few labels that can be told apart do not make it large. No
    labels, or labels that are all alike, leave (1, 0).
    """
    known = ~torch.isnan(Y)
    t, y = log_odds[known].double().numpy(), Y[known].double().numpy()
    if not len(y) or y.min() == y.max():
        return 1.0, 0.0
    ones = y.sum()
    y = np.where(y > 0, (ones + 1) / (ones + 2), 1 / (len(y) - ones + 2))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slope = np.exp(parameters[0])
        s = slope * t + parameters[1]
        error = expit(s) - y
        return float(np.mean(np.logaddexp(0, s) - y * s)), np.array([np.mean(error * t) * slope, np.mean(error)])

    found = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-4, 4), (-10, 10)]).x
    return float(np.exp(found[0])), float(found[1])


def apply(calibration: tuple[float, float], log_odds: Tensor) -> Tensor:
    """``sigma(slope * log_odds + offset)``."""
    return torch.sigmoid(calibration[0] * log_odds + calibration[1])


@torch.no_grad()
def is_written(likelihood: Likelihood, labels: int) -> bool:
    """Whether what fits is what is written: each label's suitability is ``P(y = 1 | z)``, so one calibration does."""
    z = torch.linspace(-4, 4, 9).double().unsqueeze(1).expand(-1, labels)
    return torch.allclose(likelihood.prob(z), likelihood.suitability(z), rtol=0, atol=1e-6)


def fit_suitability(likelihood: Likelihood, z: Tensor, Y: Tensor) -> tuple[float, float] | None:
    """Slope and offset of ``lambda z' = slope lambda z + offset`` that are most probable; None if ``is_written``.

    Known labels of ``Y`` say what is written, and the likelihood what that says of what fits: the suitability of ``z'``
    is as right as the likelihood is. Where labels are few, or cannot be as the likelihood says, a prior keeps it near
    ``z``: ``ln slope ~ N(0, 1)``, ``offset ~ N(0, 2²)``; ``|lambda z|`` above 30 are first made smaller. Labels that
    are all alike leave (1, 0). Shapes: ``z`` and ``Y``, n x K.
    """
    if is_written(likelihood, Y.shape[1]):
        return None
    known = ~torch.isnan(Y)
    if not (Y[known] == 1).any() or not (Y[known] == 0).any():
        return 1.0, 0.0
    # its numbers are in single precision; the copy leaves the caller's as they are
    likelihood = copy.deepcopy(likelihood).double().requires_grad_(False)
    z, y, scale = z.double(), torch.nan_to_num(Y).double(), likelihood.lambda_
    start = -math.log(max(1.0, float((scale * z[known]).abs().max()) / 30))  # the authors' presets have 1e10

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            moved = torch.tensor(parameters, requires_grad=True)
            shifted = moved[0].exp() * z + moved[1] / scale
            prior = (moved[0] - start) ** 2 / 2 + moved[1] ** 2 / 8
            value = prior - likelihood.log_prob(y, shifted)[known].sum()
        (gradient,) = torch.autograd.grad(value, moved)
        return value.item() / (1 + len(y)), gradient.numpy() / (1 + len(y))

    found = minimize(loss, np.array([start, 0.0]), jac=True, method="L-BFGS-B", bounds=[(-30, 4), (-20, 20)]).x
    return float(np.exp(found[0])), float(found[1])


def best_threshold(probabilities: Tensor, Y: Tensor) -> float:
    """The cut with the largest micro-averaged F1 on the known labels; one half where there is no one to find.

    It lies midway between the last entry that it takes and the first that it does not, so rounding cannot move either.
    """
    known = ~torch.isnan(Y)
    p, y = probabilities[known].double(), Y[known].double()
    if not (y == 1).any():
        return 0.5
    p, order = torch.sort(p, descending=True)
    hits = torch.cumsum(y[order], 0)
    f1 = 2 * hits / (torch.arange(1, len(y) + 1) + y.sum())
    below = torch.cat([p[1:], p[-1:] / 2])
    # a cut must not part entries of equal probability
    best = int(torch.where(below < p, f1, -torch.ones_like(f1)).argmax())
    return float((p[best] + below[best]) / 2)
