"""What every likelihood is: the protocol, quadrature, masking, and numbers that may differ from label to label."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import pyro
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from esmc_pyro.validation import check_number

# one number for all labels, or one for each of the K labels
PerLabel = float | Sequence[float] | Tensor


@lru_cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights with ``E g(z) = sum_i w_i g(mean + sd * x_i)`` for ``z ~ N(mean, sd^2)``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return tuple(nodes), tuple(weights / weights.sum())


# what follows from ``distribution`` and ``log_prob``; a class may know a closed form
_DERIVED = (
    "slope", "log_odds", "expected_log_prob", "marginal_log_prob", "prob", "expected_prob", "missing", "best_constant",
)  # fmt: skip


class Likelihood(PyroModule):
    """Base class: quadrature, masking and the site ``y``. ``lambda_`` is the slope of the paper's sigmoid.

    ``labels`` is K if some number of this likelihood is given for each label, else None. ``LEARNS`` tells whether
    numbers are parameters to learn; ``requires_grad_(False)`` holds them where they are. ``is_density`` tells whether
    ``p(y | z)`` is a density over all numbers rather than a probability; such a likelihood has a ``prob`` of its own.

    One that changes ``distribution`` or ``log_prob`` of another has none of its closed forms: they would be another's.
    """

    QUADRATURE_POINTS = 20
    MARGINAL_POINTS, NEWTON_STEPS = 100, 30
    STEEP = 100.0  # lambda times the deviation of z
    LEARNS = False
    is_density = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)

        def home(name: str) -> int:
            return next(place for place, kind in enumerate(cls.__mro__) if name in vars(kind))

        if home("distribution") < home("log_prob"):
            cls.log_prob = Likelihood.log_prob  # type: ignore[method-assign]
        changed = min(home("distribution"), home("log_prob"))
        for name in _DERIVED:
            # what a density calls the probability of a label is its own to say
            if home(name) > changed and not (cls.is_density and name in ("prob", "expected_prob", "log_odds")):
                setattr(cls, name, getattr(Likelihood, name))
        if home("prob") < home("log_odds"):
            cls.log_odds = Likelihood._log_odds_of_prob  # type: ignore[method-assign]

    def __init__(self, lambda_: float = 1.0) -> None:
        super().__init__("likelihood")
        check_number(lambda_, "lambda_", low=0, above=True)
        self.lambda_ = lambda_
        self.labels: int | None = None

    @classmethod
    def from_labels(cls, Y: Tensor, **options: Any) -> Self:
        """The likelihood for labels ``Y`` (N x K of 0, 1, NaN): what ``options`` leave out is taken from ``Y``."""
        missing = required_options(cls, options)
        if missing:
            raise ValueError(
                f"the likelihood {cls.__name__} needs {' and '.join(missing)}, which labels cannot tell; "
                f"pass an object, {cls.__name__}({missing[0]}=...)"
            )
        return cls(**options)

    def _keep(self, name: str, value: PerLabel, constraint: constraints.Constraint) -> None:
        """Make ``value`` the attribute ``name``: a number stays one, K numbers or one to learn become a parameter."""
        if not (self.LEARNS or isinstance(value, Sequence | np.ndarray) or (torch.is_tensor(value) and value.dim())):
            setattr(self, name, value.item() if isinstance(value, Tensor | np.number) else value)
            return
        tensor = torch.as_tensor(value).detach()
        tensor = (tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())).clone()
        if tensor.dim() > 1 or not tensor.numel():
            raise ValueError(f"{name} must be a number or one for each label; got shape {tuple(tensor.shape)}")
        setattr(self, name, PyroParam(tensor, constraint))
        getattr(self, f"{name}_unconstrained").requires_grad_(self.LEARNS)
        if tensor.dim():
            if self.labels not in (None, len(tensor)):
                raise ValueError(f"{name} must be for {self.labels} labels; got {len(tensor)} values")
            self.labels = len(tensor)

    def extra_repr(self) -> str:
        """What it was made with, where that is not the default."""
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if isinstance(value, Tensor | np.ndarray):
                count = math.prod(value.shape)
                value = value.item() if count == 1 else f"<{count} numbers>"
            if isinstance(value, bool | int | float | str) and value != parameter.default:
                shown.append(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}")
        return ", ".join(shown)

    @property
    def is_alike(self) -> bool:
        """Whether ``p(y | z)`` is the same for all labels, so that some of them can be looked at without the others.

        Of a class of one's own nobody knows: it may tell labels apart by their place, and says ``is_alike = True`` if
        it does not.
        """
        return self.labels is None and type(self).__module__.startswith("esmc_pyro.")

    def check_labels(self, labels: int) -> None:
        """Raise ``ValueError`` if the numbers given for each label are not for so many."""
        if self.labels not in (None, labels):
            raise ValueError(
                f"the likelihood {type(self).__name__} must be for the model's {labels} labels; "
                f"got one for {self.labels}"
            )

    def distribution(self, z: Tensor) -> TorchDistribution:
        """The distribution of ``y`` given ``z``."""
        raise TypeError(f"{type(self).__name__} must define distribution(z)")

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        """``ln p(y | z)``."""
        return self.distribution(z).log_prob(y)

    def slope(self, y: Tensor, z: Tensor) -> Tensor:
        """``d ln p(y | z) / dz``, elementwise; what it learns stays as it is."""
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            value = self.log_prob(y, z).sum()
        return torch.autograd.grad(value, z)[0]

    def information(self, y: Tensor, z: Tensor) -> Tensor:
        """What ``y`` tells of ``z``: ``-d^2 ln p(y | z) / dz^2``, elementwise.

        Not below 0, as it would be where the density is not log-concave.
        """
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            slope = torch.autograd.grad(self.log_prob(y, z).sum(), z, create_graph=True)[0]
            second = torch.autograd.grad(slope.sum(), z, allow_unused=True)[0] if slope.requires_grad else None
        return torch.zeros_like(z) if second is None else (-second).clamp(min=0.0)  # None of a straight line

    def _expect(self, g: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
        """``E g(z)`` for ``z ~ N(mean, var)`` by Gauss-Hermite quadrature, one node at a time."""
        sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()  # the slope of a square root at 0 is not a number
        nodes, weights = gauss_hermite(self.QUADRATURE_POINTS)
        total = torch.zeros_like(mean)
        for x, w in zip(nodes, weights, strict=True):
            total = total + w * g(mean + x * sd)
        return total

    def expected_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``E ln p(y | z)`` for ``z ~ N(mean, var)``."""
        return self._expect(lambda z: self.log_prob(y, z), mean, var)

    def marginal_log_prob(self, y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """``ln E p(y | z)`` for ``z ~ N(mean, var)``, elementwise.

        By quadrature about the mode of ``p(y | z) N(z; mean, var)`` with its curvature there: a label that ``z`` does
        not explain has it many deviations away from ``mean``.
        """
        var = var.clamp(min=1e-20)
        sd = var.sqrt()
        mode, scale = self._mode(y, mean, var)
        # nearly a step within the prior has no curvature that tells its width: there the points are the prior's
        steep = self.lambda_ * sd > self.STEEP
        mode, scale = torch.where(steep, mean, mode), torch.where(steep, sd, scale)
        total = torch.full_like(mean, -math.inf)
        for x, w in zip(*gauss_hermite(self.MARGINAL_POINTS), strict=True):
            less = mode - mean + x * scale
            weight = math.log(w) + x**2 / 2 + (scale / sd).log() - less.square() / (2 * var)
            total = torch.logaddexp(total, weight + self.log_prob(y, mean + less))
        return total

    @torch.no_grad()
    def _mode(self, y: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable ``z`` given ``y``, by Newton's method with steps that are halved until they climb, and the
        deviation of the normal density that is curved as much there, at most that of the prior.
        """

        def value(z: Tensor) -> Tensor:
            return self.log_prob(y, z) - (z - mean).square() / (2 * var)

        z = mean.clone()
        best, length = value(z), torch.ones_like(mean)
        for _ in range(self.NEWTON_STEPS):
            precision = 1 / var + self.information(y, z)
            tried = z + length * (self.slope(y, z) - (z - mean) / var) / precision
            now, moved = value(tried), (tried - z).abs()
            climbs = now > best
            z, best = torch.where(climbs, tried, z), torch.where(climbs, now, best)
            length = torch.where(climbs, (2 * length).clamp(max=1.0), length / 2)
            if (moved <= 1e-6 * var.sqrt()).all():
                break
        return z, (1 / var + self.information(y, z)).rsqrt()

    def log_odds(self, z: Tensor) -> Tensor:
        """``ln P(y = 1 | z) - ln(1 - P(y = 1 | z))``."""
        if self.is_density:
            return self._log_odds_of_prob(z)
        one = self.log_prob(torch.ones_like(z), z).clamp(max=-torch.finfo(z.dtype).tiny)
        return one - torch.where(one > -math.log(2), (-torch.expm1(one)).log(), torch.log1p(-one.exp()))

    def _log_odds_of_prob(self, z: Tensor) -> Tensor:
        """The same of a ``prob`` of one's own."""
        p = self.prob(z)
        return p.clamp(min=torch.finfo(p.dtype).tiny).log() - torch.log1p(-p.clamp(max=1 - torch.finfo(p.dtype).eps))

    def prob(self, z: Tensor) -> Tensor:
        """``P(y = 1 | z)``; a likelihood with a density has to say what that is."""
        if self.is_density:
            raise TypeError(f"{type(self).__name__} must define prob(z), since it has a density of y")
        return self.log_prob(torch.ones_like(z), z).exp()

    def expected_prob(self, mean: Tensor, var: Tensor) -> Tensor:
        """``P(y = 1) = E P(y = 1 | z)`` for ``z ~ N(mean, var)``."""
        return self._expect(self.prob, mean, var)

    def suitability(self, z: Tensor) -> Tensor:
        """``sigma(lambda z)``."""
        return torch.sigmoid(self.lambda_ * z)

    def missing(self, z: Tensor) -> Tensor:
        """The probability that a label fits though it is not written, ``y = 0``.

        Its suitability, as if the zero said nothing, unless the likelihood tells what fits from what is written.
        """
        return self.suitability(z)

    def rough_z(self, y: Tensor) -> Tensor:
        """``lambda z = 2`` for a one and ``-2`` for a zero: a suitability of .88 or .12."""
        return (4 * y - 2) / self.lambda_

    @torch.no_grad()
    def best_constant(self, frequency: Tensor) -> Tensor:
        """The ``z`` with the largest ``p ln p(1 | z) + (1 - p) ln p(0 | z)`` for a share ``p`` of ones.

        For ``Bernoulli`` the log-odds over ``lambda``. Found by trisection of ``|lambda z| <= 20``: there is one hill.
        Shapes: ``(K,) -> (K,)``.
        """
        low, high = torch.full_like(frequency, -20 / self.lambda_), torch.full_like(frequency, 20 / self.lambda_)

        def score(z: Tensor) -> Tensor:
            row = z.unsqueeze(0)  # n x K, as a likelihood of one's own may want it
            one, zero = self.log_prob(torch.ones_like(row), row)[0], self.log_prob(torch.zeros_like(row), row)[0]
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


def required_options(kind: type[Likelihood], options: dict[str, Any]) -> list[str]:
    """The arguments that ``kind`` cannot be made without, less those in ``options``."""
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.name not in options]


def check_per_label(value: PerLabel, name: str, *, low: float, below: float = np.inf, above: bool = False) -> None:
    """``value``, or each of its items, is a number of at least ``low`` (above it if ``above``) and below ``below``."""
    items: Any = value.tolist() if isinstance(value, Tensor | np.ndarray) else value
    for item in items if isinstance(items, list | tuple) else [items]:
        check_number(item, name, low=low, above=above)
        if item >= below:
            raise ValueError(f"{name} must be below {below:g}; got {item!r}")
