"""The model with everything integrated out that can be: what NUTS, HMC and Pyro's autoguides work on."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from esmc_pyro.models.esmc import ESMC, observed
from esmc_pyro.models.layer import Layer
from esmc_pyro.models.likelihoods import Likelihood


class Marginal(nn.Module):
    """``ESMC`` with ``f``, ``c_hat``, ``z_hat`` and the likelihood's own latent sites (the experts) integrated out.

    Sites, for a layer called ``c``, in the letters of ``Layer``::

        v_c  ~ Normal(0, I)                                                          O x M, plate over outputs
        u_c  = Lw v_c                                                                O x M, deterministic
        c    ~ Normal(mean(x) + A(x) v_c, sqrt(residual_variance(x) + gamma^2))      n x O, plate over instances

    and ``y ~ likelihood.distribution(z)``. Every latent site is continuous and unconstrained, and the posterior of all
    that is kept (``u``, ``c``, ``z``) is the model's own. Same signature as the model's: ``marginal(X, Y, rows)``.
    """

    # no PyroModule, which would rename the sites of priors that the user put on the model's parameters
    def __init__(self, model: ESMC) -> None:
        super().__init__()
        self.model = model

    def forward(self, X: Tensor, Y: Tensor | None = None, rows: Tensor | None = None) -> None:
        """The generative process, conditioned on ``Y`` where it is known; arguments as ``ESMC.forward``."""
        model = self.model
        with model._pyro_context:  # as when the model is called: a parameter with a prior is drawn once
            model.draw_priors()
            vs = [_sample_functions(layer) for layer in model.layers]
            with pyro.plate("instances", len(X), subsample=rows, dim=-1):
                h = X if rows is None else X[rows]
                for layer, v in zip(model.layers, vs, strict=True):
                    loc, scale = local_mean_and_scale(layer, h, v)
                    h = pyro.sample(layer.site, dist.Normal(loc, scale.expand_as(loc)).to_event(1))
                some = torch.arange(len(X), device=X.device) if rows is None else rows
                # the base class: it takes distribution(z), in which latent sites of the likelihood are summed out
                Likelihood.forward(model.likelihood, h, *(() if Y is None else observed(Y, some)))


def _sample_functions(layer: Layer) -> Tensor:
    """``v`` (O x M), and ``u`` beside it."""
    with pyro.plate(layer.plate, layer.outputs, dim=-1):
        standard = dist.Normal(layer.pseudo_instances.new_zeros(layer.pseudo_count), 1.0)
        v = pyro.sample(f"v_{layer.site}", standard.to_event(1))
        pyro.deterministic(f"u_{layer.site}", v @ layer.factor().mT, event_dim=1)
    return v


def local_mean_and_scale(layer: Layer, x: Tensor, v: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of ``p(c | x, v)``: ``(..., n, O)``, and what broadcasts to it.

    ``features`` is ``A(x)`` (..., n, M), if it is at hand.
    """
    a = layer.features(x) if features is None else features
    return layer.offset(x) + a @ v.mT, (layer.residual_variance(x, a) + layer.gamma**2).sqrt()
