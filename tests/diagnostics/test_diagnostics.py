"""Diagnostics against exactly solvable cases and against ArviZ's own."""

import math

import numpy as np
import pytest
import torch
from solvable import data as solvable_data
from solvable import exact_loo, exact_posterior
from tiny import shake, tiny_data, tiny_model

from esmc_pyro import diagnostics
from esmc_pyro.arviz_data import az, inference_data
from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, DrawsGuide
from esmc_pyro.guides.whitened import WhitenedGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import EEOE, Gaussian
from esmc_pyro.posterior import Posterior


@pytest.mark.usefixtures("double")
def test_loo_is_the_exact_leave_one_out_density_where_that_is_known():
    X, Y = solvable_data()
    posterior = exact_posterior(X, Y)
    data = posterior.to_arviz(X, Y, draws=4000)
    found = diagnostics.loo(data)
    exact = exact_loo(posterior.model, X, Y).numpy()
    weights = 1 / np.exp(data.log_likelihood["y_known"].values[0])
    errors = weights.std(0) / weights.mean(0) / len(weights) ** 0.5  # of -ln mean(1 / p)
    assert found.bad == 0
    assert (np.abs(found.pointwise - exact) < 5 * errors).all()
    # the terms share their draws, so their errors may all point one way
    assert abs(found.elpd - exact.sum()) < errors.sum()
    within = np.log(np.exp(data.log_likelihood["y_known"].values[0]).mean(0))
    assert within.sum() > exact.sum() + errors.sum()  # what the fit has seen, it fits better


def test_sure_labels_in_single_precision_leave_loo_a_number():
    X, Y = tiny_data()
    Y = torch.zeros_like(Y)
    model = tiny_model(X, Y, depth=1, likelihood=EEOE(10), mean="constant")
    guide = DoublyStochasticGuide(model, X, Y, start="zero", scale=0.5)
    with torch.no_grad():
        model.layers[0].mean.offset.fill_(-3.0)  # where p(y = 0 | z) is 1 - e^-30 or so
    data = Posterior(model, guide).to_arviz(X, Y, draws=100)
    assert float(data.log_likelihood["y_known"].max()) > -1e-7
    assert math.isfinite(diagnostics.loo(data).elpd)


def test_a_term_that_no_draw_changes_is_trusted():
    values = np.stack([np.full(200, -0.3), np.random.default_rng(0).normal(-1, 0.1, 200)], axis=1)[None]
    data = inference_data({"posterior": {"z": np.zeros((1, 200, 1))}, "log_likelihood": {"y": values}})
    found = diagnostics.loo(data)
    assert found.pointwise[0] == pytest.approx(-0.3)
    assert found.pareto_k[0] == -math.inf
    assert math.isfinite(found.pareto_k[1])
    assert found.bad == 0


def test_waic_and_the_tail_of_weights_are_those_of_arviz_0():
    values = np.random.default_rng(0).normal(size=(2, 200, 30)) ** 3 / 5
    data = inference_data({"posterior": {"z": values}, "log_likelihood": {"y": values}})
    ours = diagnostics.waic(data)
    flat = values.reshape(400, 30)
    lppd = np.log(np.exp(flat).mean(0))
    assert ours.elpd == pytest.approx((lppd - flat.var(0)).sum())
    assert ours.p == pytest.approx(flat.var(0).sum())
    weights = np.random.default_rng(1).standard_t(3, size=1000)
    if hasattr(az, "waic"):
        with pytest.warns(UserWarning, match="posterior variance"):
            theirs = az.waic(data)
        assert (ours.elpd, ours.se, ours.p) == pytest.approx((theirs.elpd_waic, theirs.se, theirs.p_waic))
        assert diagnostics.pareto_k(weights) == pytest.approx(float(az.psislw(weights)[1]))
    assert diagnostics.pareto_k(np.full(100, 3.0)) == -math.inf


