"""The Pólya-Gamma augmentation against draws of its variable, the Bernoulli it augments, and Jaakkola and Jordan."""

import math

import pytest
import torch
from tiny import tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.inference.analytic import bound, fit_analytic
from esmc_pyro.models import Bernoulli, PolyaGamma

pytestmark = pytest.mark.usefixtures("double")


def draw_omega(tilt: float, draws: int, terms: int = 200) -> Tensor:
    """``PG(1, tilt)`` by its definition, ``sum_k g_k / (2 pi² ((k - 1/2)² + tilt² / (4 pi²)))``, ``g_k ~ Exp(1)``.

    The terms left out are replaced by their mean; their standard deviation is below 1e-4.
    """
    k = torch.arange(1, terms + 1)
    weight = 1 / (2 * math.pi**2 * ((k - 0.5) ** 2 + tilt**2 / (4 * math.pi**2)))
    far = torch.arange(terms + 1, 200_001)
    rest = (1 / (2 * math.pi**2 * ((far - 0.5) ** 2 + tilt**2 / (4 * math.pi**2)))).sum()
    return torch.empty(draws, terms).exponential_() @ weight + rest


@pytest.mark.parametrize("xi", [0.0, 0.5, 2.0, 6.0])
def test_the_mean_of_omega(xi: float) -> None:
    draws = draw_omega(xi, 20_000)
    error = draws.std() / len(draws) ** 0.5
    assert (2 * bound.h(torch.tensor(xi)) - draws.mean()).abs() < 4 * error


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_summing_omega_out_gives_the_bernoulli(y: float) -> None:
    """``p(y|z) = 1/2 exp((y - 1/2) t) E exp(-omega t² / 2)``, ``omega ~ PG(1, 0)``."""
    omega = draw_omega(0.0, 20_000)
    for z in (-1.5, -0.2, 0.7, 2.0):
        t = 1.3 * z
        terms = 0.5 * math.exp((y - 0.5) * t) * torch.exp(-omega * t**2 / 2)
        p = PolyaGamma(1.3).log_prob(torch.tensor(y), torch.tensor(z)).exp()
        assert (terms.mean() - p).abs() < 4 * terms.std() / len(omega) ** 0.5 + 1e-5


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_expected_log_prob_is_the_augmented_bound_with_drawn_omega(y: float) -> None:
    """``E ln [p(y, omega | z) / q(omega)]`` by Monte Carlo over ``q(z) q(omega)``, ``q(omega) = PG(1, xi)`` the best.

    ``ln PG(omega; 1, xi) - ln PG(omega; 1, 0) = ln cosh(xi / 2) - omega xi² / 2``.
    """
    lambda_, mean, var = 1.3, 0.6, 0.8
    xi = lambda_ * math.sqrt(mean**2 + var)
    omega, t = draw_omega(xi, 20_000), lambda_ * (mean + math.sqrt(var) * torch.randn(20_000))
    log_joint = -math.log(2) + (y - 0.5) * t - omega * t**2 / 2
    terms = log_joint - (math.log(math.cosh(xi / 2)) - omega * xi**2 / 2)
    at = torch.tensor([y, mean, var]).unbind()
    value = PolyaGamma(lambda_).expected_log_prob(*at)
    assert (terms.mean() - value).abs() < 4 * terms.std() / len(terms) ** 0.5
    assert value < Bernoulli(lambda_).expected_log_prob(*at)
    # other tilts of q(omega) are worse: xi is the best
    for other in (0.7 * xi, 1.4 * xi):
        h = bound.h(torch.tensor(other))
        worse = (y - 0.5) * lambda_ * mean - math.log(2 * math.cosh(other / 2)) - h * (xi**2 - other**2)
        assert worse < value


def test_it_is_the_bound_of_jaakkola_and_jordan() -> None:
    mean, var, y = torch.randn(50), torch.rand(50), torch.bernoulli(torch.full((50,), 0.5))
    xi = 1.3 * (mean**2 + var).sqrt()
    jaakkola = bound.jaakkola(torch.ones(50), y, mean, var, xi, 1.3)
    assert torch.allclose(PolyaGamma(1.3).expected_log_prob(y, mean, var), jaakkola)


def test_slopes_are_finite_at_zero() -> None:
    mean, var = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    PolyaGamma().expected_log_prob(torch.ones(1), mean, var).backward()
    assert mean.grad.item() == pytest.approx(0.5)
    assert var.grad.item() == pytest.approx(-1 / 8)


def test_the_analytic_solver_updates_it_in_closed_form_as_the_bernoulli() -> None:
    """The conjugate updates are Jaakkola and Jordan's; the generic solver arrives at the optimum of the same bound."""
    X, Y = tiny_data()
    fits = [
        fit_analytic(tiny_model(X, Y, 1, likelihood), X[: len(Y)], Y, sweeps=60, tolerance=1e-9, **options)
        for likelihood, options in (
            (Bernoulli(1.3), {}),
            (PolyaGamma(1.3), {}),
            (PolyaGamma(1.3), {"sigmoid": "quadrature"}),
        )
    ]
    elbos = [fit.history["elbo"] for fit in fits]
    assert elbos[0].tolist() == elbos[1].tolist()
    assert elbos[2].iloc[-1] == pytest.approx(elbos[1].iloc[-1], rel=1e-6)
    assert (elbos[1].diff()[1:] >= -1e-9).all()
