"""Posteriors as ArviZ data: groups, dimensions and values."""

import math
import re
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from tiny import I, K, N, mean_and_error, shake, tiny_data, tiny_model

import esmc_pyro
from esmc_pyro import arviz_data
from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, PaperGuide
from esmc_pyro.inference.analytic import fit_analytic
from esmc_pyro.inference.mcmc import fit_nuts
from esmc_pyro.models import EEOE, MPU, Bernoulli, Experts, Gaussian, Probit, observed
from esmc_pyro.pointwise import log_likelihood
from esmc_pyro.posterior import Posterior

DRAWS = 30
GROUPS = {"posterior", "prior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data"}


def with_guide(name: str) -> Posterior:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    return Posterior(model, shake(GUIDES[name](model, X, Y), 0.02))


def analytic() -> Posterior:
    X, Y = tiny_data()
    return fit_analytic(tiny_model(X, Y), X[:N], Y, X[N:], sweeps=2, progress=False)


@cache
def chains() -> Posterior:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    return fit_nuts(model, X[:N], Y, X[N:], chains=2, warmup=5, draws=6, progress=False)


POSTERIORS = {name: partial(with_guide, name) for name in GUIDES} | {"analytic": analytic, "nuts": chains}


@pytest.mark.parametrize("name", sorted(POSTERIORS))
@pytest.mark.filterwarnings("ignore:.*diverged:RuntimeWarning")
def test_every_posterior_has_the_same_groups_and_dimensions(name):
    X, Y = tiny_data()
    posterior = POSTERIORS[name]()
    data = posterior.to_arviz(X, Y, draws=DRAWS, label_names=list("abcd"))
    assert set(data.groups()) == GROUPS | ({"sample_stats"} if name == "nuts" else set())
    count = (2, 6) if name == "nuts" else (1, DRAWS)
    L, M = posterior.model.layers[0].outputs, posterior.model.layers[0].pseudo_count
    for group in (data.posterior, data.prior):
        assert group["z"].dims == ("chain", "draw", "instances", "labels")
        assert group["z"].shape == (*count, N + I, K)
        assert group["suitability"].dims == group["z"].dims
        assert group["c"].dims == ("chain", "draw", "instances", "latent")
        assert group["c"].shape == (*count, N + I, L)
        for letter in "fu":
            assert group[f"{letter}_c"].dims == ("chain", "draw", "latent", "pseudo")
            assert group[f"{letter}_c"].shape == (*count, L, M)
            assert group[f"{letter}_z"].dims == ("chain", "draw", "labels", "pseudo_z")
        assert all(np.isfinite(values).all() for values in group.data_vars.values())
        assert list(group["labels"].values) == list("abcd")
    assert data.posterior_predictive["y"].shape == (*count, N + I, K)
    assert set(np.unique(data.posterior_predictive["y"])) <= {0.0, 1.0}
    assert data.log_likelihood["y_known"].dims == ("chain", "draw", "known")
    assert data.log_likelihood["y_known"].shape == (*count, N * K - 1)
    given = data.observed_data["y"].values
    np.testing.assert_array_equal(given[:N], Y.numpy())
    assert np.isnan(given[N:]).all()
    if name == "nuts":
        assert data.sample_stats["diverging"].shape == count
        np.testing.assert_array_equal(data.posterior["z"], posterior.guide.draws["z"])


def test_unknown_entries_are_not_in_the_log_likelihood_and_the_known_ones_say_where_they_stand():
    X, Y = tiny_data()
    Y[4] = torch.nan
    model = tiny_model(X, torch.nan_to_num(Y))
    posterior = Posterior(model, DoublyStochasticGuide(model, X, Y))
    data = posterior.to_arviz(X, Y, draws=5)
    where = torch.tensor(np.stack([data.constant_data["known_instance"], data.constant_data["known_label"]]))
    assert torch.equal(where.mT, (~torch.isnan(Y)).nonzero())
    rows = posterior.to_arviz(X, Y, draws=5, unit="instances").log_likelihood["y_instance"]
    assert rows["known_instances"].values.tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert np.isfinite(rows).all()
    some = posterior.to_arviz(X, Y, draws=5, rows=[6, 1], functions=False)
    assert some.posterior["instances"].values.tolist() == [6, 1]
    assert some.constant_data["known_instance"].values.tolist() == [6, 6, 6, 6, 1, 1, 1]
    assert set(some.posterior.data_vars) == {"c", "z", "suitability"}


