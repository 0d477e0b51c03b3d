"""Calibration and threshold against brute force, and on rows that they have not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.special import expit
from sklearn.metrics import f1_score

from esmc_pyro import ESMCClassifier, calibration
from esmc_pyro.metrics import expected_calibration_error
from esmc_pyro.models import Bernoulli

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
