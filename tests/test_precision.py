"""Features in single precision, and in double where that would round large numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from esmc_pyro.precision import LARGE, to_single

TIMES = np.array([[1.7e9 + 1, 0.1], [1.7e9 + 60, 0.2]])


def test_what_float32_can_tell_is_float32() -> None:
    X = np.array([[0.1, 1000.123], [2.0**30, -(2.0**100)]])
    made = to_single(X)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, X, rtol=1e-7)


@pytest.mark.parametrize("X", [TIMES, -TIMES, TIMES[:1], TIMES.astype(np.int64), np.array([[LARGE + 2.0**-14]])])
def test_large_numbers_that_it_would_round_stay(X: np.ndarray) -> None:
    made = to_single(X)
    assert made.dtype == np.float64
    np.testing.assert_array_equal(made, X)


def test_sparse_features_are_float32() -> None:
    assert to_single(sparse.csr_array(TIMES)).dtype == np.float32


def test_what_is_too_large_becomes_infinite() -> None:
    assert np.isinf(to_single(np.array([[1e39]]))).all()
