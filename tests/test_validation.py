"""Bad input: one clear sentence each; good input of any kind comes through."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC
from esmc_pyro.validation import check_choice, check_data, check_features, check_labels, check_number

X = np.arange(12.0).reshape(4, 3)
Y = np.array([[1, 0], [0, 0], [1, 1], [0, 1]])


def changed(array: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    array = array.astype(float)
    array[row, column] = value
    return array


BAD: dict[str, tuple[Any, Any, str]] = {
    "NaN in X": (changed(X, 1, 2, np.nan), Y, "X must be finite everywhere; got nan in row 1, column 2"),
    "infinite X": (changed(X, 3, 0, np.inf), Y, "X must be finite everywhere; got inf in row 3, column 0"),
    "minus infinity in X": (changed(X, 0, 0, -np.inf), Y, "X must be finite everywhere; got -inf in row 0, column 0"),
    "a two in Y": (X, changed(Y, 2, 1, 2), "Y must hold 0, 1, or NaN for unknown; got 2 in row 2, column 1"),
    "a half in Y": (X, changed(Y, 0, 0, 0.5), "Y must hold 0, 1, or NaN for unknown; got 0.5 in row 0, column 0"),
    "minus one in Y": (X, 2 * Y - 1, "Y must hold 0, 1, or NaN for unknown; got -1 in row 0, column 1"),
    "infinite Y": (X, changed(Y, 1, 1, np.inf), "Y must hold 0, 1, or NaN for unknown; got inf in row 1, column 1"),
    "nothing known": (X, np.full((4, 2), np.nan), "Y must have at least one known entry; got NaN everywhere"),
    "fewer rows in Y": (X, Y[:3], "X and Y must have the same number of rows; got 4 and 3"),
    "more rows in Y": (X[:2], Y, "X and Y must have the same number of rows; got 2 and 4"),
    "no rows": (X[:0], Y[:0], r"X must be a matrix with at least one row and one column; got shape \(0, 3\)"),
    "no features": (X[:, :0], Y, r"X must be a matrix with at least one row and one column; got shape \(4, 0\)"),
    "no labels": (X, Y[:, :0], r"Y must be a matrix with at least one row and one label a column; got shape \(4, 0\)"),
    "flat X": (X[:, 0], Y, r"X must be a matrix .*; got shape \(4,\)"),
    "flat Y": (X, Y[:, 0], r"Y must be a matrix .*; got shape \(4,\)"),
    "words in X": ([["a", "b"]] * 4, Y, "X must be an array of numbers; got list"),
    "ragged X": ([[1.0], [1.0, 2.0]], Y, "X must be an array of numbers; got list"),
    "None for Y": (X, None, "Y must be an array of numbers; got NoneType"),
    "complex X": (X.astype(complex), Y, "X must be an array of numbers; got ndarray"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_said(case: str) -> None:
    bad_X, bad_Y, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence):
        check_data(bad_X, bad_Y)


@pytest.mark.parametrize("case", BAD)
def test_a_fit_says_it_too(case: str) -> None:
    bad_X, bad_Y, sentence = BAD[case]
    model = ESMC.from_data(
        torch.as_tensor(X).float(), torch.as_tensor(Y).float(), [1], likelihood="bernoulli", pseudo=2
    )
    with pytest.raises(ValueError, match=sentence):
        fit_svi(model, bad_X, bad_Y, epochs=1, progress=False)


@pytest.mark.parametrize("case", [case for case in BAD if case not in ("fewer rows in Y",)])
def test_sizing_a_model_says_it_too(case: str) -> None:
    bad_X, bad_Y, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence):
        ESMC.from_data(bad_X, bad_Y)


def test_unlabelled_rows_are_checked() -> None:
    with pytest.raises(ValueError, match="X_unlabeled must have the 3 columns of the training data; got 2"):
        check_data(X, Y, X[:, :2])
    with pytest.raises(ValueError, match="X_unlabeled must be finite everywhere; got nan in row 0, column 1"):
        check_data(X, Y, changed(X, 0, 1, np.nan))
    both, labels = check_data(X, Y, X[:2])
    assert both.shape == (6, 3)
    assert labels.shape == (4, 2)


read_only = X.copy()
read_only.flags.writeable = False
GOOD: dict[str, Any] = {
    "lists": X.tolist(),
    "integers": X.astype(int),
    "float32": X.astype(np.float32),
    "half precision": X.astype(np.float16),
    "a tensor": torch.as_tensor(X),
    "a frame": pd.DataFrame(X),
    "a frame of mixed types": pd.DataFrame(X).astype({0: int}),
    "sparse": sparse.csr_array(X),
    "a sparse matrix": sparse.csr_matrix(X),
    "read-only memory": read_only,
    "reversed": X[::-1][::-1],
    "columns first": np.asfortranarray(X),
}


@pytest.mark.parametrize("case", GOOD)
def test_good_features_come_through(case: str) -> None:
    features = check_features(GOOD[case])
    assert features.dtype in (torch.float32, torch.float64)
    assert features.tolist() == X.tolist()


def test_a_reversed_view_comes_through() -> None:
    assert check_features(X[::-1]).tolist() == X[::-1].tolist()


@pytest.mark.parametrize(
    "labels", [Y, Y.astype(bool), Y.tolist(), sparse.csr_array(Y), pd.DataFrame(Y), torch.as_tensor(Y)]
)
def test_good_labels_come_through(labels: Any) -> None:
    assert check_labels(labels, 4).tolist() == Y.tolist()


def test_unknown_labels_come_through_and_precision_is_the_features() -> None:
    known, labels = check_data(X, changed(Y, 0, 0, np.nan).astype(np.float32))
    assert known.dtype == labels.dtype == torch.float64
    assert torch.isnan(labels).sum() == 1


def test_features_of_float64_keep_their_memory() -> None:
    tensor = torch.randn(3, 2, dtype=torch.float64)
    assert check_features(tensor) is tensor


@pytest.mark.parametrize("value", [True, "3", None, float("nan"), float("inf"), 0, -1, 2.5, 2.0, [1]])
def test_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="size must be a whole number of at least 1; got "):
        check_number(value, "size", low=1, whole=True)
    for good in (1, 7, np.int64(3)):
        check_number(good, "size", low=1, whole=True)


def test_choices() -> None:
    check_choice("a", ("a", "b"), "letter")
    with pytest.raises(ValueError, match=r"letter must be one of \['a', 'b'\]; got 'c'"):
        check_choice("c", ("b", "a"), "letter")
    with pytest.raises(ValueError, match=r"letter must be one of \['a', 'b'\]; got \['a'\]"):
        check_choice(["a"], {"b": 1, "a": 2}, "letter")
