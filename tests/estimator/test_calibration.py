"""Calibration and threshold against brute force, and on rows that they have not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import f1_score

from esmc_pyro import ESMCClassifier, calibration
from esmc_pyro.metrics import expected_calibration_error
from esmc_pyro.models import LIKELIHOODS, MPU, Bernoulli, Likelihood, Propensity, make_likelihood

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
    assert {name for name, one in made.items() if calibration.is_written(one)} == {
        "bernoulli", "polya_gamma", "probit", "gaussian",
    }  # fmt: skip
    assert calibration.is_written(MPU(0.0))
    assert not calibration.is_written(Propensity(torch.tensor([1.0, 1.0, 0.9, 1.0])))


@pytest.mark.parametrize("likelihood", [MPU(0.4), Propensity(torch.tensor([0.3, 0.6, 0.9])), LIKELIHOODS["eeoe"](3.0)])
def test_suitability_is_calibrated_by_what_is_written(likelihood: Likelihood) -> None:
    t, fits = _held_out(0, 4000)  # ``fits`` has the log-odds (t - 1) / 3
    true, known = (t - 1) / 3, ~torch.isnan(fits)
    written = torch.bernoulli(likelihood.prob(true), generator=torch.Generator().manual_seed(0))
    Y = torch.where(known, written, torch.nan)
    found = calibration.fit_suitability(likelihood, t, Y)
    # the inverse of the information of both numbers gives their standard errors; within four of these
    parameters = torch.tensor([1 / 3, -1 / 3], dtype=torch.float64)

    def loss(p: torch.Tensor) -> torch.Tensor:
        s = calibration.log_odds(likelihood, p[0] * t + p[1])
        return torch.nn.functional.binary_cross_entropy_with_logits(s[known], written[known], reduction="sum")

    error = torch.linalg.inv(torch.autograd.functional.hessian(loss, parameters)).diagonal().sqrt()
    assert (torch.abs(torch.tensor(found) - parameters) < 4 * error).all()
    assert error.max() < 0.1
    assert loss(torch.tensor(found, dtype=torch.float64)) < loss(parameters) + 0.1  # Platt's targets differ a little


def test_suitability_of_a_known_rate_is_right_of_labels_that_nobody_wrote(make_data: Make) -> None:
    X, Y = make_data(200)
    given = np.where(np.random.default_rng(0).random(Y.shape) < 0.5, 0, Y)
    new_X, new_Y = make_data(400, seed=1)
    model = ESMCClassifier(features="standard", likelihood=MPU(0.5), search=False).fit(X, given)
    z = torch.as_tensor(model.decision_function(new_X)).double()
    slope, offset = model.suitability_calibration_
    fits = model.suitability(new_X, draws=None)
    np.testing.assert_allclose(fits, torch.sigmoid(slope * z + offset).numpy(), atol=1e-6)
    errors = [
        expected_calibration_error(new_Y, p) for p in (fits, torch.sigmoid(z).numpy(), model.predict_proba(new_X))
    ]
    assert errors[0] < 0.1
    assert errors[0] < errors[1] + 0.02
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
