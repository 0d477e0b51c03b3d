"""Probabilities that mean what they say, and the threshold that turns them into labels; both from held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from esmc_pyro.models import Likelihood


def log_odds(likelihood: Likelihood, z: Tensor) -> Tensor:
    """``ln P(y = 1 | z) / P(y = 0 | z)``, kept finite."""
    return torch.logit(likelihood.prob(z.double()), eps=1e-9)


def fit(t: Tensor, Y: Tensor, log_odds: Callable[[Tensor], Tensor] = torch.Tensor.clone) -> tuple[float, float]:
    """Slope and offset that make the known labels of ``Y`` most probable; these have ``log_odds(slope t + offset)``.

    Shapes: ``t``, ``Y`` and what ``log_odds`` makes of ``t``, n x K. The slope stays positive, so that no ranking
    changes. With Platt's (1999) targets, ``(n_1 + 1) / (n_1 + 2)`` for the ``n_1`` ones and ``1 / (n_0 + 2)`` for the
    ``n_0`` zeros, few labels that can be told apart do not make it large. No labels, or labels that are all alike,
    leave (1, 0).
    """
    known = ~torch.isnan(Y)
    t, y = t.detach().double(), Y[known].double()
    if not len(y) or y.min() == y.max():
        return 1.0, 0.0
    ones = y.sum()
    y = torch.where(y > 0, (ones + 1) / (ones + 2), 1 / (len(y) - ones + 2))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            moved = torch.tensor(parameters, requires_grad=True)
            value = binary_cross_entropy_with_logits(log_odds(moved[0].exp() * t + moved[1])[known], y)
        (gradient,) = torch.autograd.grad(value, moved)
        return value.item(), gradient.numpy()

    found = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-4, 4), (-10, 10)]).x
    return float(np.exp(found[0])), float(found[1])


def apply(calibration: tuple[float, float], log_odds: Tensor) -> Tensor:
    """``sigma(slope * log_odds + offset)``."""
    return torch.sigmoid(calibration[0] * log_odds + calibration[1])


@torch.no_grad()
def is_written(likelihood: Likelihood) -> bool:
    """Whether what fits is what is written: a label's suitability is ``P(y = 1 | z)``, so that one calibration does."""
    z = torch.linspace(-4, 4, 9).double().unsqueeze(1)
    p, suitability = torch.broadcast_tensors(likelihood.prob(z), likelihood.suitability(z))
    return torch.allclose(p, suitability, rtol=0, atol=1e-6)


def fit_suitability(likelihood: Likelihood, z: Tensor, Y: Tensor) -> tuple[float, float] | None:
    """Slope and offset of ``z' = slope z + offset`` with the largest ``prod P(y | z')``; None if ``is_written``.

    Labels say what is written, and the likelihood what that says of what fits: the suitability of ``z'`` is as right as
    the likelihood is. Shapes: ``z`` and ``Y``, n x K.
    """
    return None if is_written(likelihood) else fit(z, Y, partial(log_odds, likelihood))


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
