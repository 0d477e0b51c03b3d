"""Calibration of the default: by held-out rows of models like those that are fitted to all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from esmc_pyro import ESMCClassifier, calibration, default, search
from esmc_pyro.models import Bernoulli

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def _few_candidates(_short_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CANDIDATES", (({"amplitude": 1.0},), ({"curvature": 1.0},)))
    monkeypatch.setattr(default, "EPOCHS", 2)
    monkeypatch.setattr(default, "CURVED_EPOCHS", 1)


def choose(X: np.ndarray, Y: np.ndarray) -> search.Search:
    return search.choose(X, torch.as_tensor(Y), Bernoulli(), {}, ("standard",))


def judge_members(found: search.Search, X: np.ndarray, Y: np.ndarray, **options: Any) -> search.Search:
    return search.judge_members(found, X, torch.as_tensor(Y), Bernoulli(), **options)


def test_members_are_judged_once_more_as_they_will_be_fitted(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    assert judge_members(found := choose(X, Y), X, Y) is found  # the search's own have as many pseudo-instances
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    monkeypatch.setattr(search, "SEARCH_ROWS", len(Y) - 20)
    monkeypatch.setattr(search, "JUDGES", 1)
    found = choose(X, Y)
    assert judge_members(found, X, Y, pseudo=10) is found
    judged = judge_members(found, X, Y)
    held, rest = search.hold_out(len(Y), 0, most=len(Y))
    assert len(held) == len(Y) // 5
    assert torch.equal(judged.Y, torch.as_tensor(Y[held]))
    fitted = default.fit_stack(X[rest], torch.as_tensor(Y[rest]), found.members, Bernoulli())
    torch.testing.assert_close(judged.z, fitted.predict(X[held]))
    assert (judged.members, judged.settings) == (found.members, found.settings)


def test_ctrl_c_while_members_are_judged_keeps_what_the_search_held_out(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    found = choose(X, Y)

    def stop(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(default, "fit_settings", stop)
    judged = judge_members(found, X, Y)
    assert judged.interrupted
    assert torch.equal(judged.z, found.z)
    assert judge_members(judged, X, Y) is judged  # and nobody waits for it after Ctrl-C of the search


def test_probabilities_are_calibrated_by_members_as_fitted(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    asked: list[search.Search] = []
    inner = search.judge_members

    def watch(*args: Any, **options: Any) -> search.Search:
        asked.append(inner(*args, **options))
        return asked[-1]

    monkeypatch.setattr(search, "judge_members", watch)
    model = ESMCClassifier(features="standard", likelihood="bernoulli").fit(X, Y)
    (judged,) = asked
    assert model.calibration_ == pytest.approx(calibration.fit(judged.z, judged.Y), rel=1e-5)
