"""`Dataset`: what it converts, what it refuses and in which words, how it splits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sample_files import X, Y, dense
from scipy import sparse

from esmc_pyro.data import Dataset

NAN_Y = np.array([[1, np.nan], [0, 0], [1, 1]])

REFUSED = [
    ({"name": ""}, "name is '', expected a text that is not empty."),
    ({"X_train": X[0]}, "X_train has shape (4,), expected at least one row and one column."),
    ({"X_train": np.zeros((0, 4))}, "X_train has shape (0, 4), expected at least one row and one column."),
    ({"X_train": [[1, 2], [3]]}, "X_train has rows of different lengths, expected a matrix."),
    ({"X_train": [["a"], ["b"], ["c"]]}, "X_train holds <U1 values, expected numbers."),
    ({"X_train": X * np.nan}, "X_train holds nan at row 0, column 0, expected finite numbers."),
    ({"X_train": X.astype(np.float64) * 1e39}, "X_train holds inf at row 0, column 0, expected finite numbers."),
    (
        {"X_train": sparse.csr_array(np.where(X > 0, np.inf, 0))},
        "X_train holds inf at row 0, column 0, expected finite numbers.",
    ),
    ({"Y_train": Y[:2]}, "Y_train has 2 rows, expected 3, as many as X_train."),
    ({"Y_train": Y * 2 - 1}, "Y_train holds -1 at row 0, column 1, expected 0, 1 or NaN (unknown)."),
    ({"Y_train": sparse.csr_array(Y * 3)}, "Y_train holds 3 at row 0, column 0, expected 0, 1 or NaN (unknown)."),
    ({"X_test": X}, "X_test came without Y_test, expected both or neither."),
    ({"Y_test": Y}, "Y_test came without X_test, expected both or neither."),
    ({"X_test": X[:, :3], "Y_test": Y}, "X_test has 3 features, expected 4, as many as X_train."),
    ({"X_test": X, "Y_test": Y[:, :1]}, "Y_test has 1 labels, expected 2, as many as Y_train."),
    ({"label_names": ["a"]}, "label_names has 1 names, expected 2."),
    ({"label_names": "ab"}, "label_names is the text 'ab', expected a list of 2 names."),
    ({"feature_names": list("abca")}, "feature_names has 'a' more than once, expected names that differ."),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_refused(change, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole sentence is compared below
        Dataset(**({"name": "small", "X_train": X, "Y_train": Y} | change))
    assert str(error.value) == sentence


@pytest.mark.parametrize("kind", [np.asarray, sparse.csc_matrix, sparse.coo_array, lambda a: a.tolist()])
def test_converts(kind):
    dataset = Dataset("small", kind(X.astype(np.float64)), kind(NAN_Y))
    np.testing.assert_array_equal(dense(dataset.X_train), X)
    np.testing.assert_array_equal(dense(dataset.Y_train), NAN_Y)
    assert isinstance(dataset.X_train, np.ndarray | sparse.csr_array)
    assert dataset.Y_train.dtype == np.float32
    assert dataset.feature_names == ("x0", "x1", "x2", "x3")


def test_is_frozen_and_leaves_what_it_is_given_alone():
    unsorted = sparse.csr_array((np.ones(2, np.float32), np.array([3, 1]), np.array([0, 2, 2, 2])), shape=(3, 4))
    dataset = Dataset("small", unsorted, Y)
    assert unsorted.indices.tolist() == [3, 1]
    assert dataset.X_train.indices.tolist() == [1, 3]
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_split_takes_the_first_of_the_permutation(kind):
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 2, (50, 4)).astype(np.float32)
    part = Dataset("random", kind(features), kind(labels)).split(n_test=12, seed=7)
    order = np.random.default_rng(7).permutation(50)
    np.testing.assert_array_equal(dense(part.X_test), features[order[:12]])
    np.testing.assert_array_equal(dense(part.Y_test), labels[order[:12]])
    np.testing.assert_array_equal(dense(part.X_train), features[order[12:]])
    np.testing.assert_array_equal(dense(part.Y_train), labels[order[12:]])
    again = part.whole()
    np.testing.assert_array_equal(dense(again.X_train), features[np.r_[order[12:], order[:12]]])
    assert again.X_test is None
    assert again.whole() is again


def test_split_by_fraction():
    dataset = Dataset("ones", np.ones((10, 2)), np.ones((10, 1)))
    assert (dataset.split(0.25).n_train, dataset.split(0.25).n_test) == (8, 2)


SPLITS = [
    ({}, "test_fraction is None and n_test is None, expected exactly one of them to be given."),
    (
        {"test_fraction": 0.5, "n_test": 1},
        "test_fraction is 0.5 and n_test is 1, expected exactly one of them to be given.",
    ),
    ({"test_fraction": 1.5}, "test_fraction is 1.5, expected a number between 0 and 1."),
    (
        {"test_fraction": 0.01},
        "test_fraction is 0.01, which leaves 0 of 3 rows for testing, expected 1 to 2 test rows.",
    ),
    ({"n_test": 3}, "n_test is 3, expected 1 to 2 test rows."),
    ({"n_test": 0}, "n_test is 0, expected 1 to 2 test rows."),
]


@pytest.mark.parametrize(("arguments", "sentence"), SPLITS)
def test_split_refuses(arguments, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole sentence is compared below
        Dataset("small", X, Y).split(**arguments)
    assert str(error.value) == sentence


def test_split_refuses_a_second_split():
    with pytest.raises(ValueError, match="small already has 1 test rows, expected a whole dataset: see whole"):
        Dataset("small", X, Y).split(n_test=1).split(n_test=1)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_summary(kind):
    summary = Dataset("small", kind(X), kind(NAN_Y), kind(X[:1]), kind(Y[:1])).summary()
    assert summary == {
        "name": "small",
        "rows": 4,
        "train_rows": 3,
        "test_rows": 1,
        "features": 4,
        "labels": 2,
        "labels_per_row": 1.0,
        "label_density": 0.5,
        "unknown_labels": 0.125,
        "feature_density": 7 / 16,
    }


def test_rows_of_a_split_know_their_numbers_in_the_source() -> None:
    features = np.arange(10.0)[:, None]
    whole = Dataset("ten", features, np.eye(10))
    assert whole.source_rows is None
    split = whole.split(n_test=3, seed=1)
    for made in (split, split.first(2)):
        np.testing.assert_array_equal(made.X_train[:, 0], made.row_numbers())
        np.testing.assert_array_equal(made.X_test[:, 0], made.row_numbers(test=True))
    np.testing.assert_array_equal(split.whole().X_train[:, 0], split.whole().row_numbers())
    again = split.whole().split(test_fraction=0.5, seed=2)
    np.testing.assert_array_equal(again.X_test[:, 0], again.row_numbers(test=True))
    given = Dataset("given", features[:6], np.eye(10)[:6], features[6:], np.eye(10)[6:])
    np.testing.assert_array_equal(given.row_numbers(test=True), np.arange(4))  # each part counts by itself
    with pytest.raises(ValueError, match=r"source_rows has 3 rows, expected the 10 of X."):
        Dataset("ten", features, np.eye(10), source_rows=(1, 2, 3))


def test_knows_which_names_it_made_up():
    dataset = Dataset("small", X, Y, feature_names=["x0", "x1", "x2", "x3"])
    assert dataset.label_names == ("y0", "y1")
    assert dataset.split(n_test=1).first(1).whole().numbered == dataset.numbered == ("label_names",)
    assert dataclasses.replace(dataset, label_names=["y1", "y0"]).numbered == ()
    assert dataclasses.replace(dataset, feature_names=()).numbered == ("feature_names", "label_names")
