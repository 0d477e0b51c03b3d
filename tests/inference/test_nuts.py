"""NUTS and HMC on the model: the energy is the model's, draws are the posterior's, and what is kept of them."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroSample
from tiny import LIKELIHOOD_CASES, F, I, K, M, N, tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.guides import DrawsGuide
from esmc_pyro.inference import fit_nuts, mcmc
from esmc_pyro.inference.mcmc import Noises
from esmc_pyro.model_file.errors import ModelFileError
from esmc_pyro.model_file.guides import encode
from esmc_pyro.models import ESMC, Bernoulli, Gaussian, Marginal
from esmc_pyro.models.marginal import local_mean_and_scale
from esmc_pyro.posterior import Posterior

FEW: dict[str, Any] = {"chains": 2, "warmup": 4, "draws": 3, "progress": False}


def fit(model: ESMC, X: Tensor, Y: Tensor, **options: Any) -> Posterior:
    """The tiny problem's labelled rows and its unlabelled ones."""
    return fit_nuts(model, X[: len(Y)], Y, X[len(Y) :] if len(X) > len(Y) else None, **(FEW | options))


def log_density(model: ESMC, sites: dict[str, Tensor], X: Tensor, Y: Tensor) -> Tensor:
    """``ln p`` of ``Marginal`` at these sites, and of ``de / dc`` for every layer."""
    data = {name: value for name, value in sites.items() if name[:2] != "u_"}
    with torch.no_grad():
        result = poutine.trace(poutine.condition(Marginal(model), data=data)).get_trace(X, Y).log_prob_sum()
        h = X
        with model._pyro_context, poutine.condition(data=data):
            for layer in model.layers:
                loc, scale = local_mean_and_scale(layer, h, sites[f"v_{layer.site}"])
                result = result + scale.expand_as(loc).log().sum()
                h = sites[layer.site]
    return result


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("case", LIKELIHOOD_CASES)
def test_the_energy_is_the_density_of_marginal_in_other_coordinates(case: str, depth: int) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, LIKELIHOOD_CASES[case][1](), mean="linear", fitc=depth == 2)
    noises = Noises(model, X, Y)
    q = noises.start(3, {})
    energy = noises.energy(q)
    assert energy.shape == (3,)
    for one, expected in zip(q, energy, strict=True):
        density = log_density(model, noises.sites(one), X, Y) + 0.5 * noises.size * math.log(2 * math.pi)
        assert torch.allclose(-expected, density)


@pytest.mark.usefixtures("double")
def test_the_energy_with_priors_counts_them_and_their_change_of_scale() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2)
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.5, 0.3))
    model.layers[1].gamma = PyroSample(dist.Gamma(2.0, 3.0))
    noises = Noises(model, X, Y)
    q = noises.start(2, {})
    free = noises.size - 2
    for one, energy in zip(q, noises.energy(q), strict=True):
        sites = noises.sites(one)
        volume = sum(sites[name].log() for name in noises.priors)  # of exp
        density = log_density(model, sites, X, Y) + 0.5 * free * math.log(2 * math.pi) + volume
        assert torch.allclose(-energy, density)


def exact_gaussian(X: Tensor, Y: Tensor, model: ESMC) -> tuple[Tensor, Tensor]:
    """Posterior mean (n x K) and covariance (n x n, the same for every label) of z; one layer, all labels known."""
    layer, noise = model.layers[0], model.likelihood.noise
    with torch.no_grad():
        a = layer.features(X)
        prior = a @ a.mT + (layer.beta**2 + layer.gamma**2) * torch.eye(len(X))
        gain = prior[:, : len(Y)] @ torch.linalg.inv(prior[: len(Y), : len(Y)] + noise**2 * torch.eye(len(Y)))
        return gain @ Y, prior - gain @ prior[: len(Y)]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_moments_of_z_are_the_closed_form_for_one_gaussian_layer(kernel: str) -> None:
    """200 chains of 8 draws: every mean, variance and covariance of z within 4.5 standard errors."""
    X, Y = tiny_data(unknown=False)
    model = tiny_model(X, Y, 1, Gaussian(0.4))
    mean, covariance = exact_gaussian(X, Y, model)
    posterior = fit(model, X, Y, kernel=kernel, chains=200, warmup=40, draws=8, start="prior")
    z = posterior.guide.draws["z"] - mean
    assert z.shape == (200, 8, N + I, K)
    products = torch.einsum("cdnk,cdmk->cdnmk", z, z)
    for values, truth in ((z, 0.0), (products, covariance.unsqueeze(-1))):
        chains = values.mean(1)  # independent of each other
        away = (chains.mean(0) - truth).abs() / (chains.std(0) / math.sqrt(200))
        assert away.max() < 4.5
    assert posterior.history["divergences"].sum() == 0


