"""A cell: what a method is given, what is measured, and that ours is the estimator's default."""

import json

import numpy as np
import pytest

from esmc_pyro import ESMCClassifier, search
from esmc_pyro.data import Dataset
from esmc_pyro.metrics import macro_auc, precision_at_k
from esmc_pyro.reproduce import measure
from esmc_pyro.reproduce.experiments import EXPERTS, OURS, Cell, Setting, Tuning
from esmc_pyro.reproduce.methods import METHODS, Rows


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(140, 4)).astype(np.float32)
    Y = (X @ rng.normal(size=(4, 6)) > np.linspace(0, 3, 6)).astype(np.float32)
    return Dataset("tiny", X[:80], Y[:80], X[80:], Y[80:])


@pytest.fixture
def tiny(dataset, monkeypatch):
    """Cells of this dataset, by whatever name and partition they are asked for."""
    monkeypatch.setattr(measure, "partition", lambda name, setting, seed, rows=0: dataset)
    return dataset


def test_ones_are_removed_in_the_share_that_is_asked_for(dataset):
    rows = measure.training_rows(dataset, Setting("removed", 0.5), 1)
    assert rows.X_unlabeled is None
    assert rows.Y.sum() == round(0.5 * dataset.Y_train.sum())
    assert (dataset.Y_train >= rows.Y).all()
    assert (dataset.Y_train == measure.training_rows(dataset, Setting("official"), 1).Y).all()


def test_rows_that_keep_no_labels_are_given_without_or_not_at_all(dataset):
    kept, alone = (measure.training_rows(dataset, Setting(kind, 0.2), 1) for kind in ("kept", "alone"))
    assert (len(kept.X), len(kept.X_unlabeled)) == (16, 64)
    assert alone.X_unlabeled is None
    assert (kept.X == alone.X).all()
    assert (kept.Y == alone.Y).all()
    known = {row.tobytes() for row in kept.X} | {row.tobytes() for row in kept.X_unlabeled}
    assert known == {row.tobytes() for row in dataset.X_train}


def test_rare_labels_are_the_rarer_half():
    Y = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]])
    assert measure.rare_labels(Y).tolist() == [2, 1]


def test_a_cell_measures_the_scores_of_its_method(tiny):
    cell = Cell("tiny", Setting("official"), "PLST", 0)
    record = measure.measure(cell, {"penalty": 2.0})
    scores = METHODS["PLST"].fit({"penalty": 2.0}, Rows(tiny.X_train, tiny.Y_train), 0)(tiny.X_test)
    assert record["p@1"] == pytest.approx(precision_at_k(tiny.Y_test, scores, 1))
    rare = measure.rare_labels(tiny.Y_train)
    assert record["rare_auc"] == pytest.approx(macro_auc(tiny.Y_test[:, rare], scores[:, rare]))
    assert 0 < record["p@1_error"] < 0.1
    assert record["fit_seconds"] > 0
    assert np.isnan(measure.measure(Cell("tiny", Setting("removed", 0.5), "PLST", 0), {})["p@1_error"])


def test_settings_are_chosen_from_the_labels_given_and_can_be_used_again(tiny):
    record = measure.choose(Tuning("tiny", Setting("kept", 0.5), "SLRM"))
    chosen = json.loads(record["chosen"])
    assert set(chosen) == {"features", "penalty", "gamma"}
    assert np.isfinite(measure.measure(Cell("tiny", Setting("kept", 0.5), "SLRM", 0), chosen)["auc"])


def test_settings_are_chosen_on_the_partition_that_they_are_for(monkeypatch, dataset):
    asked = []
    monkeypatch.setattr(measure, "partition", lambda name, setting, seed, rows=0: asked.append(seed) or dataset)
    cell = Cell("tiny", Setting("removed", 0.5), "PLST", 2)
    measure.choose(cell.tuning)
    assert (asked, cell.tuning) == ([2], Tuning("tiny", Setting("removed", 0.3), "PLST", 2))


@pytest.mark.parametrize("method", ["BR", "PLST", "SLRM"])
def test_baselines_choose_between_raw_features_and_scaled_ones(method):
    rng = np.random.default_rng(0)
    # 20 columns decide, 20 of a thousandth of the size are noise: unit variances make them equals
    X = (rng.normal(size=(120, 40)) * np.repeat([1.0, 1e-3], 20)).astype(np.float32)
    Y = (X[:, :20] @ rng.normal(size=(20, 5)) > 0).astype(np.float32)
    assert METHODS[method].choose(Rows(X, Y), 0)["features"] == "identity"
    assert (
        METHODS[method].choose(Rows(X * np.repeat([1e-3, 1e3], 20).astype(np.float32), Y), 0)["features"] == "standard"
    )


def test_the_authors_method_chooses_its_features(tiny):
    chosen = json.loads(measure.choose(Tuning("tiny", Setting("removed", 0.0), EXPERTS))["chosen"])
    assert chosen in ({"features": "identity"}, {"features": "standard"})


def test_ours_is_the_default_of_the_estimator(dataset, monkeypatch):
    kernels = tuple(group for group in search.CANDIDATES if "kernel" in group[0])
    monkeypatch.setattr(search, "CANDIDATES", kernels)
    monkeypatch.setattr(search, "JUDGES", 1)
    method = METHODS[OURS]
    X, Y, more = dataset.X_train[:60], dataset.Y_train[:60], dataset.X_train[60:]
    rows = Rows(X, Y, more)
    scores = method.fit(json.loads(json.dumps(method.choose(rows, 0))), rows, 0)(dataset.X_test)
    whole = ESMCClassifier().fit(X, Y, more).decision_function(dataset.X_test)
    np.testing.assert_allclose(scores, whole, rtol=1e-4, atol=1e-4)
