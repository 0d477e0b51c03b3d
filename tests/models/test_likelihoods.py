"""Each likelihood against its own distribution, enumeration, quadrature and hand computations."""

import copy
import itertools
import math
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from tiny import LIKELIHOOD_CASES, tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.diagnostics import compare
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import (
    EEOE,
    ESMC,
    LIKELIHOODS,
    MPU,
    Bernoulli,
    Experts,
    Gaussian,
    LearnedEEOE,
    LearnedMPU,
    Likelihood,
    NoisyOr,
    PolyaGamma,
    Probit,
    Propensity,
    make_likelihood,
    observed,
)
from esmc_pyro.models.likelihoods import ExpertsAgreement
from esmc_pyro.posterior import Posterior

BINARY = [case for case, (name, _) in LIKELIHOOD_CASES.items() if name not in ("experts", "gaussian")]
z_grid = torch.linspace(-4, 4, 9, dtype=torch.float64).unsqueeze(1).expand(9, 4)  # K = 4 labels

cases = pytest.mark.parametrize("likelihood", [make() for _, make in LIKELIHOOD_CASES.values()], ids=LIKELIHOOD_CASES)


def test_every_likelihood_is_in_the_table() -> None:
    assert {name for name, _ in LIKELIHOOD_CASES.values()} == set(LIKELIHOODS)


@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_log_prob_is_the_distributions(likelihood: Likelihood, y: float) -> None:
    y = torch.full_like(z_grid, y)
    by_distribution = likelihood.distribution(z_grid).log_prob(y)
    assert by_distribution.shape == z_grid.shape
    assert torch.allclose(likelihood.log_prob(y, z_grid), by_distribution, atol=1e-6)


@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_the_slope_is_that_of_log_prob(likelihood: Likelihood, y: float) -> None:
    likelihood, y, h = copy.deepcopy(likelihood).double(), torch.full_like(z_grid, y), 1e-5
    rise = likelihood.log_prob(y, z_grid + h) - likelihood.log_prob(y, z_grid - h)
    assert torch.allclose(likelihood.slope(y, z_grid), rise / (2 * h), atol=1e-7)


def test_the_slope_follows_a_log_prob_of_ones_own() -> None:
    class Doubled(Bernoulli):
        def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
            return 2 * super().log_prob(y, z)

    y = torch.ones_like(z_grid)
    assert torch.allclose(Doubled().slope(y, z_grid), 2 * Bernoulli().slope(y, z_grid))


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


def fine_expectation(g: Callable[[Tensor], Tensor], mean: Tensor, sd: float) -> Tensor:
    t = torch.linspace(-10, 10, 4001, dtype=torch.float64).reshape(-1, 1, 1)
    weight = torch.exp(-(t**2) / 2)
    return (g(mean + sd * t) * weight).sum(0) / weight.sum()


# 20 points: exact to rounding while the likelihood is smooth on the scale of sd, a few parts in 1000 when it is not
@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize(("sd", "tolerance"), [(0.2, 1e-6), (1.0, 1e-4), (3.0, 5e-3)])
def test_expected_log_prob_against_fine_quadrature(
    likelihood: Likelihood, y: float, sd: float, tolerance: float
) -> None:
    y = torch.full_like(z_grid, y)
    given = likelihood.expected_log_prob(y, z_grid, torch.full_like(z_grid, sd**2))
    exact = fine_expectation(lambda z: likelihood.log_prob(y, z), z_grid, sd)
    assert (given - exact <= tolerance * (1 + exact.abs())).all()
    if not isinstance(likelihood, PolyaGamma):  # whose own is a lower bound
        assert ((given - exact).abs() <= tolerance * (1 + exact.abs())).all()


@cases
@pytest.mark.parametrize(("sd", "tolerance"), [(0.0, 1e-9), (0.2, 1e-6), (1.0, 1e-4), (3.0, 5e-3)])
def test_expected_prob_against_fine_quadrature(likelihood: Likelihood, sd: float, tolerance: float) -> None:
    given = likelihood.expected_prob(z_grid, torch.full_like(z_grid, sd**2))
    assert ((given - fine_expectation(likelihood.prob, z_grid, sd)).abs() <= tolerance).all()


