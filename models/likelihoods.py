"""Likelihoods ``p(y | z)``: why a suitable label may be missing from the data.

Protocol (``Likelihood``). A likelihood works on each label of each instance alone. It owes one method::

    distribution(z)                    the distribution of y given z, elementwise            (..., n, K)

and inherits, or overrides where a closed form exists::

    log_prob(y, z)                     ln p(y | z)                                           (..., n, K)
    expected_log_prob(y, mean, var)    E ln p(y | z) for z ~ N(mean, var)                    (..., n, K)
    prob(z)                            P(y = 1 | z)                                          (..., n, K)
    suitability(z)                     sigma(lambda z), the probability that the label fits  (..., n, K)
    rough_z(y)                         a z to start a fit from                               (..., n, K)
    best_constant(frequency)           the z that suits a label as frequent as this          (K,)
    forward(z, y, known)               the Pyro statements of the model, inside its plate over instances
    guide(z, y, known)                 the Pyro statements that draw the likelihood's own latent sites, if any

``y`` is 0 or 1; ``known`` is False where the data do not say, and such an entry adds nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from esmc_pyro.validation import check_number


@lru_cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights with ``E g(z) = sum_i w_i g(mean + sd * x_i)`` for ``z ~ N(mean, sd^2)``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return tuple(nodes), tuple(weights / weights.sum())


class Likelihood(PyroModule):
    """Base class: quadrature, masking and the site ``y``. ``lambda_`` is the slope of the paper's sigmoid."""

    QUADRATURE_POINTS = 20

    def __init__(self, lambda_: float = 1.0) -> None:
        super().__init__("likelihood")
        check_number(lambda_, "lambda_", low=0, above=True)
        self.lambda_ = lambda_

    def distribution(self, z: Tensor) -> TorchDistribution:
        """The distribution of ``y`` given ``z``."""
        raise TypeError(f"{type(self).__name__} must define distribution(z)")

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        """``ln p(y | z)``."""
        return self.distribution(z).log_prob(y)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``E ln p(y | z)`` for ``z ~ N(mean, var)`` by Gauss-Hermite quadrature, one node at a time."""
        sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()  # the slope of a square root at 0 is not a number
        nodes, weights = gauss_hermite(self.QUADRATURE_POINTS)
        total = torch.zeros_like(mean)
        for x, w in zip(nodes, weights, strict=True):
            total = total + w * self.log_prob(y, mean + x * sd)
        return total

    def prob(self, z: Tensor) -> Tensor:
        """``P(y = 1 | z)``."""
        return self.log_prob(torch.ones_like(z), z).exp()

    def suitability(self, z: Tensor) -> Tensor:
        """``sigma(lambda z)``."""
        return torch.sigmoid(self.lambda_ * z)

    def rough_z(self, y: Tensor) -> Tensor:
        """``lambda z = 2`` for a one and ``-2`` for a zero: a suitability of .88 or .12."""
        return (4 * y - 2) / self.lambda_

    def best_constant(self, frequency: Tensor) -> Tensor:
        """The ``z`` with the largest ``p ln p(1 | z) + (1 - p) ln p(0 | z)`` for a share ``p`` of ones.

        For ``Bernoulli`` the log-odds over ``lambda``. Found by trisection of ``|lambda z| <= 20``: there is one hill.
        Shapes: ``(K,) -> (K,)``.
        """
        low, high = torch.full_like(frequency, -20 / self.lambda_), torch.full_like(frequency, 20 / self.lambda_)

        def score(z: Tensor) -> Tensor:
            one, zero = self.log_prob(torch.ones_like(z), z), self.log_prob(torch.zeros_like(z), z)
            return frequency * one + (1 - frequency) * zero

        for _ in range(60):
            third = (high - low) / 3
            rises = score(low + third) < score(high - third)
            low, high = torch.where(rises, low + third, low), torch.where(rises, high, high - third)
        return (low + high) / 2

    def forward(self, z: Tensor, y: Tensor | None = None, known: Tensor | None = None) -> None:
        """The site ``y``: drawn if ``y`` is None, else observed where ``known``."""
        if y is None:
            pyro.sample("y", self.distribution(z).to_event(1))
        else:
            pyro.sample("y", self.distribution(z).mask(known).to_event(1), obs=y)

    def guide(self, z: Tensor, y: Tensor, known: Tensor) -> None:
        """Most likelihoods have no latent sites of their own."""


class Bernoulli(Likelihood):
    """``P(y = 1 | z) = sigma(lambda z)``: a zero is a zero."""

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.lambda_ * z)

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * self.lambda_ * z)


class EEOE(Likelihood):
    """The paper's equation ``eeoe_framework``: the experts' two outcomes, renormalised.

    ``P(y = 1 | z) = sigma^B / (sigma^B + 1 - sigma)``, ``sigma = sigma(lambda z)``, so its log-odds are
    ``lambda z + (B - 1) ln sigma(lambda z)``. ``B = 1`` is ``Bernoulli``.
    """

    def __init__(self, B: float, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_number(B, "B (experts; without any, use the likelihood 'gaussian')", low=1)
        self.B = B

    def log_odds(self, z: Tensor) -> Tensor:
        """``ln P(y = 1 | z) - ln P(y = 0 | z)``."""
        t = self.lambda_ * z
        return t + (self.B - 1) * logsigmoid(t)

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.log_odds(z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * self.log_odds(z))


class MPU(Likelihood):
    """The paper's comparison: a suitable label is removed at random with rate ``c``.

    ``P(y = 1 | z) = (1 - c) sigma(lambda z)``, so even a perfectly suitable label is missing with probability ``c``.
    """

    def __init__(self, c: float, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_number(c, "c", low=0)
        if c >= 1:
            raise ValueError(f"c must be a removal rate below 1; got {c!r}")
        self.c = c

    def log_odds(self, z: Tensor) -> Tensor:
        """``ln P(y = 1 | z) - ln P(y = 0 | z)``, with ``P(y = 0 | z) = 1 - sigma + c sigma``."""
        t = self.lambda_ * z
        if self.c == 0:
            return t
        one = math.log1p(-self.c) + logsigmoid(t)
        return one - torch.logaddexp(logsigmoid(-t), math.log(self.c) + logsigmoid(t))

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.log_odds(z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * self.log_odds(z))


class Gaussian(Likelihood):
    """``B = 0`` of the authors' code: ``y ~ Normal(z, noise)``, least squares, no sigmoid.

    ``z`` estimates ``y`` itself, so the probability of a label and its suitability are ``z`` clipped to [0, 1].
    ``learn_noise`` makes ``noise`` a parameter.
    """

    def __init__(self, noise: float = 0.3, learn_noise: bool = False) -> None:
        super().__init__()
        check_number(noise, "noise", low=0, above=True)
        self.noise: float | Tensor = (
            PyroParam(torch.tensor(float(noise)), constraints.positive) if learn_noise else noise
        )

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Normal(z, self.noise)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``ln N(y; mean, noise^2) - var / (2 noise^2)``, exactly."""
        return self.log_prob(y, mean) - var / (2 * self.noise**2)

    def prob(self, z: Tensor) -> Tensor:
        return z.clamp(0.0, 1.0)

    def suitability(self, z: Tensor) -> Tensor:
        return self.prob(z)

    def rough_z(self, y: Tensor) -> Tensor:
        return y


