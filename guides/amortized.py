"""The amortised guide: a network reads the labels of a row, so that nothing is kept for each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from esmc_pyro.guides.whitened import WhitenedGuide
from esmc_pyro.models import ESMC, Layer
from esmc_pyro.validation import check_number


class Encoder(nn.Module):
    """``(h, y, known) -> (shift, spread)`` of a latent layer: ``(..., n, d), (n, K), (n, K) -> (..., n, O)`` twice.

    ``y`` is 0 where unknown and ``known`` says where. The last weights begin at zero: no shift and a spread of one.
    """

    def __init__(self, inputs: int, labels: int, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [inputs + 2 * labels, *hidden]
        steps: list[nn.Module] = []
        for before, after in pairwise(widths):
            steps += [nn.Linear(before, after), nn.SiLU()]
        last = nn.Linear(widths[-1], 2 * outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(*steps, last)

    def forward(self, h: Tensor, y: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and spread, in units of the layer's own standard deviation."""
        told = torch.cat([y, known.to(y.dtype)], -1)
        shift, log_spread = self.network(torch.cat([h, told.expand(*h.shape[:-1], -1)], -1)).chunk(2, -1)
        return shift, log_spread.exp()


class AmortizedGuide(WhitenedGuide):
    """``q = q(u) p(f | u) q(c | x, y, u) p(c_hat | c, x, u) p(z_hat | c, u) p(z | z_hat) p(E | z, y)``.

    ``q(u)`` and its options are those of ``WhitenedGuide``. A latent layer has an encoder, which says how far the
    labels of a row pull ``c`` from where the function alone would put it, ``p(c | x, u) = N(m, s^2)``::

        q(c | x, y, u) = Normal(m + s shift, s spread)      shift, spread = encoder(x, y, known), n x L each
        m = mean(x) + D(x) u,   s^2 = residual_variance(x) + gamma^2

    Without shift and with a spread of one this is the doubly stochastic guide, where it begins: at its best its bound
    is no lower. Each later latent layer reads the draw of the one before in place of ``x``. With a single layer
    there is no ``c`` and no encoder, and the two guides are the same. ``hidden`` are the widths of the network.
    """

    def __init__(
        self,
        model: ESMC,
        X: Tensor,
        Y: Tensor,
        *,
        hidden: int | Sequence[int] = 64,
        covariance: Literal["common", "diagonal", "shared", "full"] = "diagonal",
        start: Literal["labels", "zero"] = "labels",
        scale: float = 0.1,
    ) -> None:
        widths = list(hidden) if isinstance(hidden, Sequence) else [hidden]
        for width in widths:
            check_number(width, "hidden", low=1, whole=True)
        super().__init__(model, X, Y, covariance=covariance, start=start, scale=scale)
        self.hidden = [int(width) for width in widths]
        for layer in self._latent():
            encoder = Encoder(layer.pseudo_instances.shape[1], model.labels, layer.outputs, self.hidden)
            setattr(self, f"{layer.site}_encoder", encoder.to(layer.pseudo_instances))

    def _latent(self) -> list[Layer]:
        return list(self.model.layers)[:-1]

    def sample_locals(self, x: Tensor, y: Tensor, known: Tensor, rows: Tensor, us: list[Tensor]) -> Tensor:
        h = x
        for layer, u in zip(self._latent(), us, strict=False):
            h = self._sample_latent(layer, h, y, known, u)
        return self.model.layers[-1](h, us[-1])

    def _sample_latent(self, layer: Layer, h: Tensor, y: Tensor, known: Tensor, u: Tensor) -> Tensor:
        """``c``, then ``c_hat`` given it: ``N(m + (c - m) r / s^2, r gamma^2 / s^2)``, ``r`` the residual variance."""
        hat = layer.conditional(h, u)
        variance = hat.variance + layer.gamma**2
        shift, spread = getattr(self, f"{layer.site}_encoder")(h, y, known)
        q_c = dist.Normal(hat.loc + variance.sqrt() * shift, variance.sqrt() * spread)
        c = pyro.sample(layer.site, q_c.to_event(1))
        share = hat.variance / variance
        q_hat = dist.Normal(hat.loc + share * (c - hat.loc), share.sqrt() * layer.gamma)
        pyro.sample(layer.hat, q_hat.to_event(1))
        return c
