"""The top of the bound, ``E ln p(y|z)``, and the local factors that belong to it: ``q(z)``, ``xi``, ``q(E)``.

Each class owes ``blocks`` (the names of its updates, in order), ``step(block, rows, z_hat)`` and ``value(rows)`` (the
sum over these rows), and works in place on ``z_loc``, ``z_var`` ((N+I) x K). Rows beyond ``Y`` and NaN entries say
nothing: their ``q(z)`` is ``N(E z_hat, g²)``.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from esmc_pyro.inference.analytic import bound, updates
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.models import Bernoulli, Experts, Gaussian, Likelihood, PolyaGamma, observed


class LabelTerm(Protocol):
    """What the solver asks of the likelihood's part of the bound."""

    blocks: tuple[str, ...]

    def step(self, block: str, rows: slice, z_hat: Tensor) -> None:
        """Update one block for these rows, given ``E z_hat`` (n x K)."""

    def value(self, rows: slice) -> Tensor:
        """``E ln p(y|z)`` (or what stands below it) plus the entropy of ``q(E)``, summed over these rows; float64."""


class _Rows:
    def __init__(self, Y: Tensor, z_loc: Tensor, z_var: Tensor, g2: float) -> None:
        self.Y, self.z_loc, self.z_var, self.g2 = Y, z_loc, z_var, g2

    def labels(self, rows: slice) -> tuple[Tensor, Tensor]:
        return observed(self.Y, torch.arange(rows.start, rows.stop))


class GaussianTerm(_Rows):
    """``y ~ Normal(z, noise)``: exact."""

    blocks: tuple[str, ...] = ("q(z)",)

    def __init__(self, likelihood: Gaussian, *state: object) -> None:
        super().__init__(*state)  # type: ignore[arg-type]
        self.likelihood = likelihood

    def step(self, block: str, rows: slice, z_hat: Tensor) -> None:
        y, known = self.labels(rows)
        self.z_loc[rows], self.z_var[rows] = updates.update_z_gaussian(
            z_hat, y, known.to(y.dtype), float(self.likelihood.noise), self.g2
        )

    def value(self, rows: slice) -> Tensor:
        y, known = self.labels(rows)
        each = self.likelihood.expected_log_prob(y, self.z_loc[rows], self.z_var[rows])
        return (each * known).sum(dtype=torch.float64)


class ExpertsTerm(_Rows):
    """``B`` experts under the Jaakkola-Jordan bound ``G(t, xi)``; ``Bernoulli`` is one expert.

    So is ``PolyaGamma``, whose conjugate updates these are: ``q(omega) = PG(1, xi)`` with ``E omega = 2 h(xi)`` adds
    ``lambda² E omega`` to the precision of ``q(z)``, and its best ``xi² = lambda² E z²`` is the bound's.

    ``explicit``: every expert has its factor ``q(E_b)``; otherwise those that ``y = 0`` leaves free are integrated
    out, so that ``B`` factors are left where ``y = 1`` and one where ``y = 0``. ``clamp`` sets the mean of ``q(z)``
    to that number where ``y = 1``.
    """

    def __init__(
        self,
        likelihood: Experts | Bernoulli,  # PolyaGamma is a Bernoulli
        *state: object,
        options: Options,
    ) -> None:
        super().__init__(*state)  # type: ignore[arg-type]
        self.lambda_ = likelihood.lambda_
        self.B = likelihood.B if isinstance(likelihood, Experts) else 1
        self.rule, self.clamp = options.xi, options.clamp
        self.explicit = options.experts == "explicit" and self.B > 1
        self.blocks: tuple[str, ...] = ("q(z)", "xi", "q(E)") if self.explicit else ("q(z)", "xi")
        N = len(self.Y)
        self.xi = updates.update_xi(self.z_loc[:N], self.z_var[:N], self.lambda_, self.rule)
        if options.xi_start is not None:
            self.xi.fill_(options.xi_start)
        self.r = updates.update_experts(self.z_loc[:N], self.lambda_) if self.explicit else None
        # of the block of rows at hand, as long as they hold: B' and the ones, h(xi) (0 where its term vanishes)
        self._kept: tuple[slice, Tensor, Tensor] | None = None
        self._curvature: tuple[slice, Tensor] | None = None

    def _labelled(self, rows: slice) -> slice:
        return slice(min(rows.start, len(self.Y)), min(rows.stop, len(self.Y)))

    def _factors(self, rows: slice) -> tuple[Tensor, Tensor]:
        """``B'``, the expert factors kept for each entry, and the expected number of ones among them."""
        if self._kept is None or self._kept[0] != rows:
            y, known = self.labels(rows)
            positive = y * known
            if self.r is None:
                count, ones = known + (self.B - 1) * positive, self.B * positive
            else:
                free = (self.B - 1) * self.r[rows] * (known & (y == 0))
                count, ones = self.B * known.to(y.dtype), self.B * positive + free
            self._kept = rows, count, ones
        return self._kept[1], self._kept[2]

    def step(self, block: str, rows: slice, z_hat: Tensor) -> None:
        part = self._labelled(rows)
        z = slice(part.start, part.stop)
        if block == "q(z)":
            known = part.stop - part.start
            curvature = bound.h(self.xi[part])
            self._curvature = part, curvature
            self.z_loc[z], self.z_var[z] = updates.update_z(
                z_hat[:known], *self._factors(part), self.xi[part], self.lambda_, self.g2, curvature
            )
            rest = slice(rows.start + known, rows.stop)
            self.z_loc[rest], self.z_var[rest] = z_hat[known:], self.g2
            if self.clamp is not None:
                self.z_loc[z] = torch.where(self.Y[part] == 1, self.clamp, self.z_loc[z])
        elif block == "xi":
            self.xi[part] = updates.update_xi(self.z_loc[z], self.z_var[z], self.lambda_, self.rule)
            self._curvature = (part, self.xi.new_zeros(())) if self.rule == "optimal" else None
        elif self.r is not None:
            self.r[part] = updates.update_experts(self.z_loc[z], self.lambda_)
            self._kept = None

    def value(self, rows: slice) -> Tensor:
        part = self._labelled(rows)
        curvature = self._curvature[1] if self._curvature is not None and self._curvature[0] == part else None
        z = self.z_loc[part], self.z_var[part], self.xi[part]
        each = bound.jaakkola(*self._factors(part), *z, self.lambda_, curvature)
        total = each.sum(dtype=torch.float64)
        if self.r is not None:
            free = self.Y[part] == 0
            total = total + (self.B - 1) * (bound.entropy_experts(self.r[part]) * free).sum(dtype=torch.float64)
        return total


