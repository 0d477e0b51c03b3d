"""The collapsed objective: the mean of Pyro's ELBO, less variance; exact where there is an exact answer."""

from typing import Any

import pytest
import torch
from pyro.infer import Trace_ELBO
from tiny import agree, elbo, mean_and_error, shake, tiny_data, tiny_model
from torch import Tensor
from torch.distributions import MultivariateNormal

from esmc_pyro.guides import DoublyStochasticGuide, PaperGuide
from esmc_pyro.guides.whitened import COVARIANCES
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC, Bernoulli, Experts, Gaussian, Layer, make_kernel, observed
from esmc_pyro.objectives import CollapsedELBO, propagate

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("fitc", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_same_mean_as_the_trace_elbo_and_less_variance(covariance: str, depth: int, fitc: bool) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, Experts(3), fitc=fitc, mean="constant")
    guide = shake(DoublyStochasticGuide(model, X, Y, covariance=covariance, scale=0.5))
    y, known = observed(Y, torch.arange(len(X)))
    with torch.no_grad():
        z_mean, z_var = propagate(model, guide, X.expand(2000, *X.shape))  # 2000 draws at once
        likelihood = (model.likelihood.expected_log_prob(y, z_mean, z_var) * known).sum((-1, -2))
        draws = likelihood - sum(guide.kl(layer) for layer in model.layers)
        one = -CollapsedELBO()(model, guide)(X, Y)
    mine, pyros = mean_and_error(draws), elbo(model, guide, X, Y)
    assert agree(mine, pyros)
    assert mine[1] < 0.7 * pyros[1]
    assert (one - mine[0]).abs() < 5 * draws.std() + 1e-9
    if depth == 1:
        assert draws.std() < 1e-9  # nothing is drawn at all


def test_same_mean_with_linear_means_and_sums_of_kernels() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, Experts(3), mean="linear", kernel=["rbf+matern32", "matern12"], ard=True)
    with torch.no_grad():
        for layer in model.layers:
            layer.mean.weight += 0.3 * torch.randn_like(layer.mean.weight)
    guide = shake(DoublyStochasticGuide(model, X, Y, scale=0.5))
    with torch.no_grad():
        draws = torch.stack([-CollapsedELBO()(model, guide)(X, Y) for _ in range(500)])
    assert agree(mean_and_error(draws), elbo(model, guide, X, Y))


def test_minibatches_average_to_the_whole() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    loss_of = CollapsedELBO()(model, shake(DoublyStochasticGuide(model, X, Y)))
    batches = torch.randperm(len(X)).split(4)
    mean = sum(len(rows) / len(X) * loss_of(X, Y, rows) for rows in batches)
    assert torch.allclose(mean, loss_of(X, Y))


def test_terms_add_up_and_the_kl_can_be_weighted() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    guide = shake(DoublyStochasticGuide(model, X, Y))
    terms = CollapsedELBO()(model, guide).terms(X, Y, torch.arange(len(X)))
    assert set(terms) == {"likelihood", "kl_z"}
    assert torch.allclose(CollapsedELBO(0.5)(model, guide)(X, Y), 0.5 * terms["kl_z"] - terms["likelihood"])
    with pytest.raises(ValueError, match="kl_weight must be a number of at least 0; got -1"):
        CollapsedELBO(-1)


def test_unlabelled_rows_and_unknown_entries_add_exactly_nothing() -> None:
    X, Y = tiny_data(0, unknown=False)
    model = tiny_model(X, Y, 1)
    guide = DoublyStochasticGuide(model, X, Y)
    loss_of = CollapsedELBO()(model, guide)
    rows = torch.arange(len(X))
    whole = loss_of.terms(X, Y, rows)["likelihood"]
    kept = loss_of.terms(X, Y[:5], rows)["likelihood"]  # the other rows are unlabelled
    unknown = Y.clone()
    unknown[5:] = torch.nan
    assert torch.equal(kept, loss_of.terms(X, unknown, rows)["likelihood"])
    first = loss_of.terms(X[:5], Y[:5], torch.arange(5))["likelihood"]
    assert torch.allclose(kept, first)
    assert kept > whole
    loss_of(X, unknown).backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters())


def test_kept_features_follow_the_kernel() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    guide = shake(DoublyStochasticGuide(model, X, Y))
    loss_of = CollapsedELBO()(model, guide)
    first = loss_of(X, Y)
    assert torch.equal(loss_of(X, Y), first)
    model.layers[0].kernel.lengthscale = torch.tensor(0.5)  # assigned, not learned
    assert not torch.equal(loss_of(X, Y), first)
    assert torch.equal(loss_of(X, Y), CollapsedELBO()(model, guide)(X, Y))