def test_the_probits_averages_have_a_closed_form() -> None:
    """Against quadrature, which is what it would inherit, and by hand: a normal noise joins a normal threshold."""
    var = torch.full_like(z_grid, 0.3)
    exact = Probit(1.4).expected_prob(z_grid, var)
    assert torch.allclose(exact, fine_expectation(Probit(1.4).prob, z_grid, 0.3**0.5), atol=1e-9)
    assert torch.allclose(exact, Likelihood.expected_prob(Probit(1.4), z_grid, var), atol=1e-7)


@cases
def test_expected_log_prob_against_monte_carlo(likelihood: Likelihood) -> None:
    mean = torch.tensor([-1.0, 0.5, 1.5, -0.3], dtype=torch.float64)
    var = torch.tensor([0.5, 2.0, 1.0, 0.2], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    draws = likelihood.log_prob(y, mean + var.sqrt() * torch.randn(20_000, 4, dtype=torch.float64))
    error = draws.std(0) / len(draws) ** 0.5
    above = likelihood.expected_log_prob(y, mean, var) - draws.mean(0)
    assert (above < 4 * error).all()
    if not isinstance(likelihood, PolyaGamma):  # whose own is a lower bound
        assert (above > -4 * error).all()


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


STEEP: dict[str, Callable[[], Likelihood]] = {
    "bernoulli": lambda: Bernoulli(1e5),
    "eeoe": lambda: EEOE(50, 1e5),
    "mpu": lambda: MPU(0.2, 1e5),
    "experts": lambda: Experts(50, 1e5),
    "gaussian": lambda: Gaussian(1e-3),
    "eeoe_learned": lambda: LearnedEEOE(50.0, 1e5),
    "polya_gamma": lambda: PolyaGamma(1e5),
    "probit": lambda: Probit(1e5),
    "mpu_learned": lambda: LearnedMPU(0.2, 1e5),
    "propensity": lambda: Propensity([1e-3] * 7, 1e5),
    "noisy_or": lambda: NoisyOr([1e-6] * 7, [1e-6] * 7, 1e5),
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
    assert all(torch.isfinite(parameter.grad).all() for parameter in likelihood.parameters() if parameter.requires_grad)


@cases
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_extreme_z_has_finite_values_slopes_and_curvatures_in_float32(likelihood: Likelihood, y: float) -> None:
    far = torch.tensor([-1e4, -300.0, -90.0, -15.0, 0.0, 15.0, 90.0, 300.0, 1e4]).unsqueeze(1).expand(9, 4)
    z, y = far.clone().requires_grad_(), torch.full((9, 4), y)
    likelihood = copy.deepcopy(likelihood).float()
    total = likelihood.log_prob(y, z).sum() + likelihood.prob(z).sum() + likelihood.distribution(z).log_prob(y).sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(z.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in likelihood.parameters() if parameter.requires_grad)
    exact = copy.deepcopy(likelihood).double().information(y.double(), far.double())
    assert torch.allclose(likelihood.information(y, far).double(), exact, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_unknown_entries_add_nothing_and_their_gradients_are_zero(name: str) -> None:
    X, Y = tiny_data()
    options = {"experts": {"explicit": False}, "mpu": {"c": 0.3}}.get(name, {})
    likelihood = make_likelihood(name, Y, **options)
    y, known = observed(Y, torch.arange(len(X)))
    z = torch.randn(len(X), 4, requires_grad=True)
    with pyro.plate("instances", len(X), dim=-1):
        site = poutine.trace(likelihood).get_trace(z, y, known).nodes["y"]
        total = site["fn"].log_prob(site["value"]).sum()
    assert torch.allclose(total, likelihood.log_prob(y, z)[known].sum())
    total.backward()
    assert (z.grad[~known] == 0).all()
    assert torch.isfinite(z.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in likelihood.parameters() if p.requires_grad)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
@pytest.mark.usefixtures("double")
def test_best_constants(p: float) -> None:
    frequency = torch.tensor([p])
    logit = math.log(p / (1 - p))
    assert Bernoulli(2.0).best_constant(frequency).item() == pytest.approx(logit / 2, abs=1e-4)
    assert Experts(7).best_constant(frequency).item() == pytest.approx(logit + math.log(7), abs=1e-4)
    assert EEOE(7).prob(EEOE(7).best_constant(frequency)).item() == pytest.approx(p, abs=1e-4)
    assert Gaussian().best_constant(frequency).item() == pytest.approx(p, abs=1e-4)
    suits_each = [
        LearnedEEOE([2.0, 9.0]), PolyaGamma(3.0), Probit(2.0), MPU([0.01, 0.05]), LearnedMPU(0.05),
        Propensity([0.95, 1.0]), NoisyOr([0.01, 0.05], [0.01, 0.015]),
    ]  # fmt: skip
    for likelihood in suits_each:
        best = likelihood.best_constant(frequency.expand(2))
        assert not best.requires_grad
        assert likelihood.prob(best).tolist() == pytest.approx([p, p], abs=1e-4)
    beyond = MPU(0.2).best_constant(torch.tensor([0.9]))
    assert MPU(0.2).prob(beyond).item() == pytest.approx(0.8, abs=1e-4)


def test_rough_z() -> None:
    y = torch.tensor([0.0, 1.0])
    assert Bernoulli(4.0).rough_z(y).tolist() == [-0.5, 0.5]
    assert Gaussian().rough_z(y).tolist() == [0, 1]
    probit = Probit(3.0)
    assert probit.suitability(probit.rough_z(y)).tolist() == pytest.approx([0.12, 0.88], abs=0.005)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bernoulli(0), "lambda_ must be a number above 0; got 0"),
        (lambda: Experts(0), r"B .*'gaussian'\) must be a whole number of at least 1; got 0"),
        (lambda: Experts(2.5), "B .* must be a whole number of at least 1; got 2.5"),
        (lambda: EEOE(0.5), "B .* must be a number of at least 1; got 0.5"),
        (lambda: MPU(1.0), "c must be below 1; got 1.0"),
        (lambda: MPU([0.1, 1.5]), "c must be below 1; got 1.5"),
        (lambda: MPU([[0.1, 0.5]]), r"c must be a number of at least 0; got \[0.1, 0.5\]"),
        (lambda: MPU("half"), "c must be a number of at least 0; got 'half'"),
        (lambda: MPU([]), r"c must be a number or one for each label; got shape \(0,\)"),
        (lambda: LearnedMPU(0.0), "c must be a number above 0; got 0.0"),
        (lambda: LearnedEEOE(1), "B .* must be a number above 1; got 1"),
        (lambda: Propensity([0.3, 0.0]), "propensity must be a number above 0; got 0.0"),
        (lambda: Propensity(1.2), "propensity must be below 1; got 1.2"),
        (lambda: Propensity.from_labels(torch.eye(2)), "Y_train must have at least 3 rows"),
        (lambda: NoisyOr(0.2, [0.1, 0.0]), "leak must be a number above 0; got 0.0"),
        (lambda: NoisyOr([0.1, 0.2], [0.1, 0.1, 0.1]), "leak must be for 2 labels; got 3 values"),
        (lambda: MPU.from_labels(torch.eye(3)), r"MPU needs c, which labels cannot tell; pass an object, MPU\(c=...\)"),
        (lambda: make_likelihood("eeoe_learned"), "'eeoe_learned' needs B where there are no labels to take it from"),
        (
            lambda: ESMC.from_data(torch.eye(3), torch.eye(3), likelihood=EEOE([2, 3])),
            "EEOE must be for the model's 3 labels; got one for 2",
        ),
        (lambda: MPU(-0.1), "c must be a number of at least 0; got -0.1"),
        (lambda: Gaussian(0), "noise must be a number above 0; got 0"),
        (lambda: make_likelihood("logit"), "likelihood must be a Likelihood or one of .*'bernoulli'.*; got 'logit'"),
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


class Heavy(Likelihood):
    """A user's likelihood with a density."""

    is_density = True

    def distribution(self, z: Tensor) -> dist.TorchDistribution:
        return dist.StudentT(4.0, z, 0.5)


@cases
def test_of_the_likelihoods_by_name_the_gaussian_alone_is_a_density(likelihood: Likelihood) -> None:
    assert likelihood.is_density == isinstance(likelihood, Gaussian)


def test_a_users_density_has_to_say_what_the_probability_of_a_label_is() -> None:
    with pytest.raises(TypeError, match=r"Heavy must define prob\(z\), since it has a density of y"):
        Heavy().prob(z_grid)


def test_a_users_density_is_not_compared_with_a_probability() -> None:
    X, Y = tiny_data()
    models = {name: tiny_model(X, Y, 1, make()) for name, make in {"density": Heavy, "probability": Bernoulli}.items()}
    candidates = {name: Posterior(m, DoublyStochasticGuide(m, X, Y, start="zero")) for name, m in models.items()}
    with pytest.raises(ValueError, match="no common scale; got both"):
        compare(candidates, X, Y, draws=10)


@cases
def test_log_odds_are_those_of_the_probability(likelihood: Likelihood) -> None:
    z = torch.linspace(0.05, 0.95, 5).double().unsqueeze(1).expand(5, 4)
    likelihood = copy.deepcopy(likelihood).double()
    torch.testing.assert_close(likelihood.log_odds(z), torch.logit(likelihood.prob(z)))


@pytest.mark.parametrize(
    "likelihood", [EEOE(16), Experts(16), MPU(0.3), Bernoulli(), Probit(), Gaussian(), NoisyOr(0.1)]
)
def test_log_odds_rank_far_labels_too(likelihood: Likelihood) -> None:
    z = torch.tensor([-9.0, -6.0, -4.0, -2.0, -1.4, 1.0, 2.0, 4.0, 6.0]).double()
    odds = likelihood.log_odds(z)
    assert (odds.diff() > 0).all()
    assert torch.isfinite(odds).all()
    if isinstance(likelihood, EEOE | Experts):  # sigma(-6)^16, of which no probability in float64 would tell one less
        assert odds[1].item() == pytest.approx(16 * math.log(torch.sigmoid(z[1]).item()), abs=0.05)


class _Careless(Bernoulli):
    """One label in a hundred is written though it does not suit; a distribution alone."""

    def distribution(self, z: Tensor) -> dist.Distribution:
        return dist.Bernoulli(0.01 + 0.99 * self.suitability(z))


class _Blunt(Probit):
    """A density of one's own on top of a likelihood with closed forms."""

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.log(0.01 + 0.98 * super().log_prob(y, z).exp())


@pytest.mark.parametrize("likelihood", [_Careless(), _Blunt()])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_who_changes_a_likelihood_has_none_of_its_closed_forms(likelihood: Likelihood, y: float) -> None:
    z = torch.tensor([-8.0, -1.0, 0.0, 2.0]).double()
    one = likelihood.prob(z)
    assert one[0].item() == pytest.approx(0.01, abs=4e-4)
    labels = torch.full_like(z, y)
    log_p = (one if y else 1 - one).log()
    torch.testing.assert_close(likelihood.log_prob(labels, z), log_p)
    torch.testing.assert_close(likelihood.log_odds(z), torch.logit(one))
    # with next to no variance every average is the value itself
    var = torch.full_like(z, 1e-10)
    torch.testing.assert_close(likelihood.expected_log_prob(labels, z, var), log_p)
    torch.testing.assert_close(likelihood.marginal_log_prob(labels, z, var), log_p)
    torch.testing.assert_close(likelihood.expected_prob(z, var), one)
    steps = (likelihood.log_prob(labels, z + 1e-5) - likelihood.log_prob(labels, z - 1e-5)) / 2e-5
    torch.testing.assert_close(likelihood.slope(labels, z), steps, rtol=1e-5, atol=1e-8)
    best = likelihood.best_constant(torch.tensor([0.3]).double())
    assert likelihood.prob(best).item() == pytest.approx(0.3, abs=1e-6)


class _Sharp(Likelihood):
    """A density of one's own, far narrower than the prior of ``z``."""

    is_density = True

    def distribution(self, z: Tensor) -> dist.Distribution:
        return dist.Normal(z, 0.05)


@pytest.mark.parametrize(
    "likelihood", [EEOE(100), EEOE(16), Experts(100), Bernoulli(), Bernoulli(10.0), MPU(0.3), MPU(0.001), _Sharp()]
)
def test_marginals_of_labels_that_z_does_not_explain(likelihood: Likelihood) -> None:
    """Against the trapezoid rule; the mass lies up to 10 deviations from the mean of ``z``."""
    y, mean = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0]).double(), torch.tensor([-4.0, -2.0, 0.3, 6.0, -1.1]).double()
    var = torch.tensor([0.25, 0.02, 1.0, 0.02, 0.5]).double()
    z = torch.linspace(-30, 30, 400_001).double()[:, None]
    terms = likelihood.log_prob(y.expand(len(z), -1), z.expand(-1, 5)) - (z - mean).square() / (2 * var)
    exact = torch.logsumexp(terms, 0) - 0.5 * torch.log(2 * math.pi * var) + math.log(60 / 400_000)
    found = likelihood.marginal_log_prob(y, mean, var)
    assert ((found - exact).abs() < 2e-3).all()
    entries = zip(*(values.split(1) for values in (y, mean, var)), strict=True)
    alone = torch.cat([likelihood.marginal_log_prob(*entry) for entry in entries])
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-8)  # whatever stands beside an entry


