"""Each likelihood against its own distribution, enumeration, quadrature and hand computations."""

import itertools
import math

import pyro
import pytest
import torch
from pyro import poutine
from tiny import LIKELIHOOD_CASES
from torch import Tensor

from esmc_pyro.models import EEOE, LIKELIHOODS, MPU, Bernoulli, Experts, Gaussian, Likelihood, make_likelihood
from esmc_pyro.models.likelihoods import ExpertsAgreement

BINARY = [case for case, (name, _) in LIKELIHOOD_CASES.items() if name not in ("experts", "gaussian")]
z_grid = torch.linspace(-4, 4, 9, dtype=torch.float64)

cases = pytest.mark.parametrize("likelihood", [make() for _, make in LIKELIHOOD_CASES.values()], ids=LIKELIHOOD_CASES)


def test_every_likelihood_is_in_the_table() -> None:
    assert {name for name, _ in LIKELIHOOD_CASES.values()} == set(LIKELIHOODS)


@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_log_prob_is_the_distributions(likelihood: Likelihood, y: float) -> None:
    y = torch.full_like(z_grid, y)
    assert torch.allclose(likelihood.log_prob(y, z_grid), likelihood.distribution(z_grid).log_prob(y), atol=1e-6)


@pytest.mark.parametrize("case", BINARY)
def test_two_outcomes_sum_to_one(case: str) -> None:
    likelihood = LIKELIHOOD_CASES[case][1]()
    total = sum(likelihood.log_prob(torch.full_like(z_grid, y), z_grid).exp() for y in (0.0, 1.0))
    assert torch.allclose(total, torch.ones_like(total))
    assert torch.allclose(likelihood.prob(z_grid), likelihood.log_prob(torch.ones_like(z_grid), z_grid).exp())


def test_the_gaussian_integrates_to_one() -> None:
    y = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    density = Gaussian(0.4).log_prob(y, torch.full_like(y, 0.3)).exp()
    assert torch.trapezoid(density, y).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("B", [1, 2, 3, 4, 5])
def test_enumerating_all_experts_gives_every_probability(B: int) -> None:
    """All 2^B outcomes of ``y = E_1 mean(E)``: the whole distribution, the two outcomes, the renormalised form."""
    lambda_ = 0.7
    sigma = torch.sigmoid(lambda_ * z_grid)
    probability: dict[float, Tensor] = {}
    for outcome in itertools.product([0, 1], repeat=B):
        p = torch.stack([sigma if e else 1 - sigma for e in outcome]).prod(0)
        y = outcome[0] * sum(outcome) / B
        probability[y] = probability.get(y, torch.zeros_like(z_grid)) + p

    agreement = ExpertsAgreement(B, lambda_ * z_grid)
    for y, p in probability.items():
        assert torch.allclose(agreement.log_prob(torch.full_like(z_grid, y)).exp(), p)
    assert torch.allclose(sum(probability.values()), torch.ones_like(z_grid))
    assert torch.allclose(probability[1.0], sigma**B)
    assert torch.allclose(probability[0.0], 1 - sigma)

    experts, eeoe = Experts(B, lambda_), EEOE(B, lambda_)
    one, zero = torch.ones_like(z_grid), torch.zeros_like(z_grid)
    assert torch.allclose(experts.log_prob(one, z_grid).exp(), probability[1.0])
    assert torch.allclose(experts.log_prob(zero, z_grid).exp(), probability[0.0])
    assert torch.allclose(experts.prob(z_grid), sigma**B)
    renormalised = probability[1.0] / (probability[1.0] + probability[0.0])
    assert torch.allclose(eeoe.log_prob(one, z_grid).exp(), renormalised)
    assert torch.allclose(eeoe.prob(z_grid), sigma**B / (sigma**B + 1 - sigma))


