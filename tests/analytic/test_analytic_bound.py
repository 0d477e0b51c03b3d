"""The closed-form bound is the ELBO of the Pyro model under the paper's guide; the Jaakkola bound lies below it."""

import pytest
import torch
from analytic_problems import LIKELIHOODS, make_data, make_likelihood, make_model, random_guide
from pyro.infer import Trace_ELBO
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic import Options, Solver, fit_analytic
from esmc_pyro.inference.analytic.bound import entropy_experts, h, jaakkola
from esmc_pyro.models import ESMC, Bernoulli, Experts, observed


def monte_carlo(
    model: ESMC, guide: PaperGuide, X: Tensor, Y: Tensor, rounds: int = 25, particles: int = 200
) -> tuple[float, float]:
    """Mean and standard error of Pyro's ELBO."""
    elbo = Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=2)
    with torch.no_grad():
        draws = torch.tensor([-elbo.loss(model, guide, X, Y) for _ in range(rounds)], dtype=torch.float64)
    return draws.mean().item(), draws.std().item() / rounds**0.5


def explicit_likelihood(solver: Solver, Y: Tensor, likelihood: Experts) -> float:
    """``E ln p(E|z)`` by quadrature and ``H q(E)``, for the ``q(E)`` that the guide takes: ``sigma(lambda E z)``."""
    mean, var = solver.rows.loc[-1][: len(Y)], solver.rows.var[-1][: len(Y)]
    y, known = observed(Y, torch.arange(len(Y)))
    r = torch.sigmoid(likelihood.lambda_ * mean)
    zero = Bernoulli(likelihood.lambda_).expected_log_prob(torch.zeros_like(mean), mean, var)
    free = (likelihood.B - 1) * (r * likelihood.lambda_ * mean + entropy_experts(r))
    each = likelihood.B * zero + torch.where(y > 0, likelihood.B * likelihood.lambda_ * mean, free)
    return (each * known).sum().item()


def closed_form(model: ESMC, guide: PaperGuide, X: Tensor, Y: Tensor, c_variance: str) -> tuple[float, float]:
    """The bound with the likelihood by quadrature, and with the solver's own term for it."""
    explicit = isinstance(model.likelihood, Experts) and model.likelihood.explicit
    experts = "explicit" if explicit else "integrated"
    quadrature = Solver(model, X, Y, guide, Options(c_variance=c_variance, sigmoid="quadrature"))
    own = Solver(model, X, Y, guide, Options(c_variance=c_variance, experts=experts)).bound()
    exact = quadrature.bound()
    if explicit:
        exact += explicit_likelihood(quadrature, Y, model.likelihood) - quadrature.likelihood
    return exact, own


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_equals_the_elbo_at_random_q(likelihood: str, seed: int) -> None:
    X, Y = make_data(seed)
    model = make_model(X, 3, [2], make_likelihood(likelihood), seed=seed)
    guide = random_guide(model, X, Y, ["full", "diagonal"][seed], seed)
    exact, own = closed_form(model, guide, X, Y, "rows")
    mean, error = monte_carlo(model, guide, X, Y)
    assert abs(exact - mean) < 3 * error
    assert error < 0.01 * abs(mean)
    assert own <= exact + 1e-9


@pytest.mark.parametrize(
    ("likelihood", "c_variance", "widths"),
    [
        ("experts", "shared", [2]),
        ("experts", "rows", [2]),
        ("bernoulli", "shared", [2, 2]),
        ("bernoulli", "rows", [2]),
        ("gaussian", "shared", []),
        ("gaussian", "rows", [2, 2]),
        ("eeoe", "shared", [2]),
    ],
)
def test_equals_the_elbo_at_the_solvers_result(likelihood: str, c_variance: str, widths: list[int]) -> None:
    X, Y = make_data(3)
    model = make_model(X, 3, widths, make_likelihood(likelihood), seed=3)
    posterior = fit_analytic(
        model, X[: len(Y)], Y, X[len(Y) :], c_variance=c_variance, experts="explicit", sweeps=4, tolerance=0,
        progress=False,
    )  # fmt: skip
    exact, own = closed_form(model, posterior.guide, X, Y, c_variance)
    mean, error = monte_carlo(model, posterior.guide, X, Y)
    assert abs(exact - mean) < 3 * error
    assert own <= exact + 1e-9
    # what the history says is what a fresh solver finds in the guide
    assert posterior.history["elbo"].iloc[-1] == pytest.approx(own, rel=1e-9)


def test_jaakkola_is_below_and_touches() -> None:
    mean = torch.linspace(-6, 6, 13, dtype=torch.float64)
    for lambda_ in (0.5, 1.0, 3.0):
        for var in (1e-12, 0.3, 2.0):
            v = torch.full_like(mean, var)
            y = torch.ones_like(mean)
            exact = Bernoulli(lambda_).expected_log_prob(y, mean, v)
            xi = lambda_ * (mean.square() + v).sqrt()
            assert (jaakkola(y, y, mean, v, xi, lambda_) <= exact + 1e-9).all()
            assert (jaakkola(y, y, mean, v, xi * 1.5 + 0.1, lambda_) <= exact + 1e-9).all()
            if var == 1e-12:  # without variance the bound is tight at xi = |t|
                torch.testing.assert_close(jaakkola(y, y, mean, v, xi, lambda_), exact, rtol=1e-6, atol=1e-8)


def test_h_is_right_and_smooth() -> None:
    xi = torch.tensor([0.0, 1e-8, 1e-3, 0.0199, 0.0201, 1.0, -1.0, 30.0, 1e6, -1e6], dtype=torch.float64)
    series = [1 / 8, 1 / 8, 1 / 8 - 1e-6 / 96]
    torch.testing.assert_close(h(xi[:3]), torch.tensor(series, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(h(xi[3:]), torch.tanh(xi[3:] / 2) / (4 * xi[3:]), rtol=1e-11, atol=0)
    assert h(xi[-2]).item() == pytest.approx(1 / 4e6)
    assert torch.equal(h(xi[5]), h(xi[6]))
    # the first and second differences pass through 0 and through the switch of formulas without a jump
    step = 1e-3
    grid = torch.arange(-0.05, 0.05, step, dtype=torch.float64)
    second = h(grid).diff().diff() / step**2
    assert (second + 1 / 48).abs().max() < 1e-4
    small = torch.tensor([0.0, 0.5, 1e6], dtype=torch.float32, requires_grad=True)
    assert torch.isfinite(torch.autograd.grad(h(small).sum(), small)[0]).all()


def test_extreme_settings_stay_finite() -> None:
    X, Y = make_data(0, N=12, labelled=9)
    model = make_model(X, 3, [2], Experts(50, lambda_=1e5), noise=1e-4)
    posterior = fit_analytic(model, X[:9], Y, X[9:], sweeps=5, tolerance=0, experts="explicit", progress=False)
    assert torch.isfinite(torch.tensor(posterior.history["elbo"].to_numpy())).all()
    assert all(torch.isfinite(parameter).all() for parameter in posterior.guide.parameters())
    assert torch.isfinite(posterior.predict(X)).all()