@pytest.mark.usefixtures("double")
def test_khat_is_small_for_the_posterior_itself_and_large_for_a_q_too_narrow():
    X, Y = solvable_data()
    exact = diagnostics.khat(exact_posterior(X, Y), X, Y, draws=500)
    narrow = diagnostics.khat(exact_posterior(X, Y, shrink=0.4), X, Y, draws=500)
    assert exact < 0.5
    assert narrow > 0.7
    assert "close to the posterior" in diagnostics.verdict(exact)
    assert "far from the posterior" in diagnostics.verdict(narrow)


@pytest.mark.parametrize("name", ["paper", "doubly_stochastic", "amortized", "auto_normal"])
def test_khat_is_a_number_for_every_kind_of_guide(name):
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    posterior = Posterior(model, GUIDES[name](model, X, Y))
    k = diagnostics.khat(posterior, X[: len(Y)], Y, X[len(Y) :], draws=100, inner=3)
    assert math.isfinite(k)


def test_khat_refuses_what_has_no_meaning():
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    auto = Posterior(model, GUIDES["auto_normal"](model, X, Y))
    with pytest.raises(ValueError, match="over must be 'everything' for MarginalGuide"):
        diagnostics.khat(auto, X[: len(Y)], Y, X[len(Y) :], over="functions")
    with pytest.raises(ValueError, match="draws must be a whole number of at least 100"):
        diagnostics.khat(auto, X[: len(Y)], Y, draws=5)


def chains(X: torch.Tensor, Y: torch.Tensor) -> Posterior:
    """Two chains of five draws, such as those of ``fit_nuts``."""
    model = tiny_model(X, Y, depth=1)
    M, K = model.layers[0].pseudo_count, model.labels
    draws = {"v_z": torch.randn(2, 5, K, M), "u_z": torch.randn(2, 5, K, M), "z": torch.randn(2, 5, len(X), K)}
    return Posterior(model, DrawsGuide(model, draws))


def test_khat_refuses_chains():
    X, Y = tiny_data(0)
    with pytest.raises(ValueError, match="posterior must be variational to be weighed; got chains"):
        diagnostics.khat(chains(X, Y), X, Y)


def test_khat_refuses_a_point():
    X, Y = tiny_data(0)
    posterior = fit_svi(tiny_model(X, Y), X, Y, guide="auto_delta", epochs=1, progress=False)
    with pytest.raises(ValueError, match="posterior must have a density to be weighed; got a guide that is a single"):
        diagnostics.khat(posterior, X, Y)


@pytest.mark.usefixtures("double")
def test_khat_takes_laplaces_approximation_after_its_fit():
    X, Y = tiny_data(0)
    guide = "auto_laplace_approximation"
    posterior = fit_svi(tiny_model(X, Y, depth=1), X, Y, guide=guide, epochs=5, progress=False)
    assert math.isfinite(diagnostics.khat(posterior, X, Y, draws=200))


def test_a_users_guide_that_leaves_c_to_the_model_has_the_terms_of_the_doubly_stochastic_one():
    class Mine(WhitenedGuide):
        pass

    X, Y = tiny_data()
    model = tiny_model(X, Y)
    guide = shake(DoublyStochasticGuide(model, X, Y))
    mine = Mine(model, X, Y, start="zero")
    mine.load_state_dict(guide.state_dict())
    terms = [diagnostics.pointwise(Posterior(model, q).to_arviz(X, Y, draws=20, inner=5)) for q in (guide, mine)]
    np.testing.assert_array_equal(*terms)


def one_chain(correlation: float, **groups) -> object:
    """A thousand draws of one ``z`` of variance one, each correlated with the one before."""
    noise = np.random.default_rng(0).normal(size=1000) * (1 - correlation**2) ** 0.5
    z = [noise[0] / (1 - correlation**2) ** 0.5]
    for step in noise[1:]:
        z.append(correlation * z[-1] + step)
    return inference_data({"posterior": {"z": np.array(z)[None, :, None]}, **groups})


