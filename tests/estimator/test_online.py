"""``partial_fit``: new rows without starting over, against a fit to all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyro.contrib.gp.kernels import RBF

from esmc_pyro import ESMCClassifier, default, online
from esmc_pyro.models import Gaussian

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def _enough_steps(_short_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "LEAST_STEPS", 60)


def estimator(**options: Any) -> ESMCClassifier:
    return ESMCClassifier(**{"features": "standard"} | options)


def test_rows_without_labels_leave_all_as_it_was(make_data: Make) -> None:
    X, Y = make_data()
    model = estimator().fit(X[:30], Y[:30])
    before = model.decision_function(X)
    assert model.partial_fit(X[30:], np.full_like(Y[30:], np.nan)) is model
    np.testing.assert_array_equal(model.decision_function(X), before)
    with pytest.raises(ValueError, match="Y must have the 3 labels"):
        model.partial_fit(X[30:], np.full((10, 2), np.nan))


def test_the_first_call_is_fit(make_data: Make) -> None:
    X, Y = make_data()
    assert np.array_equal(
        estimator().partial_fit(X, Y, classes=[0, 1]).decision_function(X), estimator().fit(X, Y).decision_function(X)
    )


def test_new_pseudo_instances_leave_the_functions_as_they_were(make_data: Make) -> None:
    X, Y = make_data()
    model = estimator().fit(X, Y)
    new = model.feature_map_(make_data(20, seed=3)[0])
    before = model.posterior_.predict(new)
    with torch.no_grad():
        online._add_pseudo_instances(model.guide_, new)
    assert model.model_.layers[0].pseudo_count == 60
    assert torch.allclose(model.posterior_.predict(new), before, atol=1e-3)


def _regions(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two places with opposite labels."""
    rng = np.random.default_rng(seed)
    old, new = rng.normal(size=(60, 4)) - 2, rng.normal(size=(60, 4)) + 2
    old_Y = np.stack([old[:, 0] > -2, old[:, 1] > -2, old[:, 0] < -2], 1).astype(float)
    new_Y = np.stack([new[:, 0] < 2, new[:, 1] < 2, new[:, 0] > 2], 1).astype(float)
    return old, old_Y, new, new_Y


def test_a_new_region_is_learned_and_the_old_one_kept() -> None:
    old, old_Y, new, new_Y = _regions(0)
    old_test, old_truth, new_test, new_truth = _regions(1)
    model = estimator().fit(old, old_Y)
    before_new, before_old = model.score(new_test, new_truth), model.score(old_test, old_truth)
    for part in np.split(np.arange(60), 3):
        model.partial_fit(new[part], new_Y[part])
    assert model.score(new_test, new_truth) > before_new + 0.1
    assert model.score(old_test, old_truth) > before_old - 0.03


def test_it_comes_near_the_fit_to_all_rows(make_data: Make) -> None:
    X, Y = make_data(90, 4)
    test, truth = make_data(200, 4, seed=1)
    joint = estimator().fit(X, Y)
    parts = estimator().fit(X[:45], Y[:45]).partial_fit(X[45:], Y[45:])
    assert parts.score(test, truth) > joint.score(test, truth) - 0.03
    a, b = joint.decision_function(test).ravel(), parts.decision_function(test).ravel()
    assert np.corrcoef(a, b)[0, 1] > 0.9
    assert parts.model_.layers[0].pseudo_count == 90


