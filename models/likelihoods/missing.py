"""Suitable labels that go missing at random, the others that creep in: ``sigma`` between a floor and a ceiling.

    P(y = 1 | z) = 1 - (1 - leak) (1 - (1 - miss) sigma(lambda z)) = leak + (1 - leak) (1 - miss) sigma(lambda z)

a noisy-or of two causes: the label fits (and is not missed), or it came by itself. All classes here are this formula;
they differ in what is known beforehand. ``miss`` and ``leak`` are numbers, or one for each label.
"""

from __future__ import annotations

from typing import Any, Self

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from esmc_pyro.metrics import propensities
from esmc_pyro.models.likelihoods.base import Likelihood, PerLabel, check_per_label
from esmc_pyro.models.rules import label_frequencies


def log_between(floor: Tensor, height: Tensor, t: Tensor) -> Tensor:
    """``ln(floor + height sigma(t))``, with two finite derivatives for any ``t``; ``floor`` may be 0.

    ``ln floor + softplus(ln height + ln sigma(t) - ln floor)``: the ``logaddexp`` of PyTorch has no second derivative
    where one side is far below the other.
    """
    top = height.log() + logsigmoid(t)
    bottom = torch.where(floor > 0, floor, torch.ones_like(floor)).log()
    return torch.where(floor > 0, bottom - logsigmoid(bottom - top), top)


class _Missing(Likelihood):
    """The formula above, for a class that has ``miss`` and, if it is not zero, ``leak``."""

    miss: float | Tensor
    leak: float | Tensor

    def __init__(self, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        self.leak = 0.0

    def _log(self, one: Tensor, z: Tensor) -> Tensor:
        """``ln P(y = 1 | z)`` where ``one``, else ``ln P(y = 0 | z)``: floor and ceiling change places."""
        miss, leak = (torch.as_tensor(rate, dtype=z.dtype, device=z.device) for rate in (self.miss, self.leak))
        floor, t = torch.where(one, leak, (1 - leak) * miss), self.lambda_ * z
        return log_between(floor, (1 - leak) * (1 - miss), torch.where(one, t, -t))

    def distribution(self, z: Tensor) -> TorchDistribution:
        yes = torch.ones_like(z, dtype=torch.bool)
        return dist.Bernoulli(logits=self._log(yes, z) - self._log(~yes, z))

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return self._log(y > 0, z)

    def prob(self, z: Tensor) -> Tensor:
        return self.leak + (1 - self.leak) * (1 - self.miss) * self.suitability(z)

    log_odds = Likelihood.log_odds  # by ``log_prob``, which has the tails that ``prob`` has not

    def missing(self, z: Tensor) -> Tensor:
        """``P(fits | y = 0, z) = (1 - leak) miss sigma / P(y = 0 | z)``, by Bayes."""
        fits = self.miss * self.suitability(z)
        # 1 - (1 - miss) sigma, of which nothing would be left where sigma is nearly 1
        return fits / (fits + self.suitability(-z)).clamp(min=torch.finfo(z.dtype).tiny)


class MPU(_Missing):
    """The paper's comparison: a suitable label is removed at random with rate ``c``, a number or one for each label.

    ``P(y = 1 | z) = (1 - c) sigma(lambda z)``, so even a perfectly suitable label is missing with probability ``c``.
    """

    def __init__(self, c: PerLabel, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_per_label(c, "c", low=0, below=1, above=self.LEARNS)
        self._keep("c", c, constraints.unit_interval)

    @property
    def miss(self) -> float | Tensor:  # type: ignore[override]
        """``c``."""
        return self.c


class LearnedMPU(MPU):
    """``MPU`` with ``c`` learned, from where it is given: one for all labels, or one for each.

    The data tell ``c`` from ``z`` only where labels are so suitable that the curve is flat; elsewhere a higher rate
    and a larger ``z`` explain the same labels, and the prior of ``z`` decides.
    """

    LEARNS = True

    @classmethod
    def from_labels(cls, Y: Tensor, c: PerLabel | None = None, per_label: bool = False, **options: Any) -> Self:
        """``c`` starts at 0.2: one for all labels, or one for each if ``per_label``."""
        start = Y.new_full((Y.shape[1],) if per_label else (), 0.2)
        return cls(start if c is None else c, **options)


class Propensity(_Missing):
    """A suitable label is recorded with a known probability, its ``propensity`` (K, or one number).

    ``P(y = 1 | z) = propensity sigma(lambda z)``: ``MPU`` with ``c = 1 - propensity``, so a zero of a rare label says
    little. From labels the propensities are those of the metric PSP@k (Jain, Prabhu and Varma, 2016;
    ``metrics.propensities``).

    Propensities are often used in another way, to weight a loss without bias: ``(y / p) ln sigma + (1 - y / p) ln(1 -
    sigma)``. That is not the logarithm of a probability of ``y`` (its two exponentials do not sum to one, and it is
    unbounded above for ``y = 1``), so there is no posterior under it, and it is not here.
    """

    def __init__(self, propensity: PerLabel, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_per_label(propensity, "propensity", low=0, above=True, below=1 + 1e-12)
        self._keep("propensity", propensity, constraints.unit_interval)

    @classmethod
    def from_labels(cls, Y: Tensor, propensity: PerLabel | None = None, **options: Any) -> Self:
        """Propensities from how often each label is seen."""
        return cls(Y.new_tensor(propensities(Y.cpu().numpy())) if propensity is None else propensity, **options)

    @property
    def miss(self) -> float | Tensor:  # type: ignore[override]
        """``1 - propensity``."""
        return 1 - self.propensity


class NoisyOr(_Missing):
    """``miss`` and ``leak`` learned, from where they are given: one for all labels, or one for each.

    ``P(y = 1 | z) = 1 - (1 - leak) (1 - (1 - miss) sigma(lambda z))``. A ``leak`` of 0 is none and stays so; what is
    left is ``LearnedMPU``.
    """

    LEARNS = True

    def __init__(self, miss: PerLabel, leak: PerLabel = 0.0, lambda_: float = 1.0) -> None:
        super().__init__(lambda_)
        check_per_label(miss, "miss", low=0, below=1, above=True)
        self._keep("miss", miss, constraints.unit_interval)
        if not (isinstance(leak, int | float) and leak == 0):
            check_per_label(leak, "leak", low=0, below=1, above=True)
            self._keep("leak", leak, constraints.unit_interval)

    @classmethod
    def from_labels(cls, Y: Tensor, miss: PerLabel | None = None, leak: PerLabel | None = None, **options: Any) -> Self:
        """For each label ``miss`` starts at 0.2, and ``leak`` at a tenth of the label's frequency."""
        miss = Y.new_full((Y.shape[1],), 0.2) if miss is None else miss
        return cls(miss, 0.1 * label_frequencies(Y) if leak is None else leak, **options)
