"""Exact counts, the same entries for dense and sparse labels, NaN kept, the input untouched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from esmc_pyro.data.corrupt import hide_entries, hide_rows, remove_ones

ALL = [remove_ones, hide_rows, hide_entries]
KINDS = [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix, sparse.lil_matrix]


def labels(n, k, seed):
    rng = np.random.default_rng(seed)
    Y = rng.choice([0.0, 1.0, np.nan], size=(n, k), p=[0.6, 0.3, 0.1]).astype(np.float32)
    Y[rng.random(n) < 0.2] = np.nan
    return Y


sizes = {"n": st.integers(1, 12), "k": st.integers(1, 6), "seed": st.integers(0, 1000)}


@given(**sizes, fraction=st.floats(0, 1))
def test_remove_ones_turns_the_exact_count_to_zero_and_nothing_else(n, k, seed, fraction):
    Y = labels(n, k, seed)
    result = remove_ones(Y, fraction, seed)
    changed = ~((result == Y) | (np.isnan(result) & np.isnan(Y)))
    assert changed.sum() == round(fraction * np.sum(Y == 1))
    assert (Y[changed] == 1).all()
    assert (result[changed] == 0).all()


@given(**sizes, fraction=st.floats(0, 1))
def test_hide_rows_hides_the_exact_count_of_rows_that_were_seen(n, k, seed, fraction):
    Y = labels(n, k, seed)
    result = hide_rows(Y, fraction, seed)
    was, now = np.isnan(Y).all(axis=1), np.isnan(result).all(axis=1)
    assert now.sum() - was.sum() == round(fraction * (~was).sum())
    assert now[was].all()
    np.testing.assert_array_equal(result[~now], Y[~now])


@given(**sizes, fraction=st.floats(0, 1))
def test_hide_entries_hides_the_exact_count_of_known_entries(n, k, seed, fraction):
    Y = labels(n, k, seed)
    result = hide_entries(Y, fraction, seed)
    was, now = np.isnan(Y), np.isnan(result)
    assert now.sum() - was.sum() == round(fraction * (~was).sum())
    assert now[was].all()
    np.testing.assert_array_equal(result[~now], Y[~now])


@pytest.mark.parametrize("tool", ALL)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [0, 0.37, 1])
def test_sparse_labels_lose_the_same_entries_and_keep_their_format(tool, kind, fraction):
    Y = labels(30, 7, 1)
    given_ = kind(Y)
    result = tool(given_, fraction, 5)
    assert type(result) is kind
    assert result.dtype == given_.dtype
    np.testing.assert_array_equal(result.toarray(), tool(Y, fraction, 5))
    np.testing.assert_array_equal(given_.toarray(), Y)


def test_removed_ones_are_not_stored_in_a_sparse_result():
    Y = sparse.csr_array(np.eye(10))
    assert remove_ones(Y, 0.3, 0).nnz == 7


@pytest.mark.parametrize("tool", ALL)
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_input_is_left_alone_and_seeds_decide(tool, order):
    Y = np.array(labels(40, 9, 2), order=order)
    before = Y.copy()
    first, again, other = tool(Y, 0.5, 0), tool(Y, 0.5, 0), tool(Y, 0.5, 1)
    np.testing.assert_array_equal(Y, before)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other, equal_nan=True)
    assert first.dtype == np.float32


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8])
def test_whole_number_labels_become_floats_only_where_nan_is_needed(dtype):
    Y = (np.arange(24).reshape(6, 4) % 3 == 0).astype(dtype)
    assert remove_ones(Y, 0.5, 0).dtype == dtype
    for tool in (hide_rows, hide_entries):
        for given_ in (Y, sparse.csr_array(Y)):
            result = tool(given_, 0.5, 0)
            assert result.dtype == np.float32
            dense = result.toarray() if sparse.issparse(result) else result
            assert np.isnan(dense).sum() == 12


def test_every_one_is_equally_likely_to_go():
    gone = sum(1 - remove_ones(np.ones((4, 5)), 0.25, seed) for seed in range(400))
    assert gone.sum() == 400 * 5
    assert gone.min() > 60
    assert gone.max() < 140  # mean 100, standard deviation below 9


@pytest.mark.parametrize("tool", ALL)
@pytest.mark.parametrize(
    ("Y", "fraction", "message"),
    [
        (np.ones(3), 0.5, r"^Y must be a matrix of rows × labels, but its shape is \(3,\)\.$"),
        ([[1, 0]], 0.5, r"^Y must be a NumPy array or a SciPy sparse matrix, but it is a list\.$"),
        (np.array([["a"]]), 0.5, r"^Y must hold numbers .* its type is <U1\.$"),
        (np.ones((2, 2)), 1.5, r"^fraction must lie between 0 and 1, but it is 1\.5\.$"),
        (np.ones((2, 2)), float("nan"), r"^fraction must lie between 0 and 1, but it is nan\.$"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tool, Y, fraction, message):
    with pytest.raises(ValueError, match=message):
        tool(Y, fraction, 0)