@pytest.mark.parametrize("B", [1, 2, 3, 5])
@pytest.mark.parametrize("explicit", [True, False])
def test_drawn_y_takes_the_papers_fractions_with_their_probabilities(B: int, explicit: bool) -> None:
    likelihood = Experts(B, 2.0, explicit=explicit)
    z = torch.tensor([-0.6, 0.0, 0.9], dtype=torch.float64)
    draws = 20_000
    with pyro.plate("instances", draws, dim=-1):
        y = poutine.trace(likelihood).get_trace(z.expand(draws, 3)).nodes["y"]["value"]
    assert y.shape == (draws, 3)
    values = torch.tensor([0.0, *(j / B for j in range(1, B + 1))], dtype=y.dtype)
    assert torch.isclose(y.unsqueeze(-1), values).any(-1).all()
    for value in values:
        share = torch.isclose(y, value).double().mean(0)
        p = ExpertsAgreement(B, 2.0 * z).log_prob(value.expand(3)).exp()
        assert ((share - p).abs() < 4 * (p * (1 - p) / draws).sqrt() + 1e-12).all()


def test_impossible_fractions_are_impossible() -> None:
    y = torch.tensor([0.5, 0.3, 1 / 3, 2 / 3])
    assert ExpertsAgreement(3, torch.zeros(4)).log_prob(y).isneginf().tolist() == [True, True, False, False]


def test_agreement_expands_masks_and_sums_as_an_event() -> None:
    logits = torch.randn(3)
    wide = ExpertsAgreement(2, logits).expand(torch.Size([4, 3]))
    y = torch.tensor([0.0, 0.5, 1.0]).expand(4, 3)
    known = torch.tensor([True, False, True])
    summed = wide.mask(known).to_event(1).log_prob(y)
    by_hand = ExpertsAgreement(2, logits).log_prob(y[0])[known].sum()
    assert torch.allclose(summed, by_hand.expand(4))
    assert wide.sample(torch.Size([7])).shape == (7, 4, 3)


def test_mpu_and_bernoulli_by_hand() -> None:
    sigma = torch.sigmoid(1.2 * z_grid)
    assert torch.allclose(MPU(0.3, 1.2).prob(z_grid), 0.7 * sigma)
    assert torch.allclose(MPU(0.0, 1.2).prob(z_grid), sigma)
    assert torch.allclose(Bernoulli(1.2).prob(z_grid), sigma)
    assert torch.allclose(Bernoulli(1.2).suitability(z_grid), sigma)
    assert torch.allclose(MPU(0.3, 1.2).suitability(z_grid), sigma)
    assert Gaussian().prob(torch.tensor([-1.0, 0.25, 2.0])).tolist() == [0, 0.25, 1]


def fine_expectation(likelihood: Likelihood, y: Tensor, mean: Tensor, sd: float) -> Tensor:
    t = torch.linspace(-10, 10, 4001, dtype=torch.float64)
    weight = torch.exp(-(t**2) / 2)
    z = mean.unsqueeze(-1) + sd * t
    values = likelihood.log_prob(y.unsqueeze(-1).expand_as(z), z)
    return (values * weight).sum(-1) / weight.sum()


# 20 points: exact to rounding while the likelihood is smooth on the scale of sd, a few parts in 1000 when it is not
@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize(("sd", "tolerance"), [(0.2, 1e-6), (1.0, 1e-4), (3.0, 5e-3)])
def test_expected_log_prob_against_fine_quadrature(
    likelihood: Likelihood, y: float, sd: float, tolerance: float
) -> None:
    y = torch.full_like(z_grid, y)
    given = likelihood.expected_log_prob(y, z_grid, torch.full_like(z_grid, sd**2))
    exact = fine_expectation(likelihood, y, z_grid, sd)
    assert ((given - exact).abs() <= tolerance * (1 + exact.abs())).all()