@pytest.mark.parametrize("name", ["auto_normal", "auto_delta"])
def test_all_rows_in_another_order_are_the_same_rows(name):
    X, Y = tiny_data()
    posterior = with_guide(name)
    back = list(range(N + I))[::-1]
    data, turned = (posterior.to_arviz(X, Y, draws=5, rows=rows) for rows in (None, back))
    assert turned.posterior["instances"].values.tolist() == back
    np.testing.assert_array_equal(turned.posterior["z"], data.posterior["z"][:, :, ::-1])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("likelihood", [EEOE(4, 0.8), MPU(0.3, 1.2), Experts(3), Gaussian(0.4), Probit(1.3)])
def test_the_likelihood_of_an_entry_is_the_mean_of_its_likelihood_over_z(likelihood):
    y, mean, var = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.4, -1.1]]), torch.tensor([[0.6, 0.3]])
    z = mean + var.sqrt() * torch.randn(200_000, 1, 2)
    estimate, error = mean_and_error(likelihood.log_prob(y, z).exp())
    assert ((likelihood.marginal_log_prob(y, mean, var).exp() - estimate).abs() < 5 * error).all()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(0.05), Gaussian(0.3), Probit(), Probit(30.0), Bernoulli(10.0), EEOE(10, 4.0), MPU(0.5, 9.0)],
)
def test_the_likelihood_of_an_entry_is_right_where_it_is_steep(likelihood):
    """Twenty points of quadrature are off by up to 22 there (Gaussian(0.05))."""
    y, mean, var = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.4, 0.3, -1.1]), torch.tensor([1.0, 1.0, 0.5])
    grid = torch.linspace(-9, 9, 400_001)[:, None]
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi)
    exact = torch.trapezoid(likelihood.log_prob(y, mean + grid * var.sqrt()).exp() * density, grid, dim=0).log()
    closed = isinstance(likelihood, Gaussian | Probit)
    tolerance = 1e-6 if closed else 0.01
    assert ((likelihood.marginal_log_prob(y, mean, var) - exact).abs() < tolerance).all()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("guide", [PaperGuide, DoublyStochasticGuide])
def test_without_noise_the_log_likelihood_is_that_of_the_draws_of_z(guide):
    X, Y = tiny_data()
    model = tiny_model(X, Y, likelihood=EEOE(3), beta=1e-5, gamma=1e-5)
    posterior = Posterior(model, guide(model, X, Y))
    data = posterior.to_arviz(X, Y, draws=7)
    c, u = (torch.tensor(data.posterior[name].values[0]) for name in ("c", "u_z"))
    y, known = observed(Y, torch.arange(len(X)))
    direct = model.likelihood.log_prob(y, model.layers[-1].predict(c, u))[:, known]
    np.testing.assert_allclose(data.log_likelihood["y_known"][0], direct.numpy(), atol=1e-3)
    total = posterior.to_arviz(X, Y, draws=7, unit="instances").log_likelihood["y_instance"].sum("known_instances")
    if guide is DoublyStochasticGuide:  # whose c is a function of u then, as in the model
        np.testing.assert_allclose(total[0], direct.sum(1).numpy(), atol=1e-2)


@pytest.mark.usefixtures("double")
def test_the_likelihood_of_an_instance_is_the_mean_over_c_of_a_product_over_labels():
    X, Y = tiny_data(unlabelled=0)
    model = tiny_model(X, Y)
    guide = shake(DoublyStochasticGuide(model, X, Y))
    with torch.no_grad():
        us = [u.unsqueeze(0) for u in guide.sample_globals()]
        y, known = observed(Y, torch.arange(N))
        first, last = model.layers
        many = 1500  # as many as inner draws: the difference has 1.4 times the error of either
        c = first.conditional(X, us[0]).sample((many,)).squeeze(1)
        c = c + first.gamma * torch.randn_like(c)
        z = last.conditional(c, us[1]).sample()
        z = z + last.gamma * torch.randn_like(z)
        products = torch.where(known, model.likelihood.log_prob(y, z), torch.zeros(())).sum(-1).exp()
        estimate, error = mean_and_error(products)
        found = log_likelihood(model, X, y, known, us, unit="instances", inner=many)[0].exp()
        alone = log_likelihood(model, X, y, known, us, inner=many)[0].exp()
        entry, entry_error = mean_and_error(model.likelihood.log_prob(y, z).exp())
    assert ((found - estimate).abs() < 6 * error).all()
    assert ((alone - torch.where(known, entry, 1.0)).abs() < 6 * entry_error).all()


