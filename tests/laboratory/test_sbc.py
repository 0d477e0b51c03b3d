"""Simulation-based calibration: what is exact passes, what is too narrow, too wide or shifted does not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor

from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, Guide
from esmc_pyro.inference import fit_analytic, fit_nuts, fit_svi
from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError
from esmc_pyro.models import EEOE, ESMC, MPU, Bernoulli, Experts, Gaussian, Likelihood
from esmc_pyro.posterior import Posterior
from esmc_pyro.sbc import SBC, label_quantities, simulation_based_calibration

pytestmark = pytest.mark.usefixtures("double")
N, I, K, M = 8, 2, 2, 5


def problem(likelihood: Likelihood, widths: tuple[int, ...] = (), labels: int = K) -> tuple[ESMC, Tensor]:
    """A model whose z has a standard deviation near 2, and its instances."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(N + I, 2, generator=generator)
    Y = (torch.rand(N + I, labels, generator=generator) < 0.5).double()
    sizes = {"lengthscale": 1.5, "pseudo": M, "gamma": 0.3}
    variance = [1.0] * len(widths) + [4.0]
    return ESMC.from_data(X, Y, list(widths), likelihood=likelihood, variance=variance, **sizes), X


class Exact(Guide):
    """The posterior of one layer under a Gaussian likelihood, its deviations from the mean times ``factor``.

    With ``r = beta^2 + gamma^2`` and noise ``s``: ``y - A v ~ N(0, r + s^2)``, so ``v`` is Gaussian with precision
    ``I + A'A / (r + s^2)``; given ``v``, ``z`` has mean ``A v + (y - A v) r / (r + s^2)`` and variance
    ``r s^2 / (r + s^2)``.
    """

    def __init__(self, model: ESMC, X: Tensor, Y: Tensor, factor: float = 1.0, shift: float = 0.0) -> None:
        super().__init__(model)
        self.factor, self.shift = factor, shift
        (layer,) = model.layers
        self.noise = model.likelihood.noise**2
        with torch.no_grad():
            self.rest = (layer.beta**2 + layer.gamma**2).item()
            A = layer.features(X)
            seen = A[: len(Y)]
            total = self.rest + self.noise
            covariance = torch.linalg.inv(torch.eye(M) + seen.mT @ seen / total)
            self.tril = torch.linalg.cholesky(covariance)
            self.v = (covariance @ seen.mT @ Y / total).mT
            self.A, self.factor_u = A, layer.factor()

    def sample_globals(self) -> list[Tensor]:
        (layer,) = self.model.layers
        with pyro.plate(layer.plate, layer.outputs, dim=-1):
            v = pyro.sample("v_z", dist.MultivariateNormal(self.v, scale_tril=self.factor * self.tril))
        return [v @ self.factor_u.mT]

    def sample_locals(self, x: Tensor, y: Tensor, known: Tensor, rows: Tensor, us: list[Tensor]) -> Tensor:
        (layer,) = self.model.layers
        middle = self.A @ layer.whiten(us[0]).mT
        gain = torch.where(known, self.rest / (self.rest + self.noise), 0.0)
        spread = ((1 - gain) * self.rest).sqrt() * self.factor
        mean = middle + gain * (y - middle) + self.shift
        return pyro.sample("z", dist.Normal(mean, spread).to_event(1))


def fit_exact(model: ESMC, X: Tensor, Y: Tensor, X_unlabeled: Tensor | None = None, **options: float) -> Posterior:
    x = X if X_unlabeled is None else torch.cat([X, X_unlabeled])
    return Posterior(model, Exact(model, x, Y, **options))


def calibrate(fit: Callable[..., Posterior], simulations: int = 250, **options: Any) -> SBC:
    model, X = problem(Gaussian(0.5))
    given = {"labelled": N, "simulations": simulations, "progress": False} | options
    return simulation_based_calibration(model, X, fit, **given)


def test_an_exact_posterior_has_uniform_ranks_and_the_right_spread() -> None:
    found = calibrate(fit_exact)
    assert found.p_value > 0.01
    assert found.ranks.shape == (250, 7)
    assert found.ranks.min().min() == 0
    assert found.ranks.max().max() == found.draws == 99
    spread = found.spread()
    assert ((spread["spread"] - 1).abs() < 3.5 * spread["spread_error"]).all()
    assert spread["spread_error"].between(0.02, 0.12).all()


