"""Small multi-label data, and a search that compares nothing, so that a fit takes a moment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from esmc_pyro import ESMCClassifier, default, search

N, F, K = 40, 4, 3


@pytest.fixture(autouse=True)
def _short_search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """One candidate, and no more steps than epochs for few rows."""
    patch.setattr(search, "CANDIDATES", ())
    patch.setattr(search, "MANY_CANDIDATES", ())
    for name in ("LEAST_STEPS", "CURVED_STEPS"):
        patch.setattr(default, name, 1)


def made(rows: int = N, labels: int = K, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows x F) and labels (rows x labels) that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, F)).astype(np.float32)
    slopes = np.random.default_rng(7).normal(size=(F, labels))
    return X, (X @ slopes + 0.3 * rng.normal(size=(rows, labels)) > 0.5).astype(np.float32)


@pytest.fixture(scope="session")
def make_data() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """``made``."""
    return made


@pytest.fixture(scope="session")
def fitted() -> ESMCClassifier:
    """A fit to ``made()``, not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return ESMCClassifier(features="standard").fit(*made())
