"""Calibration of the default: by held-out rows of models like those that are fitted to all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from esmc_pyro import ESMCClassifier, calibration, default, judge, search
from esmc_pyro.folds import Folds
from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError
from esmc_pyro.models import Bernoulli

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def _few_candidates(_short_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CANDIDATES", (({"amplitude": 1.0},), ({"curvature": 1.0},)))
    monkeypatch.setattr(default, "EPOCHS", 2)
    monkeypatch.setattr(default, "CURVED_EPOCHS", 1)


def choose(X: np.ndarray, Y: np.ndarray) -> judge.Search:
    return search.choose(X, torch.as_tensor(Y), Bernoulli(), {}, ("standard",))


def judge_members(found: judge.Search, X: np.ndarray, Y: np.ndarray, **options: Any) -> judge.Search:
    return search.judge_members(found, X, torch.as_tensor(Y), Bernoulli(), **options)


def test_members_are_judged_once_more_as_they_will_be_fitted(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    assert judge_members(found := choose(X, Y), X, Y) is found  # the search's own have as many pseudo-instances
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    assert judge_members(found, X, Y, pseudo=10) is found
    monkeypatch.setattr(search, "SEARCH_ROWS", len(Y) - 20)
    monkeypatch.setattr(search, "JUDGES", 1)
    found = choose(X, Y)
    options: list[dict[str, Any]] = [{}, {"pseudo": 10}, {"seed": 3}, {"epochs": 1}, {"lr": 0.01}]
    for given in options:
        judged = judge_members(found, X, Y, **given)
        held, rest = search.hold_out(len(Y), given.get("seed", 0), most=len(Y))
        assert len(held) == len(Y) // 5
        assert torch.equal(judged.Y, torch.as_tensor(Y[held]))
        fitted = default.fit_stack(X[rest], torch.as_tensor(Y[rest]), found.members, Bernoulli(), **given)
        torch.testing.assert_close(judged.z, fitted.predict(X[held]))
        assert (judged.members, judged.settings) == (found.members, found.settings)


@pytest.mark.parametrize("given", [{"epochs": 1}, {"lr": 0.01}])
def test_another_training_has_another_calibration(given: dict[str, Any], make_data: Make) -> None:
    X, Y = make_data()
    found = choose(X, Y)
    judged = judge_members(found, X, Y, **given)
    assert torch.equal(judged.Y, found.Y)  # of so few rows, the folds of the search
    assert not torch.allclose(judged.z, found.z)


def test_settings_that_nobody_searched_are_judged_once(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    counted: list[Any] = []
    inner = default.first_layer
    monkeypatch.setattr(default, "first_layer", lambda *a: counted.append(a) or inner(*a))
    model = ESMCClassifier(search=False, features="standard").fit(X, Y)
    assert len(counted) == 5 + 1  # the folds and the fit
    assert model.calibration_ != (1.0, 0.0)
    assert len(model.search_) == 0


def test_members_are_projected_as_the_fit_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, Y = sparse.csr_array(rng.random((60, 30)) < 0.2).astype(np.float32), (rng.random((60, 3)) < 0.4).astype(float)
    monkeypatch.setattr("esmc_pyro.feature_map.PROJECTED", 5)
    y = torch.as_tensor(Y)
    found = search.choose(X, y, Bernoulli(), {}, ("unit",), candidates=())
    dense, narrow = (search.judge_members(found, X, y, Bernoulli(), project=project) for project in (False, True))
    assert not torch.allclose(dense.z, narrow.z)
    widths = [default.fit_stack(X, y, found.members, project=p).lead.feature_map(X).shape[1] for p in (False, True)]
    assert widths == [30, 5]
    kept = Checkpoint(tmp_path / "kept")
    search.judge_members(found, X, y, Bernoulli(), project=False, checkpoint=kept)
    with pytest.raises(CheckpointError, match="of another fit, with other projected"):
        search.judge_members(found, X, y, Bernoulli(), project=True, checkpoint=Checkpoint(tmp_path / "kept"))


def test_z_that_are_not_finite_leave_those_of_the_search(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    found = choose(X, Y)
    monkeypatch.setattr(Folds, "predict", lambda self, x, held, settings: torch.full(Y.shape, torch.nan))
    assert judge_members(found, X, Y, epochs=1) is found


def test_a_checkpoint_knows_how_many_labels_a_step_looked_at(
    make_data: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",), candidates=())
    search.judge_members(found, X, torch.as_tensor(Y), None, checkpoint=Checkpoint(tmp_path / "kept"))
    monkeypatch.setattr(default, "MANY_LABELS", 2)
    with pytest.raises(CheckpointError, match="of another fit, with other absent"):
        search.judge_members(found, X, torch.as_tensor(Y), None, checkpoint=Checkpoint(tmp_path / "kept"))


def test_a_checkpoint_keeps_members_that_were_judged(
    make_data: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    found = choose(X, Y)
    first = judge_members(found, X, Y, checkpoint=Checkpoint(tmp_path / "kept"))

    def stop(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Folds, "predict", stop)
    again = judge_members(found, X, Y, checkpoint=Checkpoint(tmp_path / "kept"))
    assert torch.equal(again.z, first.z)
    with pytest.raises(CheckpointError, match="of another fit, with other training"):
        judge_members(found, X, Y, checkpoint=Checkpoint(tmp_path / "kept"), epochs=1)


def test_ctrl_c_while_members_are_judged_keeps_what_the_search_held_out(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    found = choose(X, Y)

    def stop(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Folds, "predict", stop)
    judged = judge_members(found, X, Y)
    assert judged.interrupted
    assert torch.equal(judged.z, found.z)
    assert judge_members(judged, X, Y) is judged  # and nobody waits for it after Ctrl-C of the search


def test_probabilities_are_calibrated_by_members_as_fitted(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    asked: list[judge.Search] = []
    inner = search.judge_members

    def watch(*args: Any, **options: Any) -> judge.Search:
        asked.append(inner(*args, **options))
        return asked[-1]

    monkeypatch.setattr(search, "judge_members", watch)
    model = ESMCClassifier(features="standard", likelihood="bernoulli").fit(X, Y)
    (judged,) = asked
    assert model.calibration_ == pytest.approx(calibration.fit(judged.z, judged.Y), rel=1e-5)
    assert not model.posterior_.interrupted


def test_a_model_remembers_that_its_calibration_was_cut_short(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    inner = search.judge_members
    monkeypatch.setattr(search, "judge_members", lambda *a, **o: replace(inner(*a, **o), interrupted=True))
    assert ESMCClassifier(features="standard").fit(X, Y).posterior_.interrupted