def test_a_posterior_that_is_too_narrow_gives_a_u_and_its_factor() -> None:
    found = calibrate(partial(fit_exact, factor=0.5), simulations=120)
    for quantity in ("z[0, 0]", "z[9, 1]", "mean z of label 0", "mean z of label 1"):  # linear, so the factor is exact
        line = found.summary().loc[quantity]
        assert line["p_value"] < 1e-4
        assert abs(line["spread"] - 0.5) < 3.5 * line["spread_error"]
        counts, expected = found.histogram(quantity)
        assert counts[0] + counts[-1] > 1.5 * (expected[0] + expected[-1])
    assert found.p_value < 1e-4


def test_a_posterior_that_is_too_wide_gives_a_hill() -> None:
    found = calibrate(partial(fit_exact, factor=2.0), simulations=100)
    counts, expected = found.histogram("mean z of label 0")
    assert counts[0] + counts[-1] < 0.5 * (expected[0] + expected[-1])
    assert found.p_value < 1e-4
    assert found.spread().loc["z[0, 0]", "spread"] == pytest.approx(2.0, abs=0.4)


def test_a_shifted_posterior_gives_a_slope() -> None:
    found = calibrate(partial(fit_exact, shift=1.0), simulations=60)
    ranks = found.ranks["mean z of label 1"]
    assert ranks.mean() < 30
    assert found.p_value < 1e-4


def test_the_chi_square_p_value_is_itself_uniform_under_uniform_ranks() -> None:
    rng = np.random.default_rng(0)
    p = []
    for _ in range(100):
        table = pd.DataFrame({"simulation": range(100), "quantity": "a", "rank": rng.integers(0, 100, 100)})
        p.append(SBC(table, 99).p_value)
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_bins_hold_every_rank_once_also_when_their_sizes_differ() -> None:
    table = pd.DataFrame({"simulation": range(24), "quantity": "a", "rank": [*range(12), *range(12)]})
    counts, expected = SBC(table, 11).histogram("a", bins=5)
    assert counts.tolist() == [6, 6, 4, 4, 4]
    assert expected.tolist() == [6, 6, 4, 4, 4]
    assert SBC(table, 11).p_values(bins=5)["a"] == 1.0


def test_ties_are_broken_at_random() -> None:
    found = calibrate(fit_exact, 60, quantities={"nothing": lambda sites: torch.zeros(len(sites["z"]))})
    assert found.p_value > 0.01


def test_same_seed_same_ranks_and_more_simulations_extend_fewer() -> None:
    few, again, more = (calibrate(fit_exact, n) for n in (4, 4, 6))
    pd.testing.assert_frame_equal(few.table, again.table)
    pd.testing.assert_frame_equal(few.table, more.table[: len(few.table)])
    other = calibrate(fit_exact, 4, seed=1)
    assert not few.table["truth"].equals(other.table["truth"])


def test_the_truth_does_not_depend_on_the_fit() -> None:
    exact, narrow = calibrate(fit_exact, 3), calibrate(partial(fit_exact, factor=0.1), 3)
    pd.testing.assert_series_equal(exact.table["truth"], narrow.table["truth"])


def test_ctrl_c_returns_what_is_done() -> None:
    calls = []

    def stop(*data: Any) -> Posterior:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return fit_exact(*data)

    found = calibrate(stop, 10)
    assert found.interrupted
    assert found.ranks.shape[0] == 3
    pd.testing.assert_frame_equal(found.table, calibrate(fit_exact, 3).table)


def test_a_fit_that_was_interrupted_is_not_counted() -> None:
    calls = []

    def half(*data: Any) -> Posterior:
        calls.append(1)
        posterior = fit_exact(*data)
        posterior.interrupted = len(calls) == 3
        return posterior

    found = calibrate(half, 10)
    assert found.interrupted
    assert found.ranks.shape[0] == 2


def test_a_checkpoint_goes_on_where_it_was(tmp_path: Any) -> None:
    path = tmp_path / "ranks.checkpoint"
    calls = []

    def counted(*data: Any) -> Posterior:
        calls.append(1)
        return fit_exact(*data)

    calibrate(counted, 3, checkpoint=Checkpoint(path))
    found = calibrate(counted, 5, checkpoint=Checkpoint(path))
    assert len(calls) == 5
    pd.testing.assert_frame_equal(found.table, calibrate(fit_exact, 5).table)
    fewer = calibrate(counted, 2, checkpoint=Checkpoint(path))
    assert len(calls) == 5
    assert fewer.ranks.shape[0] == 2
    with pytest.raises(CheckpointError, match="of another fit, with other seed"):
        calibrate(counted, 5, seed=3, checkpoint=Checkpoint(path))