@pytest.mark.filterwarnings("ignore:.*diverged:RuntimeWarning")
def test_drawn_kernel_scales_are_among_the_variables_and_enter_the_log_likelihood():
    X, Y = tiny_data(unlabelled=0)
    model = tiny_model(X, Y)
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    posterior = fit_nuts(model, X, Y, chains=1, warmup=5, draws=3, start="prior", progress=False)
    data = posterior.to_arviz(X, Y)
    (name,) = (str(name) for name in data.posterior.data_vars if "." in str(name))
    assert data.posterior[name].shape == data.prior[name].shape == (1, 3)
    plain = tiny_model(X, Y)
    for ours, theirs in zip(plain.layers, model.layers, strict=True):
        ours.pseudo_instances.data = theirs.pseudo_instances.data
        if ours.site == "z":
            ours.kernel.load_state_dict(theirs.kernel.state_dict())
    plain.layers[0].kernel.lengthscale = torch.tensor(data.posterior[name].values[0, 1])
    c, u = (torch.tensor(data.posterior[n].values[0, 1:2]) for n in ("c", "u_z"))
    y, known = observed(Y, torch.arange(N))
    us = [torch.tensor(data.posterior["u_c"].values[0, 1:2]), u]
    direct = log_likelihood(plain, X, y, known, us, c)[0][known]
    np.testing.assert_allclose(data.log_likelihood["y_known"].values[0, 1], direct.numpy(), rtol=1e-3)
    with pytest.raises(ValueError, match=r"must hold draws of these.*DoublyStochasticGuide"):
        Posterior(model, DoublyStochasticGuide(tiny_model(X, Y), X, Y)).to_arviz(X, Y)


def test_the_same_seed_gives_the_same_draws_and_leaves_the_callers_alone():
    X, Y = tiny_data()
    posterior = with_guide("doubly_stochastic")
    state = torch.get_rng_state()
    first, second = (posterior.to_arviz(X, Y, draws=4, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for group in ("posterior", "prior", "log_likelihood", "posterior_predictive"):
        assert first[group].equals(second[group])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "rows"}, "unit must be one of"),
        ({"draws": 0}, "draws must be a whole number of at least 1"),
        ({"inner": 0.5}, "inner must be a whole number"),
        ({"rows": [99]}, "rows must be positions among the 11 rows"),
        ({"rows": []}, "rows must be positions"),
        ({"label_names": ["a", "a", "b", "c"]}, "label_names must be 4 different names; got 4, 3 different"),
        ({"draws": 10**8}, "draws and rows must give at most"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(change, message):
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=message):
        with_guide("doubly_stochastic").to_arviz(X, Y, **change)


def test_other_data_than_that_of_the_fit_are_refused_where_the_guide_keeps_rows():
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=r"X must be the 11 rows of the fit.*got 8 rows"):
        with_guide("paper").to_arviz(X[:N], Y)
    with pytest.raises(ValueError, match="Y must have the 4 labels of the model; got 3"):
        with_guide("paper").to_arviz(X, Y[:, :3])


def test_groups_reach_arviz_1_as_one_mapping(monkeypatch):
    def from_dict(data, *, name=None, sample_dims=None, save_warmup=None, index_origin=None, coords=None, dims=None):
        return data, coords, dims

    monkeypatch.setattr(arviz_data.az, "__version__", "1.2.0")
    monkeypatch.setattr(arviz_data.az, "from_dict", from_dict)
    X, Y = tiny_data()
    data, coords, dims = with_guide("doubly_stochastic").to_arviz(X, Y, draws=3)
    assert set(data) == GROUPS
    assert data["posterior"]["z"].shape == (1, 3, N + I, K)
    assert dims["z"] == ["instances", "labels"]
    assert len(coords["known"]) == N * K - 1


def test_nothing_of_arviz_is_used_that_1_x_removed():
    both = {"from_dict", "loo", "compare", "rhat", "ess", "__version__"}
    folder = Path(esmc_pyro.__file__).parent
    users = [path for path in folder.glob("*.py") if re.search(r"\bimport (arviz|az\b)|import az,", path.read_text())]
    assert {path.name for path in users} >= {"arviz_data.py", "diagnostics.py"}
    for path in users:
        used = set(re.findall(r"\baz\.(\w+)", re.sub(r'""".*?"""|``.*?``|#.*', "", path.read_text(), flags=re.DOTALL)))
        assert used <= both, path.name