@cases
def test_expected_log_prob_against_monte_carlo(likelihood: Likelihood) -> None:
    mean, var = torch.tensor([-1.0, 0.5], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)
    draws = likelihood.log_prob(y, mean + var.sqrt() * torch.randn(20_000, 2, dtype=torch.float64))
    error = draws.std(0) / len(draws) ** 0.5
    assert ((likelihood.expected_log_prob(y, mean, var) - draws.mean(0)).abs() < 4 * error).all()


@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_no_variance_gives_back_log_prob_with_finite_slopes(likelihood: Likelihood, y: float) -> None:
    y = torch.full_like(z_grid, y)
    mean = z_grid.clone().requires_grad_()
    var = torch.zeros_like(z_grid).requires_grad_()
    expected = likelihood.expected_log_prob(y, mean, var)
    expected.sum().backward()
    assert torch.allclose(expected, likelihood.log_prob(y, z_grid))
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(var.grad).all()


STEEP = {
    "bernoulli": lambda: Bernoulli(1e5),
    "eeoe": lambda: EEOE(50, 1e5),
    "mpu": lambda: MPU(0.2, 1e5),
    "experts": lambda: Experts(50, 1e5),
    "gaussian": lambda: Gaussian(1e-3),
}


def test_every_likelihood_has_a_steep_case() -> None:
    assert set(STEEP) == set(LIKELIHOODS)


@pytest.mark.parametrize("name", STEEP)
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_steep_likelihoods_have_finite_values_and_slopes_in_float32(name: str, y: float) -> None:
    likelihood = STEEP[name]()
    z = torch.tensor([-1000.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 1000.0], requires_grad=True)
    var = torch.full((7,), 0.3, requires_grad=True)
    y = torch.full((7,), y)
    total = likelihood.log_prob(y, z).sum() + likelihood.expected_log_prob(y, z, var).sum() + likelihood.prob(z).sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(var.grad).all()


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
@pytest.mark.usefixtures("double")
def test_best_constants(p: float) -> None:
    frequency = torch.tensor([p])
    logit = math.log(p / (1 - p))
    assert Bernoulli(2.0).best_constant(frequency).item() == pytest.approx(logit / 2, abs=1e-4)
    assert Experts(7).best_constant(frequency).item() == pytest.approx(logit + math.log(7), abs=1e-4)
    assert EEOE(7).prob(EEOE(7).best_constant(frequency)).item() == pytest.approx(p, abs=1e-4)
    assert Gaussian().best_constant(frequency).item() == pytest.approx(p, abs=1e-4)
    if p < 0.8:
        assert MPU(0.2).prob(MPU(0.2).best_constant(frequency)).item() == pytest.approx(p, abs=1e-4)


def test_rough_z() -> None:
    y = torch.tensor([0.0, 1.0])
    assert Bernoulli(4.0).rough_z(y).tolist() == [-0.5, 0.5]
    assert Gaussian().rough_z(y).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bernoulli(0), "lambda_ must be a number above 0; got 0"),
        (lambda: Experts(0), r"B .*'gaussian'\) must be a whole number of at least 1; got 0"),
        (lambda: Experts(2.5), "B .* must be a whole number of at least 1; got 2.5"),
        (lambda: EEOE(0.5), "B .* must be a number of at least 1; got 0.5"),
        (lambda: MPU(1.0), "c must be a removal rate below 1; got 1.0"),
        (lambda: MPU(-0.1), "c must be a number of at least 0; got -0.1"),
        (lambda: Gaussian(0), "noise must be a number above 0; got 0"),
        (lambda: make_likelihood("probit"), "likelihood must be a Likelihood or one of .*'bernoulli'.*; got 'probit'"),
    ],
)
def test_bad_options_are_said(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_likelihood_owes_its_distribution() -> None:
    class Nothing(Likelihood):
        pass

    with pytest.raises(TypeError, match=r"Nothing must define distribution\(z\)"):
        Nothing().log_prob(torch.zeros(1), torch.zeros(1))