class QuadratureTerm(_Rows):
    """Any likelihood, by its own ``expected_log_prob``: safeguarded Newton steps on each ``q(z_nk)`` alone.

        J(m, v) = E ln p(y|z) - [(m - E z_hat)² + v]/(2g²) + ln(v)/2
        prec <- 1/g² - 2 dE/dv    mean <- m + (dE/dm - (m - E z_hat)/g²)/prec

    since ``2 dE/dv`` is the mean curvature of ``ln p(y|z)``. A step is halved, entry by entry, until ``J`` does not
    fall, or not taken.
    """

    blocks: tuple[str, ...] = ("q(z)",)
    STEPS, HALVINGS = 2, 4

    def __init__(self, likelihood: Likelihood, *state: object) -> None:
        super().__init__(*state)  # type: ignore[arg-type]
        self.likelihood = likelihood

    def _expected(self, y: Tensor, known: Tensor, m: Tensor, v: Tensor) -> Tensor:
        each = self.likelihood.expected_log_prob(y, m, v)
        return torch.where(known, each, each.new_zeros(()))

    def step(self, block: str, rows: slice, z_hat: Tensor) -> None:
        y, known = self.labels(rows)
        m, v = self.z_loc[rows].clone(), self.z_var[rows].clone()
        # where nothing is known the optimum is known instead
        m, v = torch.where(known, m, z_hat), torch.where(known, v, self.g2)

        def objective(m: Tensor, v: Tensor, expected: Tensor) -> Tensor:
            return expected - ((m - z_hat).square() + v) / (2 * self.g2) + v.log() / 2

        for _ in range(self.STEPS):
            with torch.enable_grad():
                m_, v_ = m.clone().requires_grad_(), v.clone().requires_grad_()
                expected = self._expected(y, known, m_, v_)
                by_m, by_v = torch.autograd.grad(expected.sum(), (m_, v_))
            now = objective(m, v, expected.detach())
            precision = (1 / self.g2 - 2 * by_v).clamp(min=0.1 / self.g2)
            move, log_change = (by_m - (m - z_hat) / self.g2) / precision, -(precision * v).log()
            size = torch.ones_like(m)
            for _ in range(self.HALVINGS):
                new_m, new_v = m + size * move, v * (size * log_change).exp()
                good = objective(new_m, new_v, self._expected(y, known, new_m, new_v)) >= now
                size = torch.where(good, size, size / 4)
                if good.all():
                    break
            m, v = torch.where(good, new_m, m), torch.where(good, new_v, v)
        self.z_loc[rows], self.z_var[rows] = m, v

    def value(self, rows: slice) -> Tensor:
        y, known = self.labels(rows)
        return self._expected(y, known, self.z_loc[rows], self.z_var[rows]).sum(dtype=torch.float64)


def make_label_term(
    likelihood: Likelihood, Y: Tensor, z_loc: Tensor, z_var: Tensor, g2: float, options: Options
) -> LabelTerm:
    """The term of this likelihood: exact for ``Gaussian``, ``G(t, xi)`` for experts, Bernoulli and Pólya-Gamma,
    quadrature for others.
    """
    state = (Y, z_loc, z_var, g2)
    # exact types: a subclass may have another density, which quadrature takes as it is
    if type(likelihood) in (Experts, Bernoulli, PolyaGamma) and options.sigmoid == "jaakkola":
        return ExpertsTerm(likelihood, *state, options=options)
    if options.clamp is not None or options.xi_start is not None:
        raise ValueError(
            f"clamp and xi_start belong to experts with sigmoid='jaakkola'; got the likelihood "
            f"{type(likelihood).__name__} with sigmoid={options.sigmoid!r}"
        )
    if type(likelihood) is Gaussian:
        return GaussianTerm(likelihood, *state)
    return QuadratureTerm(likelihood, *state)
