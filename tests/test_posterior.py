"""Prediction and draws from a posterior."""

from functools import partialmethod

import pytest
import torch
from pyro import poutine
from tiny import GUIDE_CASES, LIKELIHOOD_CASES, F, I, K, N, agree, mean_and_error, shake, tiny_data, tiny_model

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import Bernoulli, Experts, Layer
from esmc_pyro.objectives import propagate
from esmc_pyro.posterior import Posterior


def make(case: str = "diagonal", depth: int = 2, likelihood: object = None) -> tuple[Posterior, torch.Tensor]:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, likelihood)
    return Posterior(model, shake(GUIDE_CASES[case][1](model, X, Y))), X


@pytest.mark.parametrize("case", GUIDE_CASES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_plug_in_prediction_is_the_papers(case: str, depth: int) -> None:
    posterior, X = make(case, depth)
    h = X
    layers = posterior.predict_layers(X)
    for layer, u, out in zip(posterior.model.layers, posterior.guide.u_means(), layers, strict=True):
        k = layer.kernel(h, layer.pseudo_instances)
        h = (k @ torch.linalg.solve(layer.covariance() + layer.alpha**2 * torch.eye(layer.pseudo_count), u.mT)).detach()
        assert torch.allclose(out, h, atol=1e-3)
    assert torch.equal(posterior.predict(X), layers[-1])
    assert not posterior.predict(X).requires_grad


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, X = make()
    whole = posterior.predict_layers(X)
    monkeypatch.setattr(Layer, "predict_whitened", partialmethod(Layer.predict_whitened, block=4))
    for a, b in zip(whole, posterior.predict_layers(X), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOOD_CASES)
def test_draws_have_their_shapes_and_ranges(likelihood: str) -> None:
    posterior, X = make("paper", 2, LIKELIHOOD_CASES[likelihood][1]())
    draws = posterior.sample(X, 3, ["z", "suitability", "y", "c", "z_hat"], block=4)
    assert {site: value.shape for site, value in draws.items()} == {
        "z": (3, N + I, K), "suitability": (3, N + I, K), "y": (3, N + I, K), "c": (3, N + I, 2), "z_hat": (3, N + I, K)
    }  # fmt: skip
    assert torch.allclose(draws["suitability"], posterior.model.likelihood.suitability(draws["z"]))
    assert (draws["suitability"] >= 0).all()
    assert (draws["suitability"] <= 1).all()


def test_fractional_y_in_draws_from_experts() -> None:
    posterior, X = make(likelihood=Experts(4))
    y = posterior.sample(X, 20, ["y"])["y"]
    assert set((4 * y).unique().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    assert ((y > 0) & (y < 1)).any()


def test_draws_of_z_have_the_moments_of_q() -> None:
    """One layer: z ~ N(A v_loc', A V A' + beta^2 + gamma^2) row by row, and rows share their u within a draw."""
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1, Bernoulli())
    guide = shake(DoublyStochasticGuide(model, X, Y, covariance="full", scale=0.7))
    x = X[:2].repeat(2, 1)[:3]  # the first row twice
    z = Posterior(model, guide).sample(x, 1500, ["z"], seed=1)["z"]
    with torch.no_grad():
        mean, var = propagate(model, guide, x)
        shared = guide.output_variance(model.layers[0], model.layers[0].features(x))
    assert agree((mean, torch.zeros(())), mean_and_error(z))
    centred = z - mean
    assert agree((var, torch.zeros(())), mean_and_error(centred**2))
    assert agree((shared[0], torch.zeros(())), mean_and_error(centred[:, 0] * centred[:, 2]))


def test_draws_of_f_and_u_come_from_the_guide() -> None:
    posterior, X = make()
    with torch.no_grad():
        for name, parameter in posterior.guide.named_parameters():
            parameter.fill_(2.0 if name.endswith("loc") else -20.0)  # no spread: u is its mean
    draws = posterior.sample(X, 2, ["c_hat"])["c_hat"]
    layer = posterior.model.layers[0]
    centre = layer.predict(X, posterior.guide.u_means()[0]).detach()
    assert ((draws - centre).abs() < 6 * layer.beta.item()).all()


def test_draws_made_in_turns_or_at_once_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, X = make()
    monkeypatch.setattr("esmc_pyro.posterior.LIMIT", 2 * 5 * (N + I))  # two or three at a time
    z = posterior.sample(X, 7, ["z"])["z"]
    assert z.shape == (7, N + I, K)
    assert len({draw.sum().item() for draw in z}) == 7


def test_seeds() -> None:
    posterior, X = make()
    before = torch.get_rng_state()
    a, b, c = (posterior.sample(X, 2, ["z"], seed=seed)["z"] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(posterior.sample(X, 1)["z"], posterior.sample(X, 1)["z"])


def test_sampling_leaves_no_gradients_and_no_parameters_changed() -> None:
    posterior, X = make()
    kept = {name: value.clone() for name, value in posterior.guide.state_dict().items()}
    assert not any(value.requires_grad for value in posterior.sample(X, 2).values())
    assert all(torch.equal(kept[name], value) for name, value in posterior.guide.state_dict().items())


def test_arrays_of_other_kinds_are_taken() -> None:
    posterior, X = make()
    assert torch.allclose(posterior.predict(X.double().numpy()), posterior.predict(X))
    assert torch.allclose(posterior.predict(X.tolist()), posterior.predict(X))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p, X: p.predict(X[:, :2]), f"X must have the {F} columns of the training data; got 2"),
        (lambda p, X: p.predict(X * torch.nan), "X must be finite everywhere; got nan in row 0, column 0"),
        (lambda p, X: p.sample(X, 0), "draws must be a whole number of at least 1; got 0"),
        (lambda p, X: p.sample(X, 1, ["w"]), r"sites must be one of \['c', 'c_hat', .*\]; got 'w'"),
    ],
)
def test_bad_requests_are_said(call: object, sentence: str) -> None:
    posterior, X = make()
    with pytest.raises(ValueError, match=sentence):
        call(posterior, X)


def test_the_model_can_be_traced_under_a_posterior_draw() -> None:
    posterior, X = make("paper")
    functions = poutine.trace(posterior.guide.sample_globals).get_trace()
    trace = poutine.trace(poutine.replay(posterior.model, trace=functions)).get_trace(X)
    assert torch.equal(trace.nodes["u_c"]["value"], functions.nodes["u_c"]["value"])