def test_draws_have_the_sites_of_marginal_and_stats_a_number_a_draw() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 3)
    posterior = fit(model, X, Y)
    shapes = {name: tuple(value.shape) for name, value in posterior.guide.draws.items()}
    widths = {"c1": 3, "c2": 2, "z": K}
    assert shapes == {
        key: shape
        for site, width in widths.items()
        for key, shape in {
            f"v_{site}": (2, 3, width, M), f"u_{site}": (2, 3, width, M), site: (2, 3, N + I, width)
        }.items()
    }  # fmt: skip
    for layer in model.layers:
        u, v = (posterior.guide.draws[f"{kind}_{layer.site}"] for kind in "uv")
        assert torch.allclose(u, v @ layer.factor().mT, atol=1e-5)
    assert {name: tuple(value.shape) for name, value in posterior.guide.stats.items()} == dict.fromkeys(
        mcmc.STATS, (2, 3)
    )
    assert list(posterior.history.columns) == list(mcmc.HISTORY)
    assert posterior.history["draws"].tolist() == [3, 3]


def test_same_seed_same_draws_and_the_callers_random_state_and_parameters_are_left() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, learn=["kernel", "gamma"])
    learned = {name: p.requires_grad for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    a, b, c = (fit(model, X, Y, seed=seed).guide.draws["z"] for seed in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == learned


def test_the_posterior_of_a_one_layer_gaussian_predicts_new_rows_as_the_closed_form_does() -> None:
    torch.manual_seed(1)
    X, Y = tiny_data(unknown=False)
    model = tiny_model(X, Y, 1, Gaussian(0.4))
    posterior = fit(model, X[:N], Y, chains=100, warmup=40, draws=10, start="prior")
    mean, covariance = exact_gaussian(X, Y, model)
    new = X[N:]
    assert torch.allclose(posterior.predict(new), mean[N:], atol=0.15)  # 200 draws: a standard error of about 0.04
    z = posterior.sample(new, 2000, ("z",), seed=0)["z"]
    error = covariance.diagonal()[N:].sqrt().unsqueeze(-1) / math.sqrt(700)  # draws of a chain hang together
    assert ((z.mean(0) - mean[N:]).abs() < 4.5 * error).all()
    assert torch.allclose(z.var(0).mean(1), covariance.diagonal()[N:], rtol=0.25)


def test_a_draw_of_the_guide_is_one_draw_of_a_chain_in_every_site() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2)
    guide = fit(model, X, Y).guide
    rows = torch.tensor([4, 0])
    nodes = poutine.trace(guide).get_trace(X, Y, rows).nodes
    index = nodes["draw"]["value"]
    for site in ("v_c", "v_z"):
        assert torch.equal(nodes[site]["value"], guide.flat(site)[index])
    for site in ("c", "z"):
        assert torch.equal(nodes[site]["value"], guide.flat(site)[index][rows])
    replayed = poutine.trace(poutine.replay(guide.joint, trace=poutine.trace(guide).get_trace(X, Y))).get_trace(X, Y)
    assert torch.isfinite(replayed.log_prob_sum())
    us = guide.u_means()
    assert torch.allclose(us[0], guide.draws["u_c"].mean((0, 1)))


@pytest.mark.slow
def test_the_posterior_of_a_length_scale_with_a_prior_is_that_of_quadrature() -> None:
    """The length-scale of a one-layer Gaussian model, against quadrature over a grid of its exact evidence."""
    torch.manual_seed(0)
    X = torch.linspace(-2, 2, 25, dtype=torch.float64).unsqueeze(-1)
    Y = (torch.sin(3 * X) > 0).double()
    model = ESMC.from_data(X, Y, [], likelihood=Gaussian(0.3), pseudo=6, lengthscale=1.0)
    prior = dist.LogNormal(torch.tensor(0.0, dtype=torch.float64), 0.7)
    name, layer = "esmc.layers.0.kernel.lengthscale", model.layers[0]
    log_scales = torch.linspace(-2.5, 2.5, 201, dtype=torch.float64)
    log_density = []
    for scale in log_scales.exp():
        layer.kernel.lengthscale = scale
        with torch.no_grad():
            a = layer.features(X)
            total = a @ a.mT + (layer.beta**2 + layer.gamma**2 + 0.3**2) * torch.eye(25)
            evidence = dist.MultivariateNormal(torch.zeros(25).double(), total).log_prob(Y.mT).sum()
        log_density.append(evidence + prior.log_prob(scale) + scale.log())
    weights = torch.softmax(torch.stack(log_density), 0)
    mean = (weights * log_scales).sum()

    layer.kernel.lengthscale = PyroSample(prior)
    posterior = fit_nuts(model, X, Y, chains=4, warmup=100, draws=100, start="prior", progress=False)
    drawn = posterior.guide.draws[name].log()
    assert drawn.shape == (4, 100)
    sd = ((weights * log_scales**2).sum() - mean**2).sqrt()
    assert (drawn.mean() - mean).abs() < 4.5 * sd / math.sqrt(80)  # some 80 of the 400 draws are independent
    assert 0.7 < drawn.std() / sd < 1.4


def test_priors_on_parameters_are_drawn_along_and_used_in_prediction() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.5, 0.3))
    with pytest.raises(ValueError, match="start must be 'prior' for a model with priors on parameters"):
        fit(model, X, Y)
    posterior = fit(model, X, Y, start="prior", warmup=10, draws=2)
    name, guide = "esmc.layers.0.kernel.lengthscale", posterior.guide
    assert guide.draws[name].shape == (2, 2)
    assert guide.drawn_parameters == [name]
    z = posterior.sample(X, 5, seed=0)["z"]
    assert z.shape == (5, N + I, K)
    # by hand: every draw's functions with its own length-scale
    by_hand = []
    for scale, u in zip(guide.flat(name), guide.flat("u_z"), strict=True):
        other = tiny_model(X, Y, 1)
        other.layers[0].kernel.lengthscale = scale
        by_hand.append(other.plug_in(X, [u])[-1])
    assert torch.allclose(posterior.predict(X), torch.stack(by_hand).mean(0), atol=1e-4)


