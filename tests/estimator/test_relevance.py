"""Weights of features: their evidence against the density it stands for, their gradient, and what they find."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from esmc_pyro import ESMCClassifier, default, relevance, search
from esmc_pyro.default import Settings
from esmc_pyro.feature_map import KINDS
from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError

WEIGHTS = search.CANDIDATES[:1]


def _problem(n: int = 8, K: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, K, generator=generator, dtype=torch.float64)


def _evidence(log_weights: torch.Tensor, log_noise: torch.Tensor) -> torch.Tensor:
    X, T = _problem()
    found = relevance.evidence(relevance.kernel_matrix(X, log_weights), log_noise, T)
    assert found is not None
    return found[0]


def test_the_evidence_is_the_log_density_of_the_labels_a_label_at_the_best_common_variance() -> None:
    X, T = _problem()
    n, K = T.shape
    log_weights = torch.tensor([0.3, -0.5, 0.0, 1.0], dtype=torch.float64)
    distances = torch.cdist(X * log_weights.exp(), X * log_weights.exp())
    C = torch.exp(-distances) + 0.2 * torch.eye(n)
    variances = torch.linspace(0.05, 20, 20_000, dtype=torch.float64)
    quadratic = (T * torch.linalg.solve(C, T)).sum()
    # ln p(T) / K for each common variance, from its definition, and the best of them
    direct = MultivariateNormal(torch.zeros(n, dtype=torch.float64), C).log_prob(T.mT).mean() + quadratic / (2 * K)
    best = (direct - n / 2 * variances.log() - quadratic / (2 * K * variances)).max()
    constant = n / 2 * (math.log(n * K) - 1 - math.log(2 * math.pi))
    assert _evidence(log_weights, torch.tensor(0.2).double().log()) + constant == pytest.approx(float(best), abs=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    X, T = _problem()
    log_weights = torch.tensor([0.3, -0.5, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    log_noise = torch.tensor(-1.0, dtype=torch.float64)
    K = relevance.kernel_matrix(X, log_weights)
    found = relevance.evidence(K.detach(), log_noise, T)
    assert found is not None
    _, slope, noise_slope = found
    K.backward(slope)
    step = 1e-5
    for i in range(4):
        moved = torch.zeros(4, dtype=torch.float64)
        moved[i] = step
        with torch.no_grad():
            difference = _evidence(log_weights + moved, log_noise) - _evidence(log_weights - moved, log_noise)
        assert log_weights.grad is not None
        assert float(log_weights.grad[i]) == pytest.approx(float(difference) / (2 * step), rel=1e-6, abs=1e-8)
    difference = _evidence(log_weights.detach(), log_noise + step) - _evidence(log_weights.detach(), log_noise - step)
    assert float(noise_slope) == pytest.approx(float(difference) / (2 * step), rel=1e-5)


def test_targets_are_centred_scaled_and_know_nothing_of_unknown_entries() -> None:
    nan = float("nan")
    Y = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, nan], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    T = relevance.targets(Y)
    assert T.shape == (4, 2)  # the second label never varies
    assert torch.allclose(T[:, 0], torch.tensor([0.75, -0.25, -0.25, -0.25]) / (0.25 * 0.75) ** 0.25)
    assert torch.allclose(T[:, 1], torch.tensor([-2.0, 0.0, 1.0, 1.0]) / 3 / (1 / 6) ** 0.25)


def test_many_labels_enter_by_their_leading_components(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = (torch.rand(30, 3, generator=torch.Generator().manual_seed(0)) < 0.4).float().repeat(1, 4)
    whole = relevance.targets(Y)
    monkeypatch.setattr(relevance, "RANK", 3)  # four copies of three labels have rank three
    few = relevance.targets(Y)
    assert few.shape == (30, 3)
    assert torch.allclose(few @ few.mT, whole @ whole.mT, atol=1e-4)


def _one_of_ten(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Labels that follow two of ten features."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10)).astype(np.float32)
    Y = np.stack([X[:, 0] > 0, X[:, 3] > 0, X[:, 0] * X[:, 3] > 0], axis=1).astype(np.float32)
    return X, Y


def test_features_that_say_something_weigh_more() -> None:
    X, Y = (torch.as_tensor(part) for part in _one_of_ten())
    weights = relevance.feature_weights(X, Y)
    assert weights.mean() == pytest.approx(1, abs=1e-5)
    assert min(weights[[0, 3]]) > 2 * np.delete(weights, [0, 3]).max()
    assert (weights == relevance.feature_weights(X, Y)).all()


def test_labels_that_do_not_vary_weigh_nothing() -> None:
    weights = relevance.feature_weights(torch.randn(20, 4), torch.ones(20, 3))
    assert weights.tolist() == [1.0] * 4


def test_equal_rows_and_constant_features_are_borne() -> None:
    X, Y = (torch.as_tensor(part[:40]) for part in _one_of_ten())
    twice = torch.cat([X, X])
    twice[:, 5] = 7.0
    weights = relevance.feature_weights(twice, torch.cat([Y, Y]))
    assert np.isfinite(weights).all()
    assert weights[0] > weights[1]


def test_the_search_takes_weights_where_they_help_and_keeps_them_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = _one_of_ten()
    monkeypatch.setattr(search, "CANDIDATES", WEIGHTS)
    model = ESMCClassifier().fit(X[:200], Y[:200])
    assert model.settings_ is not None
    assert model.settings_.relevance
    weights = model.feature_map_.weights
    assert weights is not None
    assert weights[0] > 2 * weights[1]
    again = ESMCClassifier.load(model.save(tmp_path / "weighted.esmc"))
    assert (again.feature_map_.weights == weights).all()
    assert np.array_equal(again.decision_function(X[200:]), model.decision_function(X[200:]))


def test_a_matrix_without_a_factor_ends_the_steps_at_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = (torch.as_tensor(part) for part in _one_of_ten())
    inner, calls = relevance.evidence, iter(range(100))
    monkeypatch.setattr(relevance, "evidence", lambda *given: inner(*given) if next(calls) < 5 else None)
    weights = relevance.feature_weights(X, Y)
    assert next(calls) == 6
    assert 1 < weights[0] < 3
    assert relevance.evidence(-torch.eye(3), torch.tensor(-9.0), torch.ones(3, 1)) is None


def test_wide_features_are_not_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = _one_of_ten(60)
    monkeypatch.setattr(search, "CANDIDATES", WEIGHTS)
    tried = []
    for most in (10, 9):
        monkeypatch.setattr("esmc_pyro.relevance.FEATURES", most)
        tried.append(list(search.choose(X, torch.as_tensor(Y), None, {}, ("standard",)).tried["relevance"]))
    assert tried == [[False, True], [False]]


def test_weights_are_kept_in_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = _one_of_ten(60)
    settings, y = Settings(features="standard", relevance=True), torch.as_tensor(Y)
    made, x = default.map_features(X, y, settings, checkpoint=Checkpoint(tmp_path / "kept"))
    monkeypatch.setattr(default, "feature_weights", lambda *_: pytest.fail("they are in the file"))
    again, same = default.map_features(X, y, settings, checkpoint=Checkpoint(tmp_path / "kept"))
    assert torch.equal(x, same)
    assert (made.weights == again.weights).all()
    with pytest.raises(CheckpointError, match="other X"):
        default.map_features(X + 1, y, settings, checkpoint=Checkpoint(tmp_path / "kept"))


def test_float64_and_the_callers_rows_are_left_alone() -> None:
    X, Y = _one_of_ten(60)
    before = X.copy()
    default.map_features(X, torch.as_tensor(Y, dtype=torch.float64), Settings(features="identity", relevance=True))
    assert (before == X).all()
    weights = relevance.feature_weights(torch.as_tensor(X).double(), torch.as_tensor(Y))
    assert weights.dtype == np.float32
    assert weights == pytest.approx(relevance.feature_weights(torch.as_tensor(X), torch.as_tensor(Y)), rel=1e-2)


def test_unlabelled_rows_are_weighted_like_the_others() -> None:
    X, Y = _one_of_ten()
    made, x = default.map_features(X, torch.as_tensor(Y[:100]), Settings(features="standard", relevance=True))
    assert torch.equal(x, made(X))
    plain, _ = default.map_features(X, torch.as_tensor(Y[:100]), Settings(features="standard"))
    assert plain.weights is None
    assert torch.allclose(x, plain(X) * torch.as_tensor(made.weights))


def test_ctrl_c_while_weights_are_learned_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    X, Y = _one_of_ten(60)
    monkeypatch.setattr(search, "CANDIDATES", WEIGHTS)
    monkeypatch.setattr(default, "feature_weights", stop)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",))
    assert found.interrupted
    assert found.settings == Settings(features="standard")
    assert len(found.z)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_mapped_as_those_that_were_fitted(kind, make_data) -> None:
    """To the last bit, so that a pseudo-instance is known again as the row it is."""
    X, Y = make_data(40)
    settings = Settings(features=kind, relevance=True)
    made, x = default.map_features(np.abs(X), torch.as_tensor(Y), settings)
    assert torch.equal(made(np.abs(X)), x)
