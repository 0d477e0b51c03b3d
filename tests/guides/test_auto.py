"""Pyro's autoguides on the marginal model: how they are chosen, what they refuse, what they draw."""

from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import LogNormal
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiscreteParallel,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoNormal,
    AutoNormalMessenger,
)
from pyro.infer.autoguide.initialization import init_to_value
from pyro.nn import PyroSample
from pyro.poutine.util import prune_subsample_sites
from tiny import I, K, N, tiny_data, tiny_model

from esmc_pyro.guides import GUIDES, MarginalGuide
from esmc_pyro.guides.auto import AUTOGUIDES
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import Experts, NotPositiveDefiniteError

autoguides = pytest.mark.parametrize("name", AUTOGUIDES)


@pytest.mark.parametrize("depth", [1, 2, 3])
@autoguides
def test_guide_and_marginal_have_the_same_latent_sites(name: str, depth: int) -> None:
    X, Y = tiny_data()
    guide = GUIDES[name](tiny_model(X, Y, depth, Experts(3)), X, Y)
    with pyro.plate("particles", 2, dim=-3):
        q = poutine.trace(guide).get_trace(X, Y)
        p = prune_subsample_sites(poutine.trace(poutine.replay(guide.joint, trace=q)).get_trace(X, Y))
    sites = {name for layer in guide.model.layers for name in (f"v_{layer.site}", layer.site)}
    assert set(p.stochastic_nodes) == sites
    assert sites <= set(q.stochastic_nodes)
    for layer in guide.model.layers:
        assert q.nodes[f"v_{layer.site}"]["value"].shape == (2, 1, layer.outputs, layer.pseudo_count)
        assert q.nodes[layer.site]["value"].shape == (2, 1, len(X), layer.outputs)
    assert torch.isfinite(p.log_prob_sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@autoguides
def test_local_draws_are_of_the_training_rows_and_global_ones_of_every_function(name: str, dtype: torch.dtype) -> None:
    X, Y = (part.to(dtype) for part in tiny_data())
    model = tiny_model(X, Y)
    posterior = fit_svi(model, X[:N], Y, X[N:], guide=name, epochs=1, progress=False)
    with torch.no_grad(), pyro.plate("draws", 5, dim=-3):
        local = poutine.trace(posterior.guide).get_trace(X, Y).nodes
        functions = poutine.trace(posterior.guide.sample_globals).get_trace().nodes
    values = {site: node["value"] for site, node in functions.items() if "value" in node}
    assert local["c"]["value"].shape == (5, 1, N + I, 2)
    assert local["z"]["value"].shape == (5, 1, N + I, K)
    for layer in model.layers:
        for letter in "vuf":
            assert values[f"{letter}_{layer.site}"].shape == (5, 1, layer.outputs, layer.pseudo_count)
            assert values[f"{letter}_{layer.site}"].dtype == dtype
        u = values[f"v_{layer.site}"] @ layer.factor().mT
        assert torch.allclose(values[f"u_{layer.site}"], u)
        apart = (u[0] - u[1]).abs().max() > 0  # each draw is one of its own
        assert apart == (name != "auto_delta")


def test_a_class_of_pyro_or_a_partial_of_one_will_do() -> None:
    X, Y = tiny_data(unlabelled=0)
    by_name = fit_svi(tiny_model(X, Y), X, Y, guide="auto_normal", epochs=2, progress=False)
    by_class = fit_svi(tiny_model(X, Y), X, Y, guide=AutoNormal, epochs=2, progress=False)
    assert torch.equal(by_name.predict(X), by_class.predict(X))
    low = fit_svi(
        tiny_model(X, Y), X, Y, guide=partial(AutoLowRankMultivariateNormal, rank=2), epochs=1, progress=False
    )
    assert low.guide.auto.cov_factor.shape[1] == 2


@autoguides
def test_minibatches_are_taken_or_refused(name: str) -> None:
    X, Y = tiny_data(unlabelled=0)
    arguments = {"guide": name, "epochs": 1, "batch_size": 3, "progress": False}
    if AUTOGUIDES[name] in (AutoDelta, AutoNormal):
        assert torch.isfinite(fit_svi(tiny_model(X, Y), X, Y, **arguments).predict(X)).all()
    else:
        with pytest.raises(ValueError, match=r"batch_size must be at least 8, the number of rows: .*; got 3"):
            fit_svi(tiny_model(X, Y), X, Y, **arguments)


def test_laplace_is_a_point_until_the_fit_ends() -> None:
    X, Y = tiny_data(unlabelled=0)
    guide = GUIDES["auto_laplace_approximation"](tiny_model(X, Y, 1), X, Y)
    assert guide.is_point
    assert isinstance(guide.auto, AutoLaplaceApproximation)
    guide.finish(X, Y)
    assert not guide.is_point
    with pytest.raises(ValueError, match="model and guide must have something to learn"):
        fit_svi(guide.model, X, Y, guide=guide, epochs=1, progress=False)


def test_laplace_where_there_is_no_peak_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data(unlabelled=0)
    model = tiny_model(X, Y, 2, alpha=0.01, beta=0.01, gamma=0.01)
    guide = GUIDES["auto_laplace_approximation"](model, X, Y, start="zero")
    guide.auto.loc.data = torch.randn_like(guide.auto.loc)
    monkeypatch.setattr(MarginalGuide, "_climb", lambda *_: None)  # left where the fit ended, on a slope
    with pytest.raises(NotPositiveDefiniteError, match="the posterior has no peak where the fit ended"):
        guide.finish(X, Y)


@pytest.mark.parametrize("auto", [AutoGuideList, AutoNormalMessenger])
def test_other_autoguides_are_refused(auto: type) -> None:
    X, Y = tiny_data()
    with pytest.raises(
        ValueError, match=r"auto must make one of \[.*'AutoNormal'\] or another AutoContinuous; got Auto"
    ):
        MarginalGuide(tiny_model(X, Y), X, Y, auto=lambda joint, **_: auto(joint))


@pytest.mark.parametrize("auto", [AutoGuideList, AutoDiscreteParallel])
def test_other_autoguides_are_refused_by_class(auto: type) -> None:
    X, Y = tiny_data(unlabelled=0)
    with pytest.raises(ValueError, match=rf"auto must make one of \[.*AutoContinuous; got {auto.__name__}"):
        fit_svi(tiny_model(X, Y), X, Y, guide=auto, epochs=1, progress=False)


def test_the_users_first_means_are_used() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    v, z = torch.randn(K, model.layers[0].pseudo_count), torch.randn(N + I, K)
    mine = init_to_value(values={"v_z": v, "z": z})
    guide = MarginalGuide(model, X, Y, auto=partial(AutoNormal, init_loc_fn=mine))
    assert torch.equal(guide.auto.locs.v_z, v)


def test_priors_on_parameters_are_refused() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    model.layers[0].kernel.lengthscale = PyroSample(LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    with pytest.raises(ValueError, match=r"the model must have plain parameters for an autoguide.*\(use NUTS\)$"):
        MarginalGuide(model, X, Y)


def test_local_sites_are_not_drawn_apart() -> None:
    X, Y = tiny_data()
    with pytest.raises(TypeError, match="an autoguide draws its local sites together with v"):
        MarginalGuide(tiny_model(X, Y), X, Y).sample_locals(X, Y, Y, Y, [])


def test_an_autoguide_does_not_own_the_model() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    for name in AUTOGUIDES:
        guide = GUIDES[name](model, X, Y)
        assert not {id(p) for p in guide.parameters()} & {id(p) for p in model.parameters()}
        assert guide.rows == len(X)