def test_an_interrupt_keeps_the_draws_made_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    whole = fit(model, X, Y).guide.draws["z"]
    real = mcmc.run

    def stop_after(steps: int) -> None:
        def run(*given: Any) -> Any:
            for count, draw in enumerate(real(*given)):
                if count == steps:
                    raise KeyboardInterrupt
                yield draw

        monkeypatch.setattr(mcmc, "run", run)

    stop_after(6)
    posterior = fit(model, X, Y)
    assert posterior.interrupted
    assert torch.equal(posterior.guide.draws["z"], whole[:, :2])
    stop_after(3)  # in the warm-up there is nothing to keep
    with pytest.raises(KeyboardInterrupt):
        fit(model, X, Y)


def test_divergences_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data()
    real = mcmc.NUTS.step

    def step(sampler: mcmc.Sampler, q: Tensor) -> mcmc.Draw:
        return real(sampler, q)._replace(diverging=torch.tensor([True, False]))

    monkeypatch.setattr(mcmc.NUTS, "step", step)
    with pytest.warns(RuntimeWarning, match="3 of 6 draws diverged, .*; try a target_accept above 0.8"):
        posterior = fit(tiny_model(X, Y, 1), X, Y)
    assert posterior.history["divergences"].tolist() == [3, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kernel": "gibbs"}, r"kernel must be one of \['hmc', 'nuts'\]; got 'gibbs'"),
        ({"start": "zero"}, r"start must be one of \['labels', 'prior'\]; got 'zero'"),
        ({"chains": 0}, "chains must be a whole number of at least 1; got 0"),
        ({"draws": 1.5}, "draws must be a whole number of at least 1; got 1.5"),
        ({"warmup": 0}, "warmup must be a whole number of at least 1; got 0"),
        ({"trajectory": 0}, "trajectory must be a number above 0; got 0"),
        ({"target_accept": 0}, "target_accept must be a number above 0; got 0"),
        ({"target_accept": 1.0}, "target_accept must be below 1; got 1.0"),
    ],
)
def test_bad_arguments_get_one_sentence(options: dict[str, Any], sentence: str) -> None:
    X, Y = tiny_data(0)
    with pytest.raises(ValueError, match=sentence):
        fit(tiny_model(X, Y), X, Y, **options)


def test_data_that_do_not_fit_get_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data(0)
    model = tiny_model(X, Y, 1, Bernoulli())
    with pytest.raises(ValueError, match=f"the {F} features and {K} labels of the model; got {F} and 2"):
        fit(model, X, Y[:, :2])
    monkeypatch.setattr(mcmc, "LIMIT", 51)
    with pytest.raises(ValueError, match=f"must be small for NUTS, .* at most 51 .*; got {K * (M + N)} .use fit_svi"):
        fit(model, X, Y)
    with pytest.raises(ValueError, match=r"draws must hold the sites \['u_z', 'v_z', 'z'\]; got none of \['v_z'\]"):
        DrawsGuide(model, {"u_z": torch.zeros(1, 1, K, M), "z": torch.zeros(1, 1, N, K)})


def test_a_model_file_refuses_chains_in_one_sentence() -> None:
    X, Y = tiny_data()
    with pytest.raises(ModelFileError, match=r"a model file can hold the guides \[.*\]; got DrawsGuide"):
        encode(fit(tiny_model(X, Y, 1), X, Y).guide, {})
