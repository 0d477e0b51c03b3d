"""The collapsed objective: the ELBO of the doubly stochastic guide with ``u`` and ``z`` integrated out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import ESMC, observed


class CollapsedELBO:
    """``sum_n E ln p(y_n | z_n) - sum_layers KL(q(u) || p(u))``, an estimate of lower variance than ``Trace_ELBO``'s.

    The likelihood is a sum over instances, so the expectation over the draw of ``u`` that they share equals the sum of
    expectations with ``u`` integrated out a row at a time::

        c_n ~ N(mean(x_n) + A_n v_loc', A_n V A_n' + beta^2 + gamma^2)     one reparametrised draw a layer and row
        z_n ~ the same given c_n                                           integrated by the likelihood

    Used as Pyro's ELBOs are: ``CollapsedELBO()(model, guide)(X, Y, rows)`` is the loss, scaled up from ``rows`` to all rows.
    ``kl_weight`` other than 1 tempers the prior; then it is no longer a bound.
    """

    def __init__(self, kl_weight: float = 1.0) -> None:
        self.kl_weight = kl_weight

    def __call__(self, model: ESMC, guide: DoublyStochasticGuide) -> CollapsedLoss:
        if not isinstance(guide, DoublyStochasticGuide):
            raise ValueError(
                f"the objective 'collapsed' needs the guide 'doubly_stochastic', whose q(u) it integrates; "
                f"got {type(guide).__name__}"
            )
        return CollapsedLoss(model, guide, self.kl_weight)


def propagate(model: ESMC, guide: DoublyStochasticGuide, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``z`` for the rows ``x`` (n x K, broadcastable), given one draw of the layers before it."""
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
        """``likelihood`` (scaled to all rows) and ``kl_c``, ``kl_z``, ...: the ELBO is the first less the others."""
        y, known = observed(Y, rows)
        mean, var = propagate(self.model, self.guide, X[rows])
        expected = self.model.likelihood.expected_log_prob(y, mean, var)
        likelihood = torch.where(known, expected, expected.new_zeros(())).sum() * (len(X) / len(rows))
        return {"likelihood": likelihood} | {f"kl_{l.site}": self.guide.kl(l) for l in self.model.layers}

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        terms = self.terms(X, Y, torch.arange(len(X)) if rows is None else rows)
        likelihood = terms.pop("likelihood")
        return self.kl_weight * sum(terms.values(), likelihood.new_zeros(())) - likelihood
