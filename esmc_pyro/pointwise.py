"""Pointwise log-likelihoods of posterior draws, with everything between the draw and the label integrated out.

PSIS-LOO weighs a draw by one over the likelihood of what is left out. A label has a ``z`` of its own, so weights given
``z`` are as wild as one label can make its ``z``; given the functions alone they are tame, and just as right, since
labels are independent given what a unit conditions on::

    unit "entries"      ln p(y_nk | u, c_n) = ln E p(y_nk | z_nk)          z_nk ~ p(z | c_n, u), marginal_log_prob
    unit "instances"    ln p(y_n | u) = ln E prod_k p(y_nk | u, c_n)       c_n ~ p(c | x_n, u), by inner draws

Where a guide takes ``c`` from the model, blind to the labels of its row (``DoublyStochasticGuide``), leaving a label
out leaves ``q(c)`` as it is: "entries" then averages over inner draws of ``c`` too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from esmc_pyro.models import ESMC, Layer

UNITS = ("entries", "instances")
LIMIT = 1e7  # numbers in the largest tensor made at once


def _output(layer: Layer, h: Tensor, v: Tensor, a: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of the layer's output given its input and ``v``: ``(..., n, O)``, the latter broadcasts to it.

    ``a`` is ``A(h)``, if it is at hand.
    """
    a = layer.features(h) if a is None else a
    return layer.offset(h) + a @ v.mT, layer.residual_variance(h, a) + layer.gamma**2


@torch.no_grad()
def log_likelihood(
    model: ESMC,
    x: Tensor,
    y: Tensor,
    known: Tensor,
    us: Sequence[Tensor],
    c: Tensor | None = None,
    *,
    unit: str = "entries",
    inner: int = 30,
) -> Tensor:
    """``(S, n, K)`` for "entries" (0 where not known), ``(S, n)`` for "instances"; see the module.

    ``x`` n x F; ``y``, ``known`` n x K; ``us`` the draws of ``u``, S x O x M a layer. ``c`` (S x n x L) are draws of
    the last hidden layer given the labels, used by "entries"; None integrates over the model's own by ``inner`` draws.
    """
    widest = max(model.labels, *[layer.pseudo_count for layer in model.layers])
    together = max(1, int(LIMIT // (widest * len(x))))
    parts = []
    for start in range(0, len(us[0]), together):
        some = slice(start, start + together)
        mine = None if c is None or unit == "instances" else c[some]
        parts.append(_some_draws(model, x, y, known, [u[some] for u in us], mine, unit, inner))
    return torch.cat(parts)


def _some_draws(
    model: ESMC, x: Tensor, y: Tensor, known: Tensor, us: list[Tensor], c: Tensor | None, unit: str, inner: int
) -> Tensor:
    layers = list(model.layers)
    vs = [layer.whiten(u) for layer, u in zip(layers, us, strict=True)]
    first = layers[0].features(x)
    draws = inner if len(layers) > 1 and c is None else 1
    values: list[Tensor] = []
    for _ in range(draws):
        h, a = x, first
        if c is None:
            for layer, v in zip(layers[:-1], vs[:-1], strict=True):
                mean, var = _output(layer, h, v, a)
                h, a = mean + var.sqrt() * torch.randn_like(mean), None
        elif len(layers) > 1:
            h, a = c, None
        mean, var = _output(layers[-1], h, vs[-1], a)
        # in double: the likelihood of a sure label is one to within the rounding of float32, and draws that differ by
        # rounding alone make PSIS fail
        value = model.likelihood.marginal_log_prob(y.double(), mean.double(), var.double())
        value = torch.where(known, value, value.new_zeros(()))
        values.append(value.sum(-1) if unit == "instances" else value)
    return torch.logsumexp(torch.stack(values), 0) - math.log(draws)
