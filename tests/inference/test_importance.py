"""Importance sampling: exact where the posterior is known, honest about its own error."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from pyro import poutine
from tiny import GUIDE_CASES, LIKELIHOOD_CASES, K, tiny_data, tiny_model

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference import fit_nuts, fit_svi, importance, importance_sample, log_weights
from esmc_pyro.models import Bernoulli, Gaussian
from esmc_pyro.posterior import Posterior


@pytest.mark.parametrize("case", GUIDE_CASES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_log_weights_are_those_of_one_draw_at_a_time(case: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, LIKELIHOOD_CASES["experts"][1]())
    guide = GUIDE_CASES[case][1](model, X, Y)
    traces = []

    def keep(trace: poutine.Trace, count: int) -> torch.Tensor:
        traces.append(trace)
        return importance_log_prob(trace, count)

    importance_log_prob = importance._log_prob
    monkeypatch.setattr(importance, "_log_prob", keep)
    weights = log_weights(Posterior(model, guide), X[: len(Y)], Y, 3, X_unlabeled=X[len(Y) :])
    drawn = {
        name: node["value"]
        for name, node in traces[1].nodes.items()
        if node["type"] == "sample" and node["value"].is_floating_point()
    }
    for i in range(3):
        one = {name: value[i] if name == "experts" else value[i, 0] for name, value in drawn.items()}
        p, q = (poutine.trace(poutine.condition(f, data=one)).get_trace(X, Y) for f in (model, guide))
        assert weights[i].item() == pytest.approx((p.log_prob_sum() - q.log_prob_sum()).item(), rel=1e-3)


@cache
def exact_gaussian() -> tuple[Posterior, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """One layer and a Gaussian likelihood: the posterior mean of z and the evidence in closed form.

    The guide's q(u) is the exact p(u | y), so that only the noise of z given u is left to the weights.
    """
    torch.set_default_dtype(torch.float64)
    try:
        X, Y = tiny_data(unknown=False)
        model = tiny_model(X, Y, 1, Gaussian(0.4), beta=0.05, gamma=0.1)
        layer = model.layers[0]
        with torch.no_grad():
            a = layer.features(X)
            own = (layer.beta**2 + layer.gamma**2).item()
            N, n = len(Y), len(X)
            prior = a @ a.mT + own * torch.eye(n)
            total = prior[:N, :N] + 0.4**2 * torch.eye(N)
            mean = prior[:, :N] @ torch.linalg.solve(total, Y)
            law = torch.distributions.MultivariateNormal(torch.zeros(N), total)
            evidence = law.log_prob(Y.mT).sum().item()
            precision = torch.eye(layer.pseudo_count) + a[:N].mT @ a[:N] / (own + 0.4**2)
            guide = DoublyStochasticGuide(model, X, Y, covariance="full")
            guide.z_v_loc.copy_(torch.linalg.solve(precision, a[:N].mT @ Y / (own + 0.4**2)).mT)
            guide.z_v_tril = torch.linalg.cholesky(torch.linalg.inv(precision)).expand(4, -1, -1).clone()
        return Posterior(model, guide), X, Y, mean, evidence
    finally:
        torch.set_default_dtype(torch.float32)


def test_means_and_evidence_are_exact_within_their_errors() -> None:
    """20 000 draws; z within 4 standard errors of the closed form everywhere, the evidence within 0.05."""
    posterior, X, Y, mean, evidence = exact_gaussian()
    drawn = importance_sample(
        posterior, X[: len(Y)], Y, 20_000, X_unlabeled=X[len(Y) :], sites=("z", "u_z"), progress=False
    )
    estimate, error = drawn.mean("z")
    assert drawn.effective_size > 500
    assert (estimate - mean).abs().max() > 1e-6  # an estimate, no copy
    assert ((estimate - mean).abs() < 4 * error).all()
    assert error.max() < 0.05
    assert drawn.log_evidence() == pytest.approx(evidence, abs=0.05)
    assert drawn.sites["u_z"].shape == (20_000, 4, posterior.model.layers[0].pseudo_count)


def test_equal_weights_are_worth_every_draw_and_one_heavy_weight_is_worth_one() -> None:
    draws = importance.WeightedDraws(torch.full((50,), -3.0), {"z": torch.randn(50, 2, 3)})
    assert draws.effective_size == pytest.approx(50)
    assert draws.log_evidence() == pytest.approx(-3.0)
    assert torch.allclose(draws.mean("z")[0], draws.sites["z"].mean(0).double(), atol=1e-6)
    heavy = torch.zeros(50)
    heavy[7] = 100.0
    assert importance.WeightedDraws(heavy, {}).effective_size == pytest.approx(1)
    assert importance.WeightedDraws(heavy, {}).log_evidence() == pytest.approx(100 - math.log(50))


def test_same_seed_same_weights_and_an_interrupt_keeps_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data(0)
    model = tiny_model(X, Y, 2, Bernoulli())
    posterior = Posterior(model, DoublyStochasticGuide(model, X, Y))
    monkeypatch.setattr(importance, "TOGETHER", 4)
    a, b, c = (log_weights(posterior, X, Y, 10, seed=seed) for seed in (0, 0, 1))
    assert a.shape == (10,)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    calls, draw = [], importance._draw

    def stop(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(*given)

    monkeypatch.setattr(importance, "_draw", stop)
    assert torch.equal(log_weights(posterior, X, Y, 10, seed=0), a[:4])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 0}, "draws must be a whole number of at least 1; got 0"),
        ({"sites": ("f_z",)}, r"sites must be one of \['c', 'u_c', 'u_z', 'z'\]; got 'f_z'"),
    ],
)
def test_bad_arguments_get_one_sentence(options: dict, sentence: str) -> None:
    X, Y = tiny_data(0)
    model = tiny_model(X, Y, 2)
    with pytest.raises(ValueError, match=sentence):
        importance_sample(Posterior(model, DoublyStochasticGuide(model, X, Y)), X, Y, **options)


@pytest.mark.filterwarnings("ignore:.*diverged:RuntimeWarning")
def test_chains_are_not_weighed() -> None:
    X, Y = tiny_data(0)
    posterior = fit_nuts(tiny_model(X, Y, 1), X, Y, chains=1, warmup=3, draws=3, progress=False)
    with pytest.raises(ValueError, match="posterior must be variational to be weighed; got chains"):
        importance_sample(posterior, X, Y, 10, progress=False)


def test_a_point_is_not_weighed() -> None:
    X, Y = tiny_data(0)
    posterior = fit_svi(tiny_model(X, Y), X, Y, guide="auto_delta", epochs=1, progress=False)
    with pytest.raises(ValueError, match="posterior must have a density to be weighed; got a guide that is a single"):
        importance_sample(posterior, X, Y, 10, progress=False)


@pytest.mark.usefixtures("double")
def test_laplaces_approximation_is_weighed_after_its_fit() -> None:
    X, Y = tiny_data(0)
    guide = "auto_laplace_approximation"
    posterior = fit_svi(tiny_model(X, Y, 1), X, Y, guide=guide, epochs=5, progress=False)
    assert torch.isfinite(importance_sample(posterior, X, Y, 50, progress=False).log_weights).all()


def test_an_autoguide_gives_u_too() -> None:
    X, Y = tiny_data()
    X = X[: len(Y)]
    model = tiny_model(X, Y, 1, Bernoulli())
    posterior = fit_svi(model, X, Y, guide="auto_normal", epochs=1, batch_size=len(X), progress=False)
    drawn = importance_sample(posterior, X, Y, 6, sites=("u_z", "z"), progress=False).sites
    assert drawn["u_z"].shape == (6, K, model.layers[0].pseudo_count)
    assert drawn["u_z"].std(0).min() > 0
