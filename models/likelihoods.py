"""Likelihoods ``p(y | z)``: why a suitable label may be missing from the data.

Protocol (``Likelihood``). A likelihood works on each label of each instance alone. It owes one method::

    distribution(z)                    the distribution of y given z, elementwise            (..., n, K)

and inherits, or overrides where a closed form exists::

    log_prob(y, z)                     ln p(y | z)                                           (..., n, K)
    expected_log_prob(y, mean, var)    E ln p(y | z) for z ~ N(mean, var)                    (..., n, K)
    prob(z)                            P(y = 1 | z)                                          (..., n, K)
    suitability(z)                     sigma(lambda z), the probability that the label fits  (..., n, K)
    forward(z, y, known)               the Pyro statements of the model, inside its plate over instances
    guide(z, y, known)                 the Pyro statements that draw the likelihood's own latent sites, if any

``y`` is 0 or 1; ``known`` is False where the data do not say, and such an entry adds nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid


@lru_cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights with ``E g(z) = sum_i w_i g(mean + sd * x_i)`` for ``z ~ N(mean, sd^2)``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return tuple(nodes), tuple(weights / weights.sum())


class Likelihood(PyroModule):
    """Base class: quadrature, masking and the observation site ``y``. ``lambda_`` is the paper's slope of the sigmoid."""

    QUADRATURE_POINTS = 20

    def __init__(self, lambda_: float = 1.0) -> None:
        super().__init__("likelihood")
        if not lambda_ > 0:
            raise ValueError(f"lambda_ must be a positive number; got {lambda_!r}")
        self.lambda_ = lambda_

    def distribution(self, z: Tensor) -> TorchDistribution:
        """The distribution of ``y`` given ``z``."""
        raise TypeError(f"{type(self).__name__} must define distribution(z)")

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        """``ln p(y | z)``."""
        return self.distribution(z).log_prob(y)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``E ln p(y | z)`` for ``z ~ N(mean, var)`` by Gauss-Hermite quadrature, one node at a time."""
        sd = var.sqrt()
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
        t = self.lambda_ * z
        return y * t + logsigmoid(-t)


class EEOE(Likelihood):
    """The paper's equation ``eeoe_framework``: the experts' two outcomes, renormalised.

    ``P(y = 1 | z) = sigma^B / (sigma^B + 1 - sigma)``, ``sigma = sigma(lambda z)``, so its log-odds are
    ``lambda z + (B - 1) ln sigma(lambda z)``. ``B = 1`` is ``Bernoulli``.
    """

    def __init__(self, B: float, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        if not B >= 1:
            raise ValueError(f"B must be at least 1 for the likelihood 'eeoe'; got {B!r} (B = 0 is 'gaussian')")
        self.B = B

    def log_odds(self, z: Tensor) -> Tensor:
        t = self.lambda_ * z
        return t + (self.B - 1) * logsigmoid(t)

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.log_odds(z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        odds = self.log_odds(z)
        return y * odds + logsigmoid(-odds)


class MPU(Likelihood):
    """The paper's comparison: a suitable label is removed at random with rate ``c``.

    ``P(y = 1 | z) = (1 - c) sigma(lambda z)``, so even a perfectly suitable label is missing with probability ``c``.
    """

    def __init__(self, c: float, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        if not 0 <= c < 1:
            raise ValueError(f"c must be a removal rate in [0, 1); got {c!r}")
        self.c = c

    def log_odds(self, z: Tensor) -> Tensor:
        t = self.lambda_ * z
        one = np.log1p(-self.c) + logsigmoid(t)
        if self.c == 0:
            return t
        return one - torch.logaddexp(logsigmoid(-t), np.log(self.c) + logsigmoid(t))

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.log_odds(z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        odds = self.log_odds(z)
        return y * odds + logsigmoid(-odds)


class Gaussian(Likelihood):
    """``B = 0`` of the authors' code: ``y ~ Normal(z, noise)``, least squares, no sigmoid.

    ``z`` estimates ``y`` itself, so the probability of a label and its suitability are ``z`` clipped to [0, 1].
    """

    def __init__(self, noise: float = 0.3) -> None:
        super().__init__()
        if not noise > 0:
            raise ValueError(f"noise must be a positive number; got {noise!r}")
        self.noise = noise

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Normal(z, self.noise)

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``ln N(y; mean, noise^2) - var / (2 noise^2)``, exactly."""
        return self.log_prob(y, mean) - var / (2 * self.noise**2)

    def prob(self, z: Tensor) -> Tensor:
        return z.clamp(0.0, 1.0)

    def suitability(self, z: Tensor) -> Tensor:
        return self.prob(z)


class ExpertsAgreement(TorchDistribution):
    """``y = E_1 mean(E_1 .. E_B)`` of ``B`` independent experts ``E_b ~ Bernoulli(logits)``, the experts summed out.

    ``P(0) = 1 - sigma`` and ``P(j / B) = sigma Binomial(j - 1; B - 1, sigma)`` for ``j = 1 .. B``, so ``P(1) = sigma^B``.
    """

    arg_constraints = {"logits": constraints.real}
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
        j = (value * self.B).clamp(min=1)
        log_binomial = torch.lgamma(torch.full_like(j, self.B)) - torch.lgamma(j) - torch.lgamma(self.B - j + 1)
        return torch.where(value == 0, zeros, log_binomial + j * ones + (self.B - j) * zeros)


class Experts(Likelihood):
    """``B`` experts a label, ``y = E_1 mean(E)``: conditioned on a ``y`` of 0 or 1, ``B`` is the weight of a positive.

    ``y = 1`` says that all experts are 1, ``p = sigma^B``; ``y = 0`` says that the first is 0, ``p = 1 - sigma``, and
    nothing of the others. With ``explicit=True`` the experts are the site ``experts`` (B x n x K) and ``y`` is a
    deterministic function of them; otherwise they are summed out, which gives the same posterior of everything else.
    """

    def __init__(self, B: int, lambda_: float = 1.0, explicit: bool = True) -> None:
        super().__init__(lambda_)
        if B < 1 or int(B) != B:
            raise ValueError(f"B must be a whole number of experts, at least 1; got {B!r} (B = 0 is 'gaussian')")
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

        With ``z`` the mean of ``q(z)`` this is the best factorised ``q(E)``, with ``z`` a draw it is ``p(E | z, y)``. Either
        way it is optimal given ``z``, so no gradient flows through it (the envelope theorem), and none is estimated.
        """
        if not self.explicit:
            return
        free = torch.sigmoid(self.lambda_ * z.detach())
        with pyro.plate("experts_plate", self.B, dim=-2):
            first = (torch.arange(self.B, device=z.device) == 0).reshape(self.B, 1, 1)
            probs = torch.where(y > 0, torch.ones_like(free), torch.where(first, torch.zeros_like(free), free))
            pyro.sample("experts", dist.Bernoulli(probs).mask(known).to_event(1))


LIKELIHOODS = {
    "experts": Experts,
    "eeoe": EEOE,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "mpu": MPU,
}


def make_likelihood(name: str | Likelihood, **options: float) -> Likelihood:
    """The likelihood called ``name`` with its options, or ``name`` itself if it is a likelihood already."""
    if isinstance(name, Likelihood):
        return name
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood must be a Likelihood or one of {sorted(LIKELIHOODS)}; got {name!r}")
    return LIKELIHOODS[name](**options)