def test_a_gaussian_case_equals_the_exact_posterior() -> None:
    # rows far apart: features of different rows are orthogonal, so a diagonal spread is the exact one
    X = 100 * np.arange(8, dtype=np.float32)[:, None]
    Y = np.array([[1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [1, 1], [0, 0], [0, 1]], dtype=np.float32)
    options: dict[str, Any] = {"likelihood": Gaussian(0.5), "kernel": RBF(1), "epochs": 150, "lr": 0.05}
    model = estimator(features="identity", **options).fit(X[:5], Y[:5])
    first = model.guide_.c_v_scale.detach().clone()
    model.partial_fit(X[5:], Y[5:])
    layer, mean = model.model_.layers[0], model.model_.layers[1].mean
    a = layer.features(model.feature_map_(X)).detach()
    W, b = mean.weight.detach(), mean.offset.detach()
    # vec(v) ~ N(0, I), y = a v' W + b + noise: ridge regression in closed form
    design = torch.einsum("nm,lk->nklm", a, W).reshape(16, -1).double()
    target = (torch.as_tensor(Y) - b).reshape(-1).double()
    precision = torch.eye(design.shape[1], dtype=torch.float64) + design.mT @ design / 0.25
    exact = torch.linalg.solve(precision, design.mT @ target / 0.25).reshape(2, 8)
    assert torch.allclose(model.guide_.c_v_loc.detach().double(), exact, atol=0.05)
    assert torch.allclose(model.guide_.c_v_scale[:, :5], first, rtol=1e-3)  # new rows say nothing about old ones
    assert (model.guide_.c_v_scale[:, 5:] < 0.99).all()


def test_precisions_add_up(make_data: Make) -> None:
    X, Y = make_data()
    model = estimator().fit(X, Y)
    widths = []
    for _ in range(3):
        widths.append(model.guide_.c_v_scale.detach()[:, :40].clone())
        model.partial_fit(X[:10], Y[:10])
    assert (widths[1] <= widths[0] + 1e-6).all()
    assert (widths[2] <= widths[1] + 1e-6).all()
    assert widths[2].sum() < 0.99 * widths[0].sum()


def test_it_keeps_names_settings_and_history(make_data: Make) -> None:
    X, Y = make_data()
    model = estimator(epochs=3).fit(X, Y)
    settings, threshold, offset = model.settings_, model.threshold_, model.model_.layers[1].mean.offset.clone()
    new, labels = make_data(6, seed=2)
    labels[0] = np.nan
    model.partial_fit(new, labels)
    assert (model.settings_, model.threshold_) == (settings, threshold)
    assert torch.equal(model.model_.layers[1].mean.offset, offset)
    assert model.model_.layers[1].mean.offset.requires_grad
    assert model.posterior_.history["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
    assert model.posterior_.history["seconds"].is_monotonic_increasing
    row = model.explain(new[2], n=1)
    assert row["training_row"].tolist() == [-1]
    assert row["labels"][0] == [f"y{k}" for k in np.flatnonzero(labels[2] == 1)]


def test_there_is_an_end_of_room(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    model = estimator(epochs=2).fit(X, Y)
    monkeypatch.setattr(default, "PSEUDO", 43)
    model.partial_fit(*make_data(10, seed=2))
    assert model.model_.layers[0].pseudo_count == 43
    model.partial_fit(*make_data(10, seed=3))
    assert model.model_.layers[0].pseudo_count == 43
    assert model.pseudo_rows_.shape == (43,)
    assert model.pseudo_labels_.shape == (43, 3)


def test_pseudo_instances_stay_within_what_was_asked_for(make_data: Make) -> None:
    X, Y = make_data()
    new_X, new_Y = make_data(10, seed=1)
    model = estimator(pseudo=25).fit(X, Y).partial_fit(new_X, new_Y)
    assert model.model_.layers[0].pseudo_count == 25
    model.set_params(pseudo=30).partial_fit(new_X, new_Y)
    assert model.model_.layers[0].pseudo_count == len(model.pseudo_rows_) == 30


def test_a_failed_fit_leaves_everything_as_it_was(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    new_X, new_Y = make_data(10, seed=1)
    model = estimator().fit(X, Y)
    before, state = model.decision_function(X), {k: v.clone() for k, v in model.guide_.state_dict().items()}
    inner = default.fit_means

    def fail(*args: Any, **options: Any) -> Any:
        inner(*args, **options)
        raise FloatingPointError("lost")

    monkeypatch.setattr(default, "fit_means", fail)
    with pytest.raises(FloatingPointError, match="lost"):
        model.partial_fit(new_X, new_Y)
    assert model.model_.layers[0].pseudo_count == len(model.pseudo_rows_) == len(X)
    assert np.array_equal(model.decision_function(X), before)
    now = model.guide_.state_dict()
    assert all(torch.allclose(now[key], value) for key, value in state.items())
    monkeypatch.setattr(default, "fit_means", inner)
    assert np.isfinite(model.partial_fit(new_X, new_Y).decision_function(X)).all()