def test_correlated_draws_of_a_single_chain_are_fewer_independent_ones():
    data = one_chain(0.9, sample_stats={"lp": np.zeros((1, 1000))})
    assert diagnostics._relative_efficiency(data) < 0.12  # (1 - 0.9) / (1 + 0.9) = 0.053 of them


def test_draws_of_a_guide_are_all_independent():
    X, Y = tiny_data()
    assert diagnostics._relative_efficiency(likely(1.0, X, Y).to_arviz(X, Y, draws=20)) == 1.0


def test_chains_that_agree_have_an_rhat_of_one_and_those_that_do_not_have_more():
    z = np.random.default_rng(0).normal(size=(4, 300, 3, 2))
    z[0, :, 1, 1] += 3
    found = diagnostics.convergence(inference_data({"posterior": {"z": z}}, dims={"z": ["instances", "labels"]}))
    assert list(found["at"]) == ["0, 0", "0, 1", "1, 0", "1, 1", "2, 0", "2, 1"]
    apart = found["at"] == "1, 1"
    assert (found.loc[~apart, "rhat"] < 1.02).all()
    assert found.loc[apart, "rhat"].item() > 1.2
    assert (found.loc[~apart, "ess"] > 800).all()
    assert found.loc[apart, "ess"].item() < 100


def likely(z: float, X: torch.Tensor, Y: torch.Tensor) -> Posterior:
    """A posterior whose ``z`` is close to ``z`` where the label is there, and to ``-z`` where it is not."""
    model = tiny_model(X, Y, depth=1, variance=9.0)
    guide = DoublyStochasticGuide(model, X, Y, start="zero", scale=0.01)
    with torch.no_grad():
        layer = model.layers[0]
        guide.z_v_loc.copy_(z * torch.linalg.lstsq(layer.features(X[: len(Y)]), 2 * torch.nan_to_num(Y) - 1)[0].mT)
    return Posterior(model, guide)


def test_compare_puts_the_better_posterior_first():
    X, Y = tiny_data()
    table = diagnostics.compare({"worse": likely(-1.0, X, Y), "better": likely(1.0, X, Y)}, X, Y, draws=100)
    assert list(table.index) == ["better", "worse"]
    assert list(table["rank"]) == [0, 1]
    assert table["elpd"].is_monotonic_decreasing
    assert ((table["bad_k"] >= 0) & (table["bad_k"] <= 1)).all()


def test_compare_refuses_what_cannot_be_compared():
    X, Y = tiny_data()
    one = likely(1.0, X, Y)
    gaussian = tiny_model(X, Y, likelihood=Gaussian())
    other = Posterior(gaussian, DoublyStochasticGuide(gaussian, X, Y))
    with pytest.raises(ValueError, match="candidates must be at least two; got 1"):
        diagnostics.compare({"one": one}, X, Y)
    with pytest.raises(ValueError, match="X and Y must be given"):
        diagnostics.compare({"one": one, "two": one})
    with pytest.raises(ValueError, match="no common scale; got both"):
        diagnostics.compare({"one": one, "two": other}, X, Y)
    parts = {unit: one.to_arviz(X, Y, draws=10, unit=unit) for unit in ("entries", "instances")}
    with pytest.raises(ValueError, match="same data and unit"):
        diagnostics.compare(parts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("truth", ["bernoulli", "eeoe (B = 10)", "mpu (c = 0.5)"])
def test_compare_prefers_the_likelihood_that_the_labels_were_drawn_from(truth):
    """The table of benchmarks/results/compare_likelihoods.md, which has ten seeds; here the first three."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "benchmarks" / "compare_likelihoods.py"
    spec = importlib.util.spec_from_file_location("compare_likelihoods", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    firsts = [benchmark.one_seed(truth, seed)["candidate"][0] for seed in range(3)]
    assert firsts == [truth] * 3
