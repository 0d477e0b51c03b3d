"""The paper's likelihoods: experts who must all agree on a label (``Experts``), and their two outcomes renormalised."""

from __future__ import annotations

import math
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from esmc_pyro.models.likelihoods.base import Likelihood, PerLabel, check_per_label
from esmc_pyro.models.rules import experts_from_ratio
from esmc_pyro.validation import check_number

NAME_OF_B = "B (experts; without any, use the likelihood 'gaussian')"


class EEOE(Likelihood):
    """The paper's equation ``eeoe_framework``: the experts' two outcomes, renormalised.

    ``P(y = 1 | z) = sigma^B / (sigma^B + 1 - sigma)``, ``sigma = sigma(lambda z)``, so its log-odds are
    ``lambda z + (B - 1) ln sigma(lambda z)``: they rise by ``lambda`` a unit of ``z`` where the label fits and by
    ``B lambda`` where it does not. ``B`` is a number or one for each label; ``B = 1`` is ``Bernoulli``.
    """

    def __init__(self, B: PerLabel, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_per_label(B, NAME_OF_B, low=1, above=self.LEARNS)
        self._keep("B", B, constraints.greater_than(1.0))

    @classmethod
    def from_labels(cls, Y: Tensor, B: PerLabel | None = None, **options: Any) -> Self:
        """``B`` by the paper's rule, the ratio of zeros to ones."""
        return cls(experts_from_ratio(Y) if B is None else B, **options)

    def _logits(self, z: Tensor) -> Tensor:
        t = self.lambda_ * z
        return t + (self.B - 1) * logsigmoid(t)

    def distribution(self, z: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=self._logits(z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return logsigmoid((2 * y - 1) * self._logits(z))

    def log_odds(self, z: Tensor) -> Tensor:
        """``lambda z + (B - 1) ln sigma(lambda z)``."""
        return self._logits(z)


class LearnedEEOE(EEOE):
    """``EEOE`` with ``B > 1`` learned, from where it is given: one for each label, or one for all."""

    LEARNS = True

    @classmethod
    def from_labels(cls, Y: Tensor, B: PerLabel | None = None, **options: Any) -> Self:
        """One ``B`` for each label; all start at the paper's rule, but not below 2."""
        start = Y.new_full((Y.shape[1],), max(2.0, experts_from_ratio(Y)))
        return cls(start if B is None else B, **options)


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
        check_number(B, NAME_OF_B, low=1, whole=True)
        self.B = int(B)
        self.explicit = explicit

    @classmethod
    def from_labels(cls, Y: Tensor, B: int | None = None, **options: Any) -> Self:
        """``B`` by the paper's rule, the ratio of zeros to ones."""
        return cls(experts_from_ratio(Y) if B is None else B, **options)

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
