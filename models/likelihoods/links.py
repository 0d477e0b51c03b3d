"""A zero is a zero: ``P(y = 1 | z)`` is a link function of ``z``, and nothing is missing."""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from esmc_pyro.models.likelihoods.base import Likelihood
from esmc_pyro.validation import check_number


class Bernoulli(Likelihood):
    """``P(y = 1 | z) = sigma(lambda z)``: a zero is a zero."""

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self.lambda_ * z)

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return -binary_cross_entropy_with_logits(self.lambda_ * z, y.expand_as(z), reduction="none")

    def slope(self, y: Tensor, z: Tensor) -> Tensor:
        """``lambda (y - sigma(lambda z))``."""
        return self.lambda_ * (y - torch.sigmoid(self.lambda_ * z.detach()))

    def log_odds(self, z: Tensor) -> Tensor:
        """``lambda z``."""
        return self.lambda_ * z

    def best_constant(self, frequency: Tensor) -> Tensor:
        """The log-odds of the frequency over ``lambda``, within ``|lambda z| <= 20``."""
        return torch.logit(frequency).clamp(-20, 20) / self.lambda_


class PolyaGamma(Bernoulli):
    """``Bernoulli`` with a Pólya-Gamma variable for each label, which makes ``E ln p`` quadratic in ``z``.

    With ``t = lambda z`` and ``omega ~ PG(1, 0)``::

        p(y | z) = 1/2 exp((y - 1/2) t) E exp(-omega t² / 2)

    so ``ln p(y, omega | z)`` is quadratic in ``z``, and the best factors of ``q(z) q(omega)`` are::

        q(omega) = PG(1, xi),   xi² = E t²,   E omega = tanh(xi / 2) / (2 xi)
        q(z): precision of the prior + lambda² E omega, shift lambda (y - 1/2)

    ``p(y | z)``, and with it every draw and every ``log_prob``, is ``Bernoulli``'s: ``omega`` is summed out of it.
    ``expected_log_prob`` is the augmented model's, at the best ``q(omega)``: a closed form instead of quadrature, and
    at most ``Bernoulli``'s, equal to it where ``z`` has no variance. It **is** the Jaakkola-Jordan bound: since
    ``E omega = 2 h(xi)`` the two have the same updates and the same optimum, by another derivation.
    """

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``(y - 1/2) lambda E z - ln(2 cosh(xi / 2))``, ``xi² = lambda² (mean² + var)``: the best lower bound."""
        t = self.lambda_ * mean
        # the slope of a square root at 0 is not a number, nor is the next one's exact near it
        xi = (t.square() + self.lambda_**2 * var + torch.finfo(mean.dtype).eps).sqrt()
        return (y - 0.5) * t + logsigmoid(xi) - xi / 2


def log_ndtr(x: Tensor) -> Tensor:
    """``ln Phi(x)`` with two finite derivatives everywhere, which ``torch.special.log_ndtr`` has not in float32.

    ``ln(1 - erfc(x / sqrt 2) / 2)`` above -1; below, with ``u = -x / sqrt 2``, ``-u² + ln(erfcx(u) / 2)``, and beyond
    ``u = 30`` the series ``erfcx(u) = (1 - 1/(2u²) + 3/(4u⁴) - 15/(8u⁶) + 105/(16u⁸)) / (u sqrt pi)``.
    """
    u = -x / math.sqrt(2)
    right = torch.log1p(-torch.erfc(-u.clamp(max=0.75)) / 2)
    middle = torch.log(torch.special.erfcx(u.clamp(0.5, 32.0)) / 2)
    far = u.clamp(min=25.0)
    v = 0.5 / far.square()
    series = torch.log1p(-v * (1 - v * (3 - v * (15 - 105 * v)))) - torch.log(2 * math.sqrt(math.pi) * far)
    return torch.where(u < 0.7, right, torch.where(u < 30, middle, series) - u.clamp(min=0.5).square())


class Probit(Likelihood):
    """``P(y = 1 | z) = Phi(lambda z)``, the standard normal distribution function: thinner tails than a sigmoid's.

    The suitability of a label is ``Phi(lambda z)`` too. Its average over a Gaussian ``z`` has a closed form.
    """

    def distribution(self, z: Tensor) -> TorchDistribution:
        t = self.lambda_ * z
        return dist.Bernoulli(logits=log_ndtr(t) - log_ndtr(-t))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return log_ndtr((2 * y - 1) * self.lambda_ * z)

    def expected_prob(self, mean: Tensor, var: Tensor) -> Tensor:
        """``Phi(lambda mean / sqrt(1 + lambda² var))``, exactly."""
        return torch.special.ndtr(self.lambda_ * mean / (1 + self.lambda_**2 * var).sqrt())

    log_odds = Likelihood.log_odds  # by ``log_prob``, which has the tails that ``prob`` has not

    def marginal_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``ln Phi(+-lambda mean / sqrt(1 + lambda² var))``, exactly."""
        return log_ndtr((2 * y - 1) * self.lambda_ * mean / (1 + self.lambda_**2 * var).sqrt())

    def prob(self, z: Tensor) -> Tensor:
        return torch.special.ndtr(self.lambda_ * z)

    def suitability(self, z: Tensor) -> Tensor:
        return self.prob(z)

    def rough_z(self, y: Tensor) -> Tensor:
        """A suitability near .88 or .12, as for the others."""
        return super().rough_z(y) / 1.7


class Gaussian(Likelihood):
    """``B = 0`` of the authors' code: ``y ~ Normal(z, noise)``, least squares, no sigmoid.

    ``z`` estimates ``y`` itself, so the probability of a label and its suitability are ``z`` clipped to [0, 1].
    ``learn_noise`` makes ``noise`` a parameter.
    """

    is_density = True

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

    def marginal_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``ln N(y; mean, var + noise^2)``, exactly."""
        return dist.Normal(mean, (var + self.noise**2).sqrt()).log_prob(y)

    def prob(self, z: Tensor) -> Tensor:
        return z.clamp(0.0, 1.0)

    def log_odds(self, z: Tensor, edge: float = 1e-3) -> Tensor:
        """``logit(z)``, and beyond ``edge`` of 0 and of 1 its tangent there, so that no two ``z`` have the same."""
        inside = z.clamp(edge, 1 - edge)
        return torch.logit(inside) + (z - inside) / (edge * (1 - edge))

    def expected_prob(self, mean: Tensor, var: Tensor) -> Tensor:
        """``E max(z, 0) - E max(z - 1, 0)``, with ``E max(z, 0) = mean Phi(r) + sd phi(r)``, ``r = mean / sd``."""
        sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()

        def above(mean: Tensor) -> Tensor:
            r = mean / sd
            return mean * torch.special.ndtr(r) + sd * torch.exp(-r.square() / 2) / math.sqrt(2 * math.pi)

        return above(mean) - above(mean - 1)

    def suitability(self, z: Tensor) -> Tensor:
        return self.prob(z)

    def rough_z(self, y: Tensor) -> Tensor:
        return y
