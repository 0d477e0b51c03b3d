"""Feature maps: which kind is chosen, what each computes, and what happens to features that are wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import norm
from threadpoolctl import threadpool_limits

from esmc_pyro import feature_map
from esmc_pyro.feature_map import KINDS, FeatureMap, candidate_kinds, choose_kind, is_wide

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(30, 6)).astype(np.float32)
POSITIVE = np.abs(NORMAL)
CHOSEN: dict[str, tuple[np.ndarray, str]] = {
    "negative numbers": (NORMAL, "standard"),
    "positive numbers": (POSITIVE, "standard"),
    "zero or one": ((NORMAL > 0).astype(float), "unit"),
    "nothing but zeros": (np.zeros((4, 3)), "unit"),
    "counts": (RNG.poisson(0.5, size=(30, 6)), "hellinger"),
    "ages and marks": (RNG.integers(1, 90, size=(30, 6)), "standard"),
    "histograms": (POSITIVE / POSITIVE.sum(1, keepdims=True), "hellinger"),
    "equal sums but for an offset": (5000 + NORMAL, "standard"),
    "unix times": (1.7e9 + 3600 * NORMAL.astype(float), "standard"),
    "unix times of one second": (1.7e9 + NORMAL.astype(float), "standard"),
    "shares of an offset": (5000 + NORMAL - NORMAL.mean(1, keepdims=True), "hellinger"),
    "one-hots and an income": (np.c_[np.eye(10)[RNG.integers(10, size=30)], np.exp(9 + NORMAL[:, 0])], "standard"),
    "one-hots and an age": (np.c_[np.eye(10)[RNG.integers(10, size=30)], RNG.integers(18, 90, 30)], "standard"),
    "one-hots and an income of some": (
        np.c_[np.eye(10)[RNG.integers(10, size=30)], np.where(RNG.random(30) < 0.85, np.exp(9 + NORMAL[:, 0]), 0)],
        "standard",
    ),
    "words and one in every row": (np.c_[np.ones(30), np.where(RNG.random((30, 60)) < 0.1, 0.7, 0)], "unit"),
    "counts and one in every row": (np.c_[np.full(30, 2), RNG.poisson(0.2, size=(30, 60))], "hellinger"),
    "mostly zero": (np.where(RNG.random((30, 40)) < 0.1, 0.3 + RNG.random((30, 40)), 0), "unit"),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, sparse.csr_matrix, sparse.csc_array])
def test_the_values_choose_the_kind(name: str, container: Any) -> None:
    X, kind = CHOSEN[name]
    assert choose_kind(container(X)) == kind


def test_candidates() -> None:
    assert candidate_kinds(NORMAL) == ("standard", "identity", "quantile")
    assert candidate_kinds(CHOSEN["counts"][0]) == ("hellinger", "standard")
    many = np.tile(CHOSEN["counts"][0], (1, 20))
    assert candidate_kinds(many) == ("hellinger",)
    assert candidate_kinds(CHOSEN["mostly zero"][0]) == ("unit",)
    for container in (np.asarray, sparse.csr_array):
        table = [container(CHOSEN[f"one-hots and an {name}"][0]) for name in ("income", "age")]
        assert candidate_kinds(table[0]) == ("standard", "identity", "quantile", "unit")
        assert candidate_kinds(table[1]) == ("standard", "identity", "quantile", "hellinger", "unit")
    whole = CHOSEN["ages and marks"][0]
    assert candidate_kinds(whole) == ("standard", "identity", "quantile", "hellinger")
    assert candidate_kinds(-whole) == candidate_kinds(whole[:, :1]) == ("standard", "identity", "quantile")
    assert candidate_kinds(NORMAL, "unit") == ("unit",)
    with pytest.raises(ValueError, match=r"features must be one of .*; got 'log'"):
        candidate_kinds(NORMAL, "log")


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_formulas(container: Any) -> None:
    X, new = POSITIVE, POSITIVE[::-1][:5] + 1
    shares = (np.arange(200) + 0.5) / 200
    nodes = np.quantile(X, shares, axis=0)
    expected = {
        "identity": new,
        "standard": (new - X.mean(0)) / X.std(0),
        "quantile": norm.ppf([[np.interp(v, nodes[:, d], shares) for d, v in enumerate(row)] for row in new]),
        "hellinger": np.sqrt(new / new.sum(1, keepdims=True)),
        "unit": new / np.linalg.norm(new, axis=1, keepdims=True),
    }
    assert set(expected) == set(KINDS)
    for kind, values in expected.items():
        mapped = FeatureMap.from_data(container(X), kind)(container(new))
        assert np.allclose(mapped.numpy(), values, atol=1e-5), kind


def test_quantiles_make_any_column_normal() -> None:
    X = np.c_[np.exp(3 * NORMAL[:, :1]), NORMAL[:, :1] ** 3].repeat(20, axis=0).astype(np.float32)
    mapped = FeatureMap.from_data(X, "quantile")(X).numpy()
    assert np.allclose(mapped[:, 0], mapped[:, 1], atol=0.02)  # what only the order decides; the nodes are rounded
    assert np.abs(mapped.mean(0)).max() < 0.05
    assert np.abs(mapped.std(0) - 1).max() < 0.05


def test_equal_values_share_their_middle_quantile_and_values_beyond_the_ends_are_the_ends() -> None:
    X = np.repeat([0.0, 1.0, 2.0], [600, 200, 200])[:, None].astype(np.float32)
    mapped = FeatureMap.from_data(X, "quantile")(np.array([[0.0], [1.0], [2.0], [9.0], [-9.0]], dtype=np.float32))
    assert np.allclose(mapped.numpy()[:3, 0], norm.ppf([0.3, 0.7, 0.9]), atol=0.01)
    assert np.allclose(mapped.numpy()[3:, 0], norm.ppf([399 / 400, 1 / 400]), atol=1e-5)
    assert FeatureMap.from_data(np.ones((9, 1)), "quantile")(np.ones((2, 1))).tolist() == [[0.0], [0.0]]


def test_columns_that_do_not_vary_say_nothing() -> None:
    """By rounding, or at all; a rare feature does vary."""
    X = np.tile(np.float32([0.1, 5.0, 0.0]), (400, 1))
    X[::2, 0] = np.nextafter(np.float32(0.1), 1)
    X[7, 2] = 1
    made = FeatureMap.from_data(X, "quantile")
    new = np.float32([[0.1, 5.0, 0.0], [0.2, 5.1, 1.0], [-3.0, 0.0, 0.0]])
    assert np.allclose(made(X).numpy()[:, :2], 0, atol=1e-6)
    assert np.allclose(made(new).numpy()[:, :2], 0, atol=1e-6)
    assert np.allclose(made(new).numpy()[:, 2], [0.0, norm.ppf(399 / 400), 0.0], atol=0.02)
    standard = FeatureMap.from_data(X, "standard")
    assert np.allclose(standard(new).numpy()[:, :2], 0, atol=1e-6)
    assert np.allclose(standard(new).numpy()[:, 2], (new[:, 2] - X[:, 2].mean()) / X[:, 2].std(), atol=1e-4)


def test_values_beyond_float32_are_far_away_not_infinite() -> None:
    X = NORMAL * np.float32(0.01)
    new = X[:2].copy()
    new[0, 1], new[1, 2] = 9.96921e36, -3e38
    mapped = FeatureMap.from_data(X, "standard")(new).numpy()
    assert mapped[0, 1] == -mapped[1, 2] == feature_map.FARTHEST
    assert np.allclose(mapped[0, 2:], FeatureMap.from_data(X, "standard")(X).numpy()[0, 2:])


def test_rows_of_zeros_and_constant_columns_stay_finite() -> None:
    X = np.c_[POSITIVE, np.full(30, 5.0), np.full(30, 1e7)].astype(np.float32)
    X[3] = 0
    for kind in KINDS:
        assert np.isfinite(FeatureMap.from_data(X, kind)(X).numpy()).all()
    nearly = (9e5 + np.arange(10) / 8).astype(np.float32)[:, None]  # float32 has eighths there
    assert np.allclose(FeatureMap.from_data(nearly, "standard")(nearly).std(correction=0), 1)
    constant = np.full((10, 1), 3.3, dtype=np.float32)
    assert np.allclose(FeatureMap.from_data(constant, "standard")(constant).numpy(), 0)


def test_columns_of_very_different_size_are_all_scaled() -> None:
    X = NORMAL * np.array([1e-5, 1e6, 1, 1, 1, 1], dtype=np.float32) + np.array([0, 1e6, 0, 0, 0, 0], dtype=np.float32)
    assert np.allclose(FeatureMap.from_data(X, "standard")(X).numpy().std(0), 1, atol=1e-3)


def test_the_callers_array_is_not_shared() -> None:
    X = NORMAL.copy()
    mapped = FeatureMap.from_data(X, "identity")(X)
    mapped += 1
    assert np.array_equal(X, NORMAL)


def test_the_projection_depends_on_the_seed_and_not_on_the_threads() -> None:
    X = sparse.random_array((1500, 3000), density=0.01, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    made = []
    for threads, seed in ((1, 0), (2, 0), (2, 1)):
        with threadpool_limits(threads):
            made.append(FeatureMap.from_data(X, "unit", seed, project=True).projection)
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[1], made[2])


def _scores_of(made: FeatureMap, X: np.ndarray) -> np.ndarray:
    columns = X @ made.projection
    return FeatureMap.from_data(columns, "quantile")(columns).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_wide_sparse_features_are_projected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # eight columns of rank four: a projection on four directions keeps every inner product of the mapped rows
    rng = np.random.default_rng(1)
    pattern = np.kron(np.eye(4), np.ones((1, 2)))
    X = (rng.integers(1, 5, size=(40, 1)) * pattern[rng.integers(0, 4, size=40)]).astype(np.float32)
    whole = FeatureMap.from_data(sparse.csr_array(X), kind)(sparse.csr_array(X)).numpy()
    monkeypatch.setattr(feature_map, "DENSE_LIMIT", 100)
    monkeypatch.setattr(feature_map, "PROJECTED", 4)
    made = FeatureMap.from_data(sparse.csr_array(X), kind)
    assert made.projection is not None
    mapped = made(sparse.csr_array(X)).numpy()
    assert mapped.shape == (40, 4)
    if kind == "quantile":  # of the projected columns
        assert np.allclose(mapped, _scores_of(made, X), atol=1e-4)
    elif kind == "standard":  # means and deviations are those of the projected columns
        assert np.allclose(mapped.mean(0), 0, atol=1e-5)
        assert np.allclose(mapped.std(0), 1, atol=1e-4)
    else:
        assert np.allclose(mapped @ mapped.T, whole @ whole.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.2, 0.8])  # what is mostly zero is projected as a sparse copy
@pytest.mark.parametrize("kind", KINDS)
def test_wide_words_and_shares_are_projected_dense_or_sparse(
    kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    X = (rng.random((40, 20)) * (rng.random((40, 20)) < share)).astype(np.float32)
    monkeypatch.setattr(feature_map, "WIDE", 19)
    monkeypatch.setattr(feature_map, "PROJECTED", 6)
    dense, thin = (FeatureMap.from_data(rows, kind) for rows in (X, sparse.csr_array(X)))
    is_projected = kind in ("unit", "hellinger")
    assert is_wide(X, kind) is is_wide(sparse.csr_array(X), kind) is is_projected
    assert (dense.projection is not None) is (thin.projection is not None) is is_projected
    assert dense(X).shape == (40, 6 if is_projected else 20)
    assert np.allclose(dense(X), thin(sparse.csr_array(X)), atol=1e-5)
    assert np.allclose(dense(X), dense(sparse.csr_array(X)), atol=1e-5)
    assert not is_wide(X[:, :19], kind)
    assert not is_wide(X[:6], kind)  # six rows do not know six directions
    assert str(dense) == (f"{kind}, projected to 6" if is_projected else kind)
    dense.weights = np.ones(6, np.float32)
    assert str(dense).endswith(", weighted")


def test_few_rows_that_must_be_projected_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sparse.csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], np.float32))
    monkeypatch.setattr(feature_map, "DENSE_LIMIT", 1)
    mapped = FeatureMap.from_data(X, "unit")(X).numpy()
    assert np.allclose(mapped @ mapped.T, (X @ X.T).toarray() / 2, atol=1e-6)


def test_rows_of_nothing_are_projected_without_a_warning() -> None:
    X = np.zeros((6, 9), np.float32)
    assert not FeatureMap.from_data(X, "unit", project=True)(X).any()
