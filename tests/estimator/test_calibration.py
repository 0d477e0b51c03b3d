"""Calibration and threshold against brute force, and on rows that they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import f1_score

from esmc_pyro import ESMCClassifier, calibration, named
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import expected_calibration_error
from esmc_pyro.models import (
    EEOE,
    LIKELIHOODS,
    MPU,
    Bernoulli,
    Experts,
    Gaussian,
    Likelihood,
    Propensity,
    make_likelihood,
)
from esmc_pyro.posterior import Posterior

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


def _held_out(seed: int = 0, rows: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds three times too sure and off by one, with some labels unknown."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 3))
    y = (rng.random(true.shape) < expit(true)).astype(float)
    y[rng.random(y.shape) < 0.1] = np.nan
    return torch.as_tensor(3 * true + 1), torch.as_tensor(y)


def test_log_odds_of_sure_labels_are_told_apart() -> None:
    z = torch.tensor([16.0, 17.0, 18.0, 20.0])
    assert torch.allclose(calibration.log_odds(Bernoulli(), z), z.double(), rtol=1e-6)


def test_calibration_is_the_best_of_a_grid() -> None:
    t, y = _held_out(rows=20)  # few, so that the targets count
    slope, offset = calibration.fit(t, y)
    known = ~torch.isnan(y)
    ones, zeros = float((y == 1).sum()), float((y == 0).sum())
    target = torch.where(y == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))[known]

    def loss(a: float, b: float) -> float:
        return float(torch.nn.functional.binary_cross_entropy_with_logits(a * t[known] + b, target))

    grid = min((loss(a, b), a, b) for a in np.linspace(0.1, 1, 46) for b in np.linspace(-1, 1, 41))
    assert loss(slope, offset) <= grid[0] + 1e-9
    assert abs(slope - grid[1]) < 0.03
    assert abs(offset - grid[2]) < 0.06


def test_calibration_lowers_the_error_on_other_rows() -> None:
    t, y = _held_out(0)
    found = calibration.fit(t, y)
    other, truth = _held_out(1, 2000)
    before = expected_calibration_error(truth.numpy(), torch.sigmoid(other).numpy())
    after = expected_calibration_error(truth.numpy(), calibration.apply(found, other).numpy())
    assert after < 0.06 < 0.1 < before


def test_calibration_leaves_what_it_cannot_judge() -> None:
    assert calibration.fit(torch.zeros(0, 2), torch.zeros(0, 2)) == (1.0, 0.0)
    assert calibration.fit(torch.zeros(2, 2), torch.full((2, 2), torch.nan)) == (1.0, 0.0)
    assert calibration.fit(torch.randn(4, 2), torch.ones(4, 2)) == (1.0, 0.0)


def test_few_labels_that_can_be_told_apart_do_not_make_odds_certain() -> None:
    y = (torch.arange(20) < 8).double()[:, None]
    found = calibration.fit(2 * y - 1, y)
    # the targets are probabilities that a slope and an offset reach exactly here
    assert torch.allclose(calibration.apply(found, 2 * y - 1), torch.where(y > 0, 9 / 10, 1 / 14).double(), atol=1e-3)


def test_calibration_of_perfect_scores_does_not_overflow() -> None:
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    slope, offset = calibration.fit(40 * (y - 0.5), y)
    assert np.isfinite([slope, offset]).all()
    assert slope > 0


def test_what_fits_is_what_is_written_under_link_functions_alone() -> None:
    Y = torch.eye(4)
    made = {name: make_likelihood(name, Y) for name in LIKELIHOODS if name != "mpu"}
    assert {name for name, one in made.items() if calibration.is_written(one, 4)} == {
        "bernoulli", "polya_gamma", "probit", "gaussian",
    }  # fmt: skip
    assert calibration.is_written(MPU(0.0), 4)
    assert not calibration.is_written(Propensity(torch.tensor([1.0, 1.0, 0.9, 1.0])), 4)


def _log_posterior(
    likelihood: Likelihood, z: torch.Tensor, Y: torch.Tensor, slope: float, offsets: torch.Tensor
) -> torch.Tensor:
    """``ln p(Y | z') + ln p(slope, offset)`` of each offset, the formula of ``fit_suitability`` written out."""
    moved = (slope * z + offsets[:, None, None] / likelihood.lambda_).flatten(0, 1)
    one, zero = (likelihood.log_prob(torch.full_like(moved, v), moved).view(-1, *z.shape) for v in (1.0, 0.0))
    explained = torch.where(Y == 1, one, 0.0) + torch.where(Y == 0, zero, 0.0)
    return explained.sum((1, 2)) - np.log(slope) ** 2 / 2 - offsets**2 / 8


CALIBRATED = [
    MPU(0.4), MPU(0.4, lambda_=0.01), MPU(0.9), Propensity(torch.tensor([0.3, 0.6, 0.9])), EEOE(3.0), EEOE(100.0),
    Experts(40),
]  # fmt: skip


@pytest.mark.parametrize("likelihood", CALIBRATED, ids=lambda one: f"{type(one).__name__} {one.lambda_}")
@pytest.mark.parametrize("rows", [8, 300])
def test_the_calibration_of_suitability_is_the_best_of_a_grid(likelihood: Likelihood, rows: int) -> None:
    t, y = _held_out(rows=rows)
    z = t / likelihood.lambda_
    slope, offset = calibration.fit_suitability(likelihood, z, y)
    found = _log_posterior(likelihood, z, y, slope, z.new_tensor([offset]))
    offsets = torch.linspace(-8, 8, 65, dtype=z.dtype)
    grid = [_log_posterior(likelihood, z, y, a, offsets).max() for a in np.geomspace(0.02, 3, 40)]
    assert found > max(grid) - 1e-3


def test_suitability_is_calibrated_by_what_is_written() -> None:
    likelihood = Propensity(torch.tensor([0.3, 0.6, 0.9]))
    t, fits = _held_out(0, 4000)  # ``fits`` has the log-odds (t - 1) / 3
    known, true = ~torch.isnan(fits), torch.tensor([1 / 3, -1 / 3], dtype=torch.float64)
    written = torch.bernoulli(likelihood.prob((t - 1) / 3), generator=torch.Generator().manual_seed(0))
    found = torch.tensor(calibration.fit_suitability(likelihood, t, torch.where(known, written, torch.nan)))

    def loss(p: torch.Tensor) -> torch.Tensor:
        return -likelihood.log_prob(written, p[0] * t + p[1])[known].sum()

    # the inverse of the information has the variances: within four standard errors
    error = torch.linalg.inv(torch.autograd.functional.hessian(loss, true)).diagonal().sqrt()
    assert ((found - true).abs() < 4 * error).all()
    assert error.max() < 0.1


def test_suitability_of_few_labels_or_impossible_ones_stays_short_of_certain() -> None:
    y = (torch.arange(20) < 8).double()[:, None]
    slope, offset = calibration.fit_suitability(MPU(0.5), 2 * y - 1, y)
    assert torch.sigmoid(torch.tensor(slope + offset)) < 0.999
    often = (torch.arange(200) % 2).double()[:, None]  # five times as often as can be
    slope, offset = calibration.fit_suitability(MPU(0.9), 0 * often, often)
    assert np.isfinite([slope, offset]).all()
    assert calibration.fit_suitability(MPU(0.5), torch.randn(4, 2), torch.ones(4, 2)) == (1.0, 0.0)
    assert calibration.fit_suitability(MPU(0.5), torch.zeros(0, 2), torch.zeros(0, 2)) == (1.0, 0.0)


def test_z_of_any_size_are_calibrated() -> None:
    t, y = _held_out(rows=300)
    expected = calibration.fit_suitability(MPU(0.4), t, y)
    slope, offset = calibration.fit_suitability(MPU(0.4), 1e9 * t, y)
    # the prior is about another slope: it is felt a little
    assert slope * 1e9 == pytest.approx(expected[0], rel=0.15)
    assert offset == pytest.approx(expected[1], abs=0.15)


def test_suitability_of_a_known_rate_is_right_of_labels_that_nobody_wrote(make_data: Make) -> None:
    X, Y = make_data(200)
    given = np.where(np.random.default_rng(0).random(Y.shape) < 0.5, 0, Y)
    new_X, new_Y = make_data(400, seed=1)
    model = ESMCClassifier(features="standard", likelihood=MPU(0.5, lambda_=2.0), search=False).fit(X, given)
    z = torch.as_tensor(model.decision_function(new_X)).double()
    slope, offset = model.suitability_calibration_
    fits = model.suitability(new_X, draws=None)
    np.testing.assert_allclose(fits, torch.sigmoid(2 * slope * z + offset).numpy(), atol=1e-5)
    raw = torch.sigmoid(2 * z).numpy()
    errors = [expected_calibration_error(new_Y, p) for p in (fits, raw, model.predict_proba(new_X))]
    assert errors[0] < 0.08
    assert errors[0] < errors[1] / 1.5
    assert errors[0] < errors[2] / 2  # half of what fits is not written


def test_suitability_is_the_probability_where_all_that_fits_is_written(fitted: ESMCClassifier, make_data: Make) -> None:
    X = make_data()[0]
    assert fitted.suitability_calibration_ is None
    np.testing.assert_array_equal(fitted.suitability(X, draws=None), fitted.predict_proba(X))


def test_threshold_is_the_best_of_all_cuts() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        p = np.round(rng.random((30, 3)), 1 if seed % 2 else 4)  # with and without ties
        y = (rng.random(p.shape) < p).astype(float)
        y[rng.random(y.shape) < 0.2] = np.nan
        known = ~np.isnan(y)
        cuts = [f1_score(y[known], p[known] >= cut) for cut in np.unique(p)]
        found = calibration.best_threshold(torch.as_tensor(p), torch.as_tensor(y))
        assert f1_score(y[known], p[known] >= found) == max(cuts)
        assert found not in p  # between two values, never on one


def test_threshold_without_ones_is_one_half() -> None:
    assert calibration.best_threshold(torch.rand(4, 2), torch.zeros(4, 2)) == 0.5
    assert calibration.best_threshold(torch.rand(0, 2), torch.zeros(0, 2)) == 0.5


def test_threshold_can_take_everything() -> None:
    assert 0 < calibration.best_threshold(torch.tensor([[0.2, 0.4]]), torch.ones(1, 2)) < 0.2


def test_the_estimator_calibrates_on_rows_it_did_not_fit(make_data: Make) -> None:
    X, Y = make_data(120)
    new_X, new_Y = make_data(200, seed=1)
    model = ESMCClassifier(features="standard").fit(X, Y)
    raw = torch.sigmoid(torch.as_tensor(model.decision_function(new_X))).numpy()
    calibrated = expected_calibration_error(new_Y, model.predict_proba(new_X))
    assert calibrated < expected_calibration_error(new_Y, raw) + 0.03
    assert calibrated < 0.15


@pytest.mark.parametrize("likelihood", [Experts(16), EEOE(16), Gaussian()])
def test_probabilities_rank_as_z_does(make_data: Make, likelihood: Likelihood) -> None:
    X, Y = make_data()
    model = ESMCClassifier(likelihood=likelihood, search=False, epochs=20).fit(X, Y)
    far = torch.linspace(-9, 0.4, 40).double()  # beyond any z of these rows
    p = model._calibrated(far)
    assert (p.diff() > 0).all()
    assert (p > 0).all()
    assert (p < 1).all()


def test_log_odds_beyond_reason_stay_in_order_and_finite() -> None:
    t = calibration.log_odds(Bernoulli(1e5), torch.tensor([-1e9, -3.0, -1e-4, 1e-4, 3.0, 1e9]))
    assert (t.diff() > 0).all()
    assert t.abs().max() < 60
    assert t[2:4].tolist() == pytest.approx([-10, 10])


def test_a_calibration_that_was_cut_short_is_told(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    inner = fit_svi

    def interrupted(model: Any, x: Any, *given: Any, **options: Any) -> Posterior:
        posterior = inner(model, x, *given, **options)
        posterior.interrupted = len(x) < len(X)  # the fit to all rows runs through
        return posterior

    monkeypatch.setattr(named, "fit_svi", interrupted)
    model = ESMCClassifier(inference="svi", epochs=2).fit(X, Y)
    assert model.posterior_.interrupted
