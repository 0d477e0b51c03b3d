"""What goes in and comes out: frames, sparse matrices, unknown labels, small and odd data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from scipy import sparse
from sklearn.metrics import average_precision_score, get_scorer, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict

from esmc_pyro import ESMCClassifier
from esmc_pyro.feature_map import FeatureMap
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.metrics import lrap
from esmc_pyro.models import ESMC

Make = Callable[..., tuple[np.ndarray, np.ndarray]]
CONTAINERS = [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix, sparse.csc_matrix]


def estimator(**options: Any) -> ESMCClassifier:
    return ESMCClassifier(**{"features": "standard", "epochs": 3} | options)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("values", ["words", "weights", "counts"])
def test_sparse_and_dense_give_the_same(make_data: Make, container: Any, values: str) -> None:
    X, Y = make_data()
    X = {"words": (X > 1).astype(float), "weights": np.maximum(X - 1, 0), "counts": np.round(np.maximum(X, 0))}[values]
    dense = estimator(features="auto").fit(X, Y)
    loose = estimator(features="auto").fit(container(X), container(Y))
    assert loose.feature_map_.kind == dense.feature_map_.kind
    assert np.allclose(loose.decision_function(container(X)), dense.decision_function(X), atol=1e-4)
    assert loose.score(container(X), container(Y)) == pytest.approx(dense.score(X, Y), abs=1e-6)


def test_repeated_entries_of_a_sparse_matrix_add_up(make_data: Make) -> None:
    X, Y = make_data()
    words = sparse.csr_array((X > 1).astype(np.float32))
    twice = sparse.csr_array((words.data.repeat(2), words.indices.repeat(2), 2 * words.indptr), shape=words.shape)
    loose, dense = (estimator(features="auto").fit(rows, Y) for rows in (twice, twice.toarray()))
    assert loose.feature_map_.kind == dense.feature_map_.kind == "hellinger"  # counts, since they are 2
    assert np.allclose(loose.decision_function(twice), dense.decision_function(twice.toarray()), atol=1e-4)
    assert twice.nnz == 2 * words.nnz  # the caller's is as it was


@pytest.mark.parametrize("options", [{"search": False}, {"inference": "svi"}])
def test_a_kernel_of_the_users_sees_wide_words_as_they_came(
    make_data: Make, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    X, Y = make_data()
    monkeypatch.setattr("esmc_pyro.feature_map.WIDE", 3)
    monkeypatch.setattr("esmc_pyro.feature_map.PROJECTED", 2)
    X = (X > 0).astype(np.float32)
    for kernel, width in ((RBF(4, lengthscale=torch.ones(4)), 4), ("matern12", 2)):
        model = estimator(features="auto", kernel=kernel, **options).fit(X, Y)
        assert model.model_.layers[0].pseudo_instances.shape[1] == width


def test_a_guide_of_the_users_sees_as_many_features_as_it_knows(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    monkeypatch.setattr("esmc_pyro.feature_map.WIDE", 3)
    monkeypatch.setattr("esmc_pyro.feature_map.PROJECTED", 2)
    X, y = (X > 0).astype(np.float32), torch.as_tensor(Y)
    for width in (4, 2):
        x = FeatureMap.from_data(X, "unit", project=width == 2)(X)
        guide = DoublyStochasticGuide(ESMC.from_data(x, y, [2], pseudo=5), x, y)
        model = estimator(features="unit", guide=guide).fit(X, Y)
        assert model.feature_map_(X).shape[1] == width


def test_frames_keep_names_and_index(make_data: Make) -> None:
    X, Y = make_data()
    index = [f"row{i}" for i in range(len(X))]
    features = pd.DataFrame(X, index=index, columns=list("abcd"))
    labels = pd.DataFrame(Y, columns=["sky", "sea", "sand"])
    model = estimator().fit(features, labels)
    assert list(model.feature_names_in_) == list("abcd")
    assert model.label_names_ == ["sky", "sea", "sand"]
    for method in ("decision_function", "predict_proba", "suitability", "predict"):
        out = getattr(model, method)(features)
        assert isinstance(out, pd.DataFrame)
        assert list(out.index) == index
        assert list(out.columns) == ["sky", "sea", "sand"]
    plain = estimator().fit(X, Y)
    assert np.array_equal(model.decision_function(features).to_numpy(), plain.decision_function(X))
    assert set(model.complete(features, labels)["label"]) <= {"sky", "sea", "sand"}
    numbered = labels.set_axis([10, 20, 30], axis=1)
    out = estimator().fit(features, numbered).predict(features)
    assert out.columns.equals(numbered.columns)


def test_column_order_is_checked(make_data: Make) -> None:
    X, Y = make_data()
    features, labels = pd.DataFrame(X, columns=list("abcd")), pd.DataFrame(Y, columns=["p", "q", "r"])
    model = estimator().fit(features, labels)
    with pytest.raises(ValueError, match="same order"):
        model.predict(features[list("bacd")])
    for call in (model.score, model.complete, model.partial_fit):
        with pytest.raises(ValueError, match="in the same order; got them in another order"):
            call(features, labels[["q", "p", "r"]])
        with pytest.raises(ValueError, match=r"got unknown \['s'\] and no \['r'\]"):
            call(features, labels.rename(columns={"r": "s"}))


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean"])
def test_nullable_columns_are_unknown_where_missing(make_data: Make, dtype: str) -> None:
    X, Y = make_data()
    labels = pd.DataFrame(Y > 0.5).astype(dtype)
    labels.iloc[3, 1] = pd.NA
    Y[3, 1] = np.nan
    by_frame, by_array = estimator().fit(X, labels), estimator().fit(X, Y)
    assert np.array_equal(by_frame.decision_function(X), by_array.decision_function(X))


def test_rows_of_nan_are_unlabelled_instances(make_data: Make) -> None:
    X, Y = make_data()
    more = np.random.default_rng(2).normal(size=(9, X.shape[1])).astype(np.float32)
    unknown = np.full((9, Y.shape[1]), np.nan)
    apart = estimator().fit(X, Y, X_unlabeled=more)
    below = estimator().fit(np.concatenate([X, more]), np.concatenate([Y, unknown]))
    above = estimator().fit(np.concatenate([more, X]), np.concatenate([unknown, Y]))
    assert np.array_equal(apart.decision_function(X), below.decision_function(X))
    assert np.array_equal(apart.decision_function(X), above.decision_function(X))
    # pseudo-instances know which row of the user's data they were
    assert {*apart.pseudo_rows_} == {*range(len(X) + 9)}
    row = above.explain(X[4], n=1)
    assert row["training_row"].tolist() == [4 + 9]
    assert row["labels"].tolist() == [[f"y{k}" for k in np.flatnonzero(Y[4])]]


def test_unknown_entries_are_not_zeros(make_data: Make) -> None:
    X, Y = make_data()
    holes = np.where(np.random.default_rng(1).random(Y.shape) < 0.3, np.nan, Y)
    unknown, zeros = estimator().fit(X, holes), estimator().fit(X, np.nan_to_num(holes))
    assert unknown.predict_proba(X).mean() > zeros.predict_proba(X).mean() + 0.02
    assert unknown.score(X, holes) == pytest.approx(lrap(holes, unknown.decision_function(X)))  # NaN in y is masked
    ranks = np.arange(12.0).reshape(4, 3)
    assert np.isfinite(unknown.score(X[:4], np.where(ranks % 2 == 0, np.nan, 1.0)))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9, 10, 11])
def test_few_rows(make_data: Make, rows: int) -> None:
    X, Y = make_data(rows)
    model = estimator(features="auto").fit(X, Y)
    assert np.isfinite(model.predict_proba(X)).all()
    if rows < 10:
        assert (model.calibration_, model.threshold_) == ((1.0, 0.0), 0.5)
        assert len(model.search_) == 0
    else:
        assert len(model.search_) > 0


ODD = {
    "one label": lambda X, Y: (X, Y[:, :1]),
    "a label without a one": lambda X, Y: (X, np.c_[Y, np.zeros(len(Y))]),
    "a label that is always there": lambda X, Y: (X, np.c_[Y, np.ones(len(Y))]),
    "no one at all": lambda X, Y: (X, np.zeros_like(Y)),
    "a label nobody knows": lambda X, Y: (X, np.c_[Y, np.full(len(Y), np.nan)]),
    "constant features": lambda X, Y: (np.ones_like(X), Y),
    "one constant feature": lambda X, Y: (np.c_[X, np.full(len(X), 1e6)], Y),
    "duplicated rows": lambda X, Y: (np.repeat(X[:10], 4, axis=0), np.repeat(Y[:10], 4, axis=0)),
    "large features": lambda X, Y: (1e5 * X + 1e6, Y),
    "one feature": lambda X, Y: (X[:, :1], Y),
    "most rows unlabelled": lambda X, Y: (X, np.where(np.arange(len(Y))[:, None] < 12, Y, np.nan)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data(make_data: Make, name: str) -> None:
    X, Y = ODD[name](*make_data())
    model = estimator().fit(X, Y)
    p = model.predict_proba(X)
    assert p.shape == Y.shape
    assert ((p >= 0) & (p <= 1)).all()
    assert set(np.unique(model.predict(X))) <= {0, 1}
    assert np.isfinite(model.suitability(X[:3], draws=3)).all()


def test_a_label_that_nobody_knows_is_as_frequent_as_others(make_data: Make) -> None:
    X, Y = make_data()
    Y[:, 1] = np.nan
    model = estimator().fit(X, Y)
    assert abs(model.suitability(X)[:, 1].mean() - np.nanmean(Y)) < 0.15
    assert np.ptp(model.decision_function(X)[:, 1]) < 0.2


def test_a_single_label_is_scored_over_rows(make_data: Make) -> None:
    X, Y = make_data()
    model = estimator().fit(X, Y[:, :1])
    order = model.decision_function(X)[:, 0]
    assert model.score(X, Y[:, :1]) == pytest.approx(roc_auc_score(Y[:, 0], order))
    assert model.score(X, 1 - Y[:, :1]) == pytest.approx(1 - roc_auc_score(Y[:, 0], order))


def test_one_row_beyond_float32_does_not_end_the_fit(make_data: Make) -> None:
    X, Y = make_data()
    X = 0.01 * X
    X[7, 1] = 9.96921e36  # what some files have for a value that is missing
    model = estimator().fit(X, Y)
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("kind", ["standard", "quantile"])
def test_unix_times_keep_their_minutes(make_data: Make, tmp_path: Path, kind: str) -> None:
    """In float32 they would be rounded to two minutes before anything is subtracted from them."""
    X, _ = make_data(200)
    minutes = np.random.default_rng(0).uniform(0, 20, size=200)
    X, Y = np.c_[X[:, :1], 1.7e9 + 60 * minutes], np.c_[minutes > 10, minutes < 5].astype(float)
    model = estimator(features=kind, epochs=30).fit(X[:120], Y[:120])
    scores = model.decision_function(X[120:])
    assert roc_auc_score(Y[120:], scores) > 0.97
    alone = np.concatenate([model.decision_function(X[row : row + 1]) for row in range(120, 130)])
    np.testing.assert_allclose(alone, scores[:10], atol=1e-3)
    model.save(tmp_path / "times.esmc")
    np.testing.assert_array_equal(ESMCClassifier.load(tmp_path / "times.esmc").decision_function(X[120:]), scores)


def test_what_a_masked_array_masks_is_unknown(make_data: Make) -> None:
    X, Y = make_data()
    unknown = np.random.default_rng(0).random(Y.shape) < 0.3
    masked = np.ma.masked_array(np.where(unknown, 0, Y).astype(int), mask=unknown)
    model, same = estimator().fit(X, masked), estimator().fit(X, np.where(unknown, np.nan, Y))
    np.testing.assert_array_equal(model.decision_function(X), same.decision_function(X))


@pytest.mark.parametrize("labels", [1, 2, 3])
@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision"])
def test_scorers_of_scikit_learn_see_the_probability_of_a_one(make_data: Make, labels: int, scoring: str) -> None:
    X, Y = make_data(90)
    model = estimator(epochs=30).fit(X[:60], Y[:60, :labels])
    metric = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}[scoring]
    expected = metric(Y[60:, :labels], model.decision_function(X[60:]))
    assert get_scorer(scoring)(model, X[60:], Y[60:, :labels]) == pytest.approx(expected, abs=1e-6)
    assert expected > 0.8


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_scikit_learn_can_predict_fold_by_fold(make_data: Make, labels: int, method: str) -> None:
    X, Y = make_data()
    found = cross_val_predict(estimator(), X, Y[:, :labels], cv=KFold(2), method=method)
    model = estimator().fit(X[20:], Y[20:, :labels])
    np.testing.assert_array_equal(found[:20], getattr(model, method)(X[:20]))


def test_rows_of_a_frame_are_named_beside_their_positions(make_data: Make) -> None:
    X, Y = make_data()
    order = np.random.default_rng(0).permutation(len(X))
    frame, labels = pd.DataFrame(X, index=order), pd.DataFrame(Y, index=order, columns=list("abc"))
    frame.columns = [f"x{i}" for i in range(X.shape[1])]
    model = estimator().fit(frame, labels)
    found = model.complete(frame, labels, n=8)
    assert found["index"].tolist() == order[found["row"]].tolist()
    assert all(labels.loc[index, label] == 0 for index, label in zip(found["index"], found["label"], strict=True))
    asked = model.suggest_annotations(frame, n=4)
    assert asked["index"].tolist() == order[asked["row"]].tolist()
    assert "index" not in model.complete(frame.reset_index(drop=True), labels, n=1)


def test_a_column_that_did_not_vary_says_nothing(make_data: Make) -> None:
    X, Y = make_data()
    X = np.c_[X, np.full(len(X), 7.0)]
    model = estimator(features="standard").fit(X, Y)
    for value, near in ((57, 1e-6), (9.96921e36, 0.05)):
        moved = np.c_[X[:, :-1], np.full(len(X), value)]
        assert np.allclose(model.predict_proba(moved), model.predict_proba(X), atol=near)


@pytest.mark.parametrize(("options", "M"), [({}, 12), ({"inference": "svi"}, 20)])
def test_more_pseudo_instances_than_rows(make_data: Make, options: dict[str, Any], M: int) -> None:
    X, Y = make_data(12)
    model = estimator(pseudo=20, **options).fit(X, Y)
    assert model.model_.layers[0].pseudo_count == M  # the default has none twice
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize(("offset", "spread"), [(1e6, 0.1), (1e5, 0.01), (2e6, 0.1)])
def test_columns_that_vary_little_beside_their_size_count(make_data: Make, offset: float, spread: float) -> None:
    X, Y = make_data()
    model, moved = estimator().fit(X, Y), offset + spread * X.astype(float)
    far = estimator().fit(moved, Y)
    assert np.corrcoef(model.decision_function(X).ravel(), far.decision_function(moved).ravel())[0, 1] > 0.999


def test_tiny_words_are_words() -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 30)) < 0.15, rng.random((60, 30)), 0)
    for tiny in (1e-25, 1e-30):
        one, other = (FeatureMap.from_data(part, "unit")(part) for part in (X, tiny * X))
        torch.testing.assert_close(one, other)
        thin = sparse.csr_array(tiny * X)
        torch.testing.assert_close(one, FeatureMap.from_data(thin, "unit")(thin))


def test_missing_values_of_pandas_are_unknown_in_an_array_too(make_data: Make) -> None:
    X, Y = make_data()
    Y[3, 1] = np.nan
    mixed = Y.astype(object)
    mixed[3, 1] = pd.NA
    np.testing.assert_array_equal(estimator().fit(X, mixed).predict_proba(X), estimator().fit(X, Y).predict_proba(X))


def test_a_row_alone_is_the_row_among_others_where_columns_are_large(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(500, 3000, 40), 1000.1 + 1e-5 * rng.normal(size=40)]  # float32 has none of the second
    Y = np.c_[X[:, 1] > 1000.1, X[:, 0] > 1500].astype(float)
    model = estimator().fit(X, Y)
    for one in (model, ESMCClassifier.load(model.save(tmp_path / "large.esmc"))):
        alone = np.concatenate([one.predict_proba(row[None]) for row in X])
        np.testing.assert_allclose(alone, model.predict_proba(X), atol=1e-5)