class ExpertsAgreement(TorchDistribution):
    """``y = E_1 mean(E_1 .. E_B)`` of ``B`` independent experts ``E_b ~ Bernoulli(logits)``, the experts summed out.

    ``P(0) = 1 - sigma`` and ``P(j / B) = sigma Binomial(j - 1; B - 1, sigma)`` for ``j = 1 .. B``, so ``P(1)`` is
    ``sigma^B``; any other value is impossible. Elementwise over the shape of ``logits``.
    """

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012 - as torch declares it
    support = constraints.unit_interval

    def __init__(self, B: int, logits: Tensor, validate_args: bool | None = None) -> None:
        self.B, self.logits = B, logits
        super().__init__(logits.shape, validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> ExpertsAgreement:
        return ExpertsAgreement(self.B, self.logits.expand(batch_shape))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        first = dist.Bernoulli(logits=self.logits).sample(sample_shape)
        others = dist.Binomial(self.B - 1, logits=self.logits).sample(sample_shape)
        return first * (1 + others) / self.B

    def log_prob(self, value: Tensor) -> Tensor:
        ones, zeros = logsigmoid(self.logits), logsigmoid(-self.logits)
        j = (value * self.B).round().clamp(min=1)
        log_binomial = math.lgamma(self.B) - torch.lgamma(j) - torch.lgamma(self.B - j + 1)
        fraction = log_binomial + j * ones + (self.B - j) * zeros
        possible = (value * self.B - j).abs() < 1e-3
        return torch.where(value == 0, zeros, torch.where(possible, fraction, -math.inf))


class Experts(Likelihood):
    """``B`` experts a label, ``y = E_1 mean(E)``: conditioned on a ``y`` of 0 or 1, ``B`` is the weight of a positive.

    ``y = 1`` says that all experts are 1, ``p = sigma^B``; ``y = 0`` says that the first is 0, ``p = 1 - sigma``, and
    nothing of the others. With ``explicit=True`` the experts are the site ``experts`` (B x n x K) and ``y`` is a
    deterministic function of them; otherwise they are summed out, which gives the same posterior of everything else.
    """

    def __init__(self, B: int, lambda_: float = 1.0, explicit: bool = True) -> None:
        super().__init__(lambda_)
        check_number(B, "B (experts; without any, use the likelihood 'gaussian')", low=1, whole=True)
        self.B = int(B)
        self.explicit = explicit

    def distribution(self, z: Tensor) -> TorchDistribution:
        return ExpertsAgreement(self.B, self.lambda_ * z)

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        """``B y ln sigma + (1 - y) ln(1 - sigma)`` for a ``y`` of 0 or 1."""
        t = self.lambda_ * z
        return torch.where(y > 0, self.B * logsigmoid(t), logsigmoid(-t))

    def forward(self, z: Tensor, y: Tensor | None = None, known: Tensor | None = None) -> None:
        if not self.explicit:
            return super().forward(z, y, known)
        opinions = dist.Bernoulli(logits=self.lambda_ * z)
        with pyro.plate("experts_plate", self.B, dim=-2):
            experts = pyro.sample("experts", (opinions if y is None else opinions.mask(known)).to_event(1))
        agreed = experts[..., :1, :, :] * experts.mean(-3, keepdim=True)
        if agreed.dim() == 3:  # without vectorised particles nothing stands left of the experts
            agreed = agreed.squeeze(0)
        if y is None:
            pyro.deterministic("y", agreed, event_dim=1)
        else:
            # y is what the experts make it: probability one if they agree with the data, zero if not
            pyro.sample("y", dist.Delta(agreed).mask(known).to_event(1), obs=y)
        return None

    def guide(self, z: Tensor, y: Tensor, known: Tensor) -> None:
        """``q(E_b) = 1`` where ``y = 1``; ``E_1 = 0`` where ``y = 0``; else ``Bernoulli(sigma(lambda z))``.

        With ``z`` the mean of ``q(z)`` this is the best factorised ``q(E)``, with ``z`` a draw it is ``p(E | z, y)``.
        Either way it is optimal given ``z``, so no gradient flows through it (the envelope theorem), and none is
        estimated.
        """
        if not self.explicit:
            return
        free = torch.sigmoid(self.lambda_ * z.detach())
        with pyro.plate("experts_plate", self.B, dim=-2):
            first = (torch.arange(self.B, device=z.device) == 0).reshape(self.B, 1, 1)
            probs = torch.where(y > 0, torch.ones_like(free), torch.where(first, torch.zeros_like(free), free))
            pyro.sample("experts", dist.Bernoulli(probs).mask(known).to_event(1))


LIKELIHOODS: dict[str, type[Likelihood]] = {
    "experts": Experts,
    "eeoe": EEOE,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "mpu": MPU,
}


def make_likelihood(name: str | Likelihood, **options: Any) -> Likelihood:
    """The likelihood called ``name`` with its options, or ``name`` itself if it is a likelihood already."""
    if isinstance(name, Likelihood):
        return name
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood must be a Likelihood or one of {sorted(LIKELIHOODS)}; got {name!r}")
    return LIKELIHOODS[name](**options)
