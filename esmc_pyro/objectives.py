"""Objectives: estimates of the bound that a fit raises.

Protocol: an objective is called with ``(model, guide)`` and gives a module that is called with ``(X, Y, rows)`` and
returns the loss, minus the estimate, scaled up from ``rows`` to all rows. Pyro's ELBOs are objectives as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from esmc_pyro.guides import DoublyStochasticGuide, Guide
from esmc_pyro.models import ESMC, observed
from esmc_pyro.validation import check_number


class CollapsedELBO:
    """``sum_n E ln p(y_n | z_n) - sum_layers KL(q(u) || p(u))``, an estimate of lower variance than ``Trace_ELBO``'s.

    The likelihood is a sum over instances, so the expectation over the draw of ``u`` that they share equals the sum of
    expectations with ``u`` integrated out a row at a time::

        c_n ~ N(mean(x_n) + A_n v_loc', A_n V A_n' + beta^2 + gamma^2)     one reparametrised draw a layer and row
        z_n ~ the same given c_n                                           integrated by the likelihood

    Used as Pyro's ELBOs are: ``CollapsedELBO()(model, guide)(X, Y, rows)`` is the loss. ``kl_weight`` other than 1
    tempers the prior; then it is no longer a bound.
    """

    def __init__(self, kl_weight: float = 1.0) -> None:
        check_number(kl_weight, "kl_weight", low=0)
        self.kl_weight = kl_weight

    def __call__(self, model: ESMC, guide: Guide) -> CollapsedLoss:
        if not isinstance(guide, DoublyStochasticGuide):
            raise ValueError(
                f"the objective 'collapsed' needs the guide 'doubly_stochastic', whose q(u) it integrates; "
                f"got {type(guide).__name__}"
            )
        return CollapsedLoss(model, guide, self.kl_weight)


def propagate(model: ESMC, guide: DoublyStochasticGuide, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``z``, given one draw of the layers before it: ``(n, F) -> (n, K), (n, K)``."""
    layers = list(model.layers)
    for layer in layers:
        a = layer.features(x)
        mean = layer.offset(x) + a @ guide.v_loc(layer).mT
        var = guide.output_variance(layer, a) + layer.residual_variance(x, a) + layer.gamma**2
        if layer is not layers[-1]:
            x = mean + var.sqrt() * torch.randn_like(mean)
    return mean, var.expand_as(mean)


class CollapsedLoss(nn.Module):
    """The loss of ``CollapsedELBO``; ``terms`` gives its parts."""

    def __init__(self, model: ESMC, guide: DoublyStochasticGuide, kl_weight: float) -> None:
        super().__init__()
        self.model, self.guide, self.kl_weight = model, guide, kl_weight

    def terms(self, X: Tensor, Y: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """``likelihood`` (scaled to all rows) and ``kl_c``, ``kl_z``, ...: the ELBO is the first less the others.

        ``X`` (N + I) x F, ``Y`` N x K, ``rows`` (n,); each term is a number.
        """
        y, known = observed(Y, rows)
        mean, var = propagate(self.model, self.guide, X[rows])
        expected = self.model.likelihood.expected_log_prob(y, mean, var)
        likelihood = torch.where(known, expected, expected.new_zeros(())).sum() * (len(X) / len(rows))
        return {"likelihood": likelihood} | {f"kl_{l.site}": self.guide.kl(l) for l in self.model.layers}

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Minus the ELBO."""
        terms = self.terms(X, Y, torch.arange(len(X), device=X.device) if rows is None else rows)
        likelihood = terms.pop("likelihood")
        return self.kl_weight * sum(terms.values(), likelihood.new_zeros(())) - likelihood


def _refuse_explicit_experts(model: ESMC, objective: str) -> None:
    if getattr(model.likelihood, "explicit", False):
        raise ValueError(
            f"the objective {objective!r} needs the experts summed out; "
            "got explicit ones (make the likelihood with Experts(B, explicit=False))"
        )


class MeanFieldELBO:
    """Pyro's ``TraceMeanField_ELBO``: divergences in closed form where the guide's sites follow the model's order.

    That holds for the guide 'paper'. The doubly stochastic guide draws ``u`` before ``f``; for it use 'collapsed'.
    """

    def __call__(self, model: ESMC, guide: Guide) -> nn.Module:
        _refuse_explicit_experts(model, "mean_field")
        if isinstance(guide, DoublyStochasticGuide):
            raise ValueError(
                "the objective 'mean_field' needs a guide like 'paper'; for 'doubly_stochastic' use 'collapsed'"
            )
        return TraceMeanField_ELBO()(model, guide)


class RenyiELBO:
    """``ln(mean_i w_i^(1 - order)) / (1 - order)`` with ``w_i = p / q`` of particle ``i``.

    Order 0 is the importance-weighted bound, tighter than the ELBO with more particles; on minibatches it is no bound.
    Pyro's class of this name has no module form.
    """

    def __init__(self, order: float = 0.0, particles: int = 2) -> None:
        check_number(order, "order", low=0)
        check_number(particles, "particles", low=1, whole=True)
        if order == 1:
            raise ValueError("order must not be 1, where the bound is the ELBO (objective 'trace'); got 1")
        self.order, self.particles = order, particles

    def __call__(self, model: ESMC, guide: Guide) -> RenyiLoss:
        _refuse_explicit_experts(model, "renyi")
        return RenyiLoss(model, guide, self.order, self.particles)


class RenyiLoss(nn.Module):
    """The loss of ``RenyiELBO``."""

    def __init__(self, model: ESMC, guide: Guide, order: float, particles: int) -> None:
        super().__init__()
        self.model, self.guide, self.order, self.particles = model, guide, order, particles

    def _log_weight(self, *data: Any) -> Tensor:
        q = poutine.trace(self.guide).get_trace(*data)
        p = poutine.trace(poutine.replay(self.model, trace=q)).get_trace(*data)
        return p.log_prob_sum() - q.log_prob_sum()

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Minus the bound."""
        log_weights = torch.stack([self._log_weight(X, Y, rows) for _ in range(self.particles)])
        power = 1 - self.order
        return -(torch.logsumexp(power * log_weights, 0) - math.log(self.particles)) / power


OBJECTIVES: dict[str, Callable[[], Callable[[ESMC, Guide], nn.Module]]] = {
    "trace": Trace_ELBO,
    "mean_field": MeanFieldELBO,
    "renyi": RenyiELBO,
    "collapsed": CollapsedELBO,
}