def test_what_a_likelihood_was_made_with_can_be_read() -> None:
    made = [Bernoulli(), Bernoulli(2.0), MPU(0.3), LearnedMPU(0.25), EEOE([2.0, 3.0]), Experts(3)]
    shown = ["Bernoulli()", "Bernoulli(lambda_=2)", "MPU(c=0.3)", "LearnedMPU(c=0.25)", "EEOE(B=<2 numbers>)"]
    assert [repr(one) for one in made] == [*shown, "Experts(B=3)"]


class _Clamped(EEOE):
    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return super().log_prob(y, z).clamp(min=-3)


class _Halving:
    """Written for any likelihood."""

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return 0.5 * super().log_prob(y, z)  # type: ignore[misc]


class _Halved(_Halving, Bernoulli):
    pass


class _Believing(Gaussian):
    def prob(self, z: Tensor) -> Tensor:
        return torch.special.ndtr((z - 0.5) / 0.3)


class _Heavy(Gaussian):
    def distribution(self, z: Tensor) -> dist.Distribution:
        return dist.StudentT(3.0, z, self.noise)


def test_parts_of_likelihoods_that_are_changed_by_others() -> None:
    z = torch.tensor([-3.0, 0.1, 0.7]).double()
    one = torch.ones_like(z)
    expected = EEOE(2.0).log_prob(one, z).clamp(min=-3)
    torch.testing.assert_close(_Clamped(2.0).log_prob(one, z), expected)
    torch.testing.assert_close(_Clamped(2.0).log_odds(z), expected - torch.log1p(-expected.exp()))
    torch.testing.assert_close(_Halved().slope(one, z), 0.5 * Bernoulli().slope(one, z))
    believing, heavy = _Believing(), _Heavy()
    torch.testing.assert_close(believing.log_odds(z[1:]), torch.logit(believing.prob(z[1:])))
    torch.testing.assert_close(believing.expected_log_prob(one, z, one), Gaussian().expected_log_prob(one, z, one))
    torch.testing.assert_close(heavy.log_prob(one, z), dist.StudentT(3.0, z, 0.3).log_prob(one))
    torch.testing.assert_close(heavy.prob(z), z.clamp(0, 1))  # what a density calls a probability stays
    assert heavy.expected_log_prob(one, z, one)[1] > Gaussian().expected_log_prob(one, z, one)[1] + 1


@pytest.mark.parametrize("lambda_", [300.0, 1e5, 1e10])
def test_marginals_of_steps_are_bounded(lambda_: float) -> None:
    """A step at 0 gives ``Phi(mean / sd)``; a hundred points of the prior are off by up to a tenth of it here."""
    mean = torch.tensor([-1.0, 0.0, 1.0]).double()
    found = Bernoulli(lambda_).marginal_log_prob(torch.ones(3).double(), mean, torch.ones(3).double())
    assert ((found.exp() / torch.special.ndtr(mean) - 1).abs() < 0.1).all()