def test_a_fit_that_changes_the_model_is_refused() -> None:
    model, X = problem(Bernoulli(), (2,))
    fit = partial(fit_svi, guide="doubly_stochastic", epochs=1, progress=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"fit must leave the model as it is.*layers.1.pseudo_instances"):
        simulation_based_calibration(model, X, fit, simulations=1, progress=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"simulations": 0}, "simulations must be a whole number of at least 1; got 0"),
        ({"draws": 1}, "draws must be a whole number of at least 2; got 1"),
        ({"labelled": 11}, "labelled must be at most the 10 rows of X; got 11"),
        ({"labelled": 0}, "labelled must be a whole number of at least 1; got 0"),
        ({"quantities": {"z": lambda sites: sites["z"]}}, r"one number a draw, or a row of them; got shape .* of 'z'"),
        (
            {"quantities": {"a": lambda s: s["z"][:, 0], "b": lambda s: s["z"][:, 0, 0]}},
            r"quantities must all give as many numbers .* got \{'a': 2, 'b': 1\}",
        ),
    ],
)
def test_bad_arguments_are_said(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        calibrate(fit_exact, **({"simulations": 1} | options))


@pytest.mark.parametrize("explicit", [True, False])
def test_experts_are_refused(explicit: bool) -> None:
    model, X = problem(Experts(3, explicit=explicit))
    with pytest.raises(ValueError, match="got Experts, whose y may be a fraction"):
        simulation_based_calibration(model, X, fit_analytic)


def calibrate_labels(fit: Callable[..., Posterior], likelihood: Likelihood, labels: int = 100) -> SBC:
    """Each label of the model with one layer by itself: as many simulations as labels, and one fit."""
    model, X = problem(likelihood, labels=labels)
    return simulation_based_calibration(
        model, X, fit, labelled=N, simulations=1, quantities=label_quantities(N + I), progress=False
    )


def test_labels_of_one_layer_are_simulations_of_their_own() -> None:
    exact, narrow = (calibrate_labels(partial(fit_exact, factor=f), Gaussian(0.5), 200) for f in (1.0, 0.5))
    assert exact.ranks.shape == narrow.ranks.shape == (200, 6)
    assert exact.p_value > 0.01
    spread = exact.spread()
    assert ((spread["spread"] - 1).abs() < 3.5 * spread["spread_error"]).all()
    assert narrow.p_values()[["z[0]", "z[9]", "mean z"]].max() < 1e-4
    assert narrow.spread().loc["mean z", "spread"] == pytest.approx(0.5, abs=0.1)


# --- what real algorithms do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_papers_factorisation_is_over_confident(covariance: str) -> None:
    """``q(z)`` apart from ``q(u)`` is no wider than the noise between them: gamma, here 0.3."""
    fit = partial(fit_analytic, start="zero", covariance=covariance, sweeps=30, progress=False)
    found = calibrate_labels(fit, Bernoulli())
    assert found.p_value < 1e-4
    assert (found.spread()["spread"] < 0.5).all()
    counts, expected = found.histogram("mean z")
    assert counts[0] + counts[-1] > 3 * (expected[0] + expected[-1])


@pytest.mark.slow
@pytest.mark.parametrize("make", [Bernoulli, partial(EEOE, 5), partial(MPU, 0.4)], ids=["bernoulli", "eeoe", "mpu"])
def test_nuts_is_calibrated(make: Callable[[], Likelihood]) -> None:
    fit = partial(fit_nuts, start="prior", chains=4, warmup=150, draws=75, progress=False)
    found = calibrate_labels(fit, make())
    assert found.p_value > 0.01
    spread = found.spread()
    assert ((spread["spread"] - 1).abs() < 3.5 * spread["spread_error"]).all()


@pytest.mark.slow
def test_the_normal_autoguide_is_over_confident() -> None:
    normal = partial(GUIDES["auto_normal"], start="zero")
    found = calibrate_labels(partial(fit_svi, guide=normal, epochs=500, lr=0.1, progress=False), Bernoulli())
    assert found.p_value < 1e-4
    assert (found.spread()["spread"] < 0.6).all()


@pytest.mark.slow
def test_the_doubly_stochastic_guide_is_almost_calibrated() -> None:
    """Its ``q(z | u)`` leaves out the label of the row itself, which costs little where noise is small beside ``u``."""
    full = partial(DoublyStochasticGuide, covariance="full", start="zero", scale=0.5)
    fit = partial(fit_svi, guide=full, objective="collapsed", epochs=200, lr=0.1, progress=False)
    found = calibrate_labels(fit, Bernoulli())
    assert found.p_value > 0.01
    assert found.spread()["spread"].between(0.75, 1.4).all()