def exact_problem() -> tuple[torch.Tensor, torch.Tensor, ESMC, float]:
    """A one-layer model with a Gaussian likelihood and S = X, and its noise variance in all."""
    X = torch.randn(15, 2)
    Y = (torch.rand(15, 3) < 0.5).double()
    alpha, beta, gamma, noise = 1e-3, 1e-3, 1e-3, 0.3
    kernel = make_kernel("matern32", 2, lengthscale=1.5, variance=1.2)
    layer = Layer("z", kernel, X, 3, plate="labels", alpha=alpha, beta=beta, gamma=gamma)
    return X, Y, ESMC([layer], Gaussian(noise)), beta**2 + gamma**2 + noise**2


@pytest.mark.parametrize("covariance", ["shared", "full"])
def test_the_exact_gaussian_process_posterior_is_recovered(covariance: str) -> None:
    X, Y, model, noise = exact_problem()
    layer = model.layers[0]
    guide = DoublyStochasticGuide(model, X, Y, covariance=covariance, start="zero", scale=1.0)
    loss_of = CollapsedELBO()(model, guide)
    parameters = list(guide.parameters())
    optimizer = torch.optim.LBFGS(parameters, lr=1, max_iter=400, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(X, Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        K = layer.covariance()
        total = K + noise * torch.eye(15)
        exact_mean = K @ torch.linalg.solve(total, Y)
        exact_var = (K - K @ torch.linalg.solve(total, K)).diagonal()
        mean, var = propagate(model, guide, X)
        function_var = var - layer.beta**2 - layer.gamma**2
        assert torch.allclose(mean, exact_mean, atol=1e-4)
        assert torch.allclose(function_var, exact_var.unsqueeze(1).expand_as(function_var), atol=1e-4)
        evidence = MultivariateNormal(torch.zeros(15), total).log_prob(Y.mT).sum()
        bound = -loss_of(X, Y)
        assert bound < evidence
        assert bound > evidence - 0.01


def test_away_from_the_data_fitc_gives_the_exact_predictive_variance() -> None:
    X, Y, model, _ = exact_problem()
    layer = model.layers[0]
    layer.fitc = True
    guide = DoublyStochasticGuide(model, X, Y, covariance="shared", start="zero", scale=1.0)
    with torch.no_grad():
        # the closed-form optimum of a Gaussian likelihood: precision I + A'A / s^2
        a = layer.features(X)
        precision = torch.eye(15) + a.mT @ a / 0.09
        guide.z_v_loc.copy_(torch.linalg.solve(precision, a.mT @ Y / 0.09).mT)
        guide.z_v_tril = torch.linalg.cholesky(torch.linalg.inv(precision))
        x = torch.randn(6, 2) * 2
        mean, var = propagate(model, guide, x)
        K, k = layer.covariance(), layer.kernel(x, X)
        total = K + 0.09 * torch.eye(15)
        assert torch.allclose(mean, k @ torch.linalg.solve(total, Y), atol=1e-4)
        exact = 1.2 - (k * torch.linalg.solve(total, k.mT).mT).sum(1)
        left = var[:, 0] - layer.beta**2 - layer.gamma**2
        assert torch.allclose(left, exact, atol=1e-4)


def test_another_guide_is_refused() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    with pytest.raises(
        ValueError, match=r"the objective 'collapsed' needs the guide 'doubly_stochastic'.*; got PaperGuide"
    ):
        CollapsedELBO()(model, PaperGuide(model, X, Y))


def test_its_gradient_is_that_of_the_trace_elbo() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, learn=["kernel", "alpha"])
    guide = shake(DoublyStochasticGuide(model, X, Y))
    parameters = [p for p in (*guide.parameters(), *model.parameters()) if p.requires_grad]
    estimates = []
    for loss_of in (CollapsedELBO()(model, guide), Trace_ELBO(100, 2, vectorize_particles=True)(model, guide)):
        draws = [torch.autograd.grad(loss_of(X, Y, None), parameters) for _ in range(40)]
        estimates.append(mean_and_error(torch.stack([torch.cat([g.flatten() for g in d]) for d in draws])))
    (a, da), (b, db) = estimates
    deviation = (a - b) / (da**2 + db**2).sqrt().clamp(min=1e-9)
    assert deviation.abs().max() < 5
    assert deviation.square().mean() < 1.5


class _OwnLocals(DoublyStochasticGuide):
    """Draws ``c`` and ``z`` in a way of its own, which no objective but the trace asks for."""

    def sample_locals(self, *given: Any) -> Tensor:
        return super().sample_locals(*given)


@pytest.mark.parametrize("objective", ["collapsed", "map"])
def test_a_guide_with_locals_of_its_own_is_refused(objective: str) -> None:
    X, Y = tiny_data()
    X = X[: len(Y)]
    model = tiny_model(X, Y, likelihood=Bernoulli())
    with pytest.raises(ValueError, match="got _OwnLocals with a sample_locals of its own"):
        fit_svi(model, X, Y, guide=_OwnLocals(model, X, Y), objective=objective, epochs=1, progress=False)
