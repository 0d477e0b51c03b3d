"""Each metric against loops over all orders of tied labels, cases worked by hand, and scikit-learn."""

from itertools import pairwise, permutations
from math import log2

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn import metrics as sk

from esmc_pyro import metrics as m

NAN = float("nan")


def orders(y, s):
    """All orders of a row's known labels that its scores allow."""
    known = [l for l in range(len(y)) if not np.isnan(y[l])]
    return [o for o in permutations(known) if all(s[a] >= s[b] for a, b in pairwise(o))]


def rows_of(Y, S):
    return [(y, orders(y, s)) for y, s in zip(Y, S, strict=True) if not np.isnan(y).all()]


def mean_over_orders(Y, S, value):
    return np.mean([np.mean([value(y, o) for o in os]) for y, os in rows_of(Y, S)])


def slow_auc(Y, S):
    rows, tpr, fpr = rows_of(Y, S), [], []
    for k in range(Y.shape[1] + 1):
        tpr.append(sum(np.mean([sum(y[l] == 1 for l in o[:k]) for o in os]) for y, os in rows))
        fpr.append(sum(np.mean([sum(y[l] == 0 for l in o[:k]) for o in os]) for y, os in rows))
    if tpr[-1] == 0 or fpr[-1] == 0:
        return NAN
    return sk.auc(np.array(fpr) / fpr[-1], np.array(tpr) / tpr[-1])


def slow_coverage(y, o):
    return max((r for r, l in enumerate(o) if y[l] == 1), default=0)


def slow_ndcg(y, o, k):
    dcg = sum((y[l] == 1) / log2(r + 2) for r, l in enumerate(o[:k]))
    best = sum(1 / log2(r + 2) for r in range(min(k, sum(y[l] == 1 for l in o))))
    return dcg / best if best else 0.0


def slow_psp(Y, S, k, p):
    above = below = 0.0
    for y, os in rows_of(Y, S):
        above += np.mean([sum((y[l] == 1) / p[l] for l in o[:k]) for o in os])
        below += sum(sorted((1 / p[l] for l in range(len(y)) if y[l] == 1), reverse=True)[:k])
    return above / below if below else NAN


def slow_lrap(Y, S):
    values = []
    for y, s in zip(Y, S, strict=True):
        keep = ~np.isnan(y)
        if keep.any():
            y, s = y[keep], s[keep]
            per_label = [(y[s >= v] == 1).sum() / (s >= v).sum() for v in s[y == 1]]
            values.append(np.mean(per_label) if 0 < y.sum() < len(y) else 1.0)
    return np.mean(values)


def slow_macro_auc(Y, S):
    values = []
    for y, s in zip(Y.T, S.T, strict=True):
        keep = ~np.isnan(y)
        if len(set(y[keep])) == 2:
            values.append(sk.roc_auc_score(y[keep], s[keep]))
    return np.mean(values) if values else NAN


@st.composite
def problems(draw, unknown=True):
    """Small Y and scores with many ties, rows without ones, hidden entries and hidden rows."""
    n, k = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    values = [0.0, 1.0, NAN] if unknown else [0.0, 1.0]
    Y = np.array(draw(st.lists(st.sampled_from(values), min_size=n * k, max_size=n * k))).reshape(n, k)
    Y[0, 0] = draw(st.sampled_from([0.0, 1.0]))
    S = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * k, max_size=n * k)), dtype=float).reshape(n, k)
    return Y, S


@given(problems())
def test_auc_and_coverage_equal_loops_over_all_orders(problem):
    Y, S = problem
    np.testing.assert_allclose(m.paper_auc(Y, S), slow_auc(Y, S), atol=1e-12)
    np.testing.assert_allclose(m.paper_coverage(Y, S), mean_over_orders(Y, S, slow_coverage), atol=1e-12)


@given(problems(), st.data())
def test_at_k_metrics_equal_loops_over_all_orders(problem, data):
    Y, S = problem
    k = data.draw(st.integers(1, Y.shape[1]))
    p = np.array(data.draw(st.lists(st.floats(0.05, 1), min_size=Y.shape[1], max_size=Y.shape[1])))
    precision = mean_over_orders(Y, S, lambda y, o: sum(y[l] == 1 for l in o[:k]) / k)
    np.testing.assert_allclose(m.precision_at_k(Y, S, k), precision, atol=1e-12)
    np.testing.assert_allclose(
        m.ndcg_at_k(Y, S, k), mean_over_orders(Y, S, lambda y, o: slow_ndcg(y, o, k)), atol=1e-12
    )
    np.testing.assert_allclose(m.psp_at_k(Y, S, k, p), slow_psp(Y, S, k, p), atol=1e-12)


@given(problems())
def test_lrap_and_macro_auc_equal_loops_with_unknown_entries_dropped(problem):
    Y, S = problem
    np.testing.assert_allclose(m.lrap(Y, S), slow_lrap(Y, S), atol=1e-12)
    np.testing.assert_allclose(m.macro_auc(Y, S), slow_macro_auc(Y, S), atol=1e-12)


@given(problems(unknown=False))
def test_scikit_learn_gives_the_same_where_it_has_the_metric(problem):
    Y, S = problem
    np.testing.assert_allclose(m.lrap(Y, S), sk.label_ranking_average_precision_score(Y, S), atol=1e-12)
    if Y.shape[1] > 1:
        k = min(3, Y.shape[1])
        # scikit-learn wants scores that are not negative
        np.testing.assert_allclose(m.ndcg_at_k(Y, S, k), sk.ndcg_score(Y, S + 2, k=k), atol=1e-12)


@given(problems(), st.integers(0, 2**32 - 1))
def test_order_of_rows_and_columns_does_not_matter(problem, seed):
    Y, S = problem
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(Y.shape[0]), rng.permutation(Y.shape[1])
    moved = m.evaluate(Y[rows][:, columns], S[rows][:, columns])
    assert moved == pytest.approx(m.evaluate(Y, S), abs=1e-12, nan_ok=True)


@given(problems())
def test_scores_of_unknown_entries_do_not_matter(problem):
    Y, S = problem
    assert m.evaluate(Y, np.where(np.isnan(Y), 1e6, S)) == pytest.approx(m.evaluate(Y, S), nan_ok=True)


def some_data(n=200, k=30, ties=False, seed=0):
    rng = np.random.default_rng(seed)
    Y = (rng.random((n, k)) < rng.uniform(0.02, 0.4, k)).astype(float)
    Y[np.arange(n), rng.integers(0, k, n)] = 1
    S = rng.normal(size=(n, k)) + Y
    return Y, S.round() if ties else S


def test_coverage_error_of_scikit_learn_is_one_more():
    Y, S = some_data()
    assert m.paper_coverage(Y, S) + 1 == pytest.approx(sk.coverage_error(Y, S))


def test_auc_of_one_row_is_the_usual_auc_and_of_many_rows_is_not_the_micro_average():
    Y, S = some_data(ties=True)
    for y, s in zip(Y[:20], S[:20], strict=True):
        assert m.paper_auc(y[None], s[None]) == pytest.approx(sk.roc_auc_score(y, s))
    shifted = S + 10 * np.arange(len(S))[:, None]  # a constant added to a row changes no ranking of its labels
    assert m.paper_auc(Y, shifted) == pytest.approx(m.paper_auc(Y, S))
    assert m.micro_auc(Y, S) == pytest.approx(sk.roc_auc_score(Y, S, average="micro"))
    assert abs(m.micro_auc(Y, shifted) - m.micro_auc(Y, S)) > 0.1


def test_macro_auc_is_the_mean_of_scikit_learns_columns():
    Y, S = some_data(ties=True)
    assert m.macro_auc(Y, S) == pytest.approx(sk.roc_auc_score(Y, S, average="macro"))


def test_worked_example():
    # ranks of row 1: labels 0 2 1 3, truth along them 1 0 1 0; of row 2: labels 3 2 1 0, truth along them 0 1 0 0
    Y = np.array([[1, 1, 0, 0], [0, 0, 1, 0]])
    S = np.array([[0.9, 0.4, 0.6, 0.1], [0.1, 0.2, 0.3, 0.4]])
    # true positives by k: 0 1 2 3 3 of 3; false positives: 0 1 2 3 5 of 5
    assert m.paper_auc(Y, S) == pytest.approx((0.5 * 1 + 1.5 * 1 + 2.5 * 1 + 3 * 2) / 15)
    assert m.paper_coverage(Y, S) == pytest.approx((2 + 1) / 2)
    assert m.precision_at_k(Y, S, 1) == pytest.approx(1 / 2)
    assert m.precision_at_k(Y, S, 3) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert m.ndcg_at_k(Y, S, 3) == pytest.approx(((1 + 1 / 2) / (1 + 1 / log2(3)) + 1 / log2(3)) / 2)
    # worth of a true label 2, 4, 5, 1: row 1 shows 2 of its best 4, row 2 shows 0 of its best 5
    assert m.psp_at_k(Y, S, 1, [0.5, 0.25, 0.2, 1.0]) == pytest.approx(2 / 9)
    assert m.lrap(Y, S) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2) / 2)
    assert m.macro_auc(Y, S) == pytest.approx((1 + 1 + 0) / 3)


def test_ties_share_the_places_of_their_group():
    Y, S = [[0, 1, 1, 0]], [[3.0, 1.0, 1.0, 1.0]]
    # two true labels on three tied places 2..4: a place holds 2/3, the last of the two is at 2(3+1)/(2+1) = 8/3 of 3
    assert m.precision_at_k(Y, S, 2) == pytest.approx(1 / 3)
    assert m.paper_coverage(Y, S) == pytest.approx(1 + 8 / 3 - 1)


@pytest.mark.parametrize("ties", [False, True])
def test_perfect_reversed_and_constant_scores(ties):
    Y, S = some_data(ties=ties)
    perfect = m.evaluate(Y, Y, Y_train=Y)
    assert perfect["auc"] > 0.9  # not 1: the k at which a row runs out of true labels differs between rows
    few = Y.sum(axis=1)
    assert perfect["coverage"] == pytest.approx((few - 1).mean())
    assert perfect["p@1"] == perfect["ndcg@1"] == perfect["ndcg@5"] == perfect["macro_auc"] == perfect["lrap"] == 1
    assert m.psp_at_k(Y, Y / m.propensities(Y), 3, m.propensities(Y)) == pytest.approx(1)

    backwards = m.evaluate(Y, -Y)
    assert backwards["auc"] < 0.1
    assert backwards["coverage"] == pytest.approx(Y.shape[1] - 1)
    assert backwards["p@1"] == backwards["macro_auc"] == 0

    constant = m.evaluate(Y, np.full(Y.shape, 0.3))
    assert constant["auc"] == pytest.approx(0.5)
    assert constant["macro_auc"] == pytest.approx(0.5)
    assert constant["p@1"] == constant["p@5"] == pytest.approx(Y.mean())
    assert m.paper_auc(Y, -S) == pytest.approx(1 - m.paper_auc(Y, S))


def test_perfect_auc_is_one_when_rows_have_equally_many_true_labels():
    Y = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 1]])
    S = Y + np.linspace(0, 0.1, 5)
    assert m.paper_auc(Y, S) == pytest.approx(1)
    assert m.paper_auc(Y, -S) == pytest.approx(0)


def test_rows_without_a_true_label_have_the_documented_values():
    Y, S = some_data(ties=True)
    n = len(Y)
    more_Y, more_S = np.vstack([Y, np.zeros((n, Y.shape[1]))]), np.vstack([S, S])
    was, now = m.evaluate(Y, S, Y_train=Y), m.evaluate(more_Y, more_S, Y_train=Y)
    for name in ("coverage", "p@1", "p@3", "p@5", "ndcg@1", "ndcg@3", "ndcg@5"):
        assert now[name] == pytest.approx(was[name] / 2)
    assert now["lrap"] == pytest.approx((was["lrap"] + 1) / 2)
    assert [now[f"psp@{k}"] for k in (1, 3, 5)] == pytest.approx([was[f"psp@{k}"] for k in (1, 3, 5)])


def test_a_hidden_row_changes_nothing():
    Y, S = some_data(ties=True)
    hidden_Y, hidden_S = np.vstack([Y, np.full((3, Y.shape[1]), NAN)]), np.vstack([S, S[:3]])
    P = 1 / (1 + np.exp(-hidden_S))
    was = m.evaluate(Y, S, Y_train=Y, probabilities=P[:-3])
    assert m.evaluate(hidden_Y, hidden_S, Y_train=hidden_Y, probabilities=P) == pytest.approx(was)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_labels_give_what_dense_ones_give(kind):
    Y, S = some_data()
    Y[3, 4] = Y[5] = NAN
    dense = m.evaluate(Y, S, Y_train=Y)
    assert m.evaluate(kind(Y), S, Y_train=kind(Y)) == pytest.approx(dense, nan_ok=True)


def test_blocks_of_rows_do_not_change_the_result(monkeypatch):
    Y, S = some_data(ties=True)
    whole = m.evaluate(Y, S, Y_train=Y, probabilities=np.abs(np.tanh(S)))
    monkeypatch.setattr(m, "_BLOCK", 64)
    assert m.evaluate(Y, S, Y_train=Y, probabilities=np.abs(np.tanh(S))) == pytest.approx(whole, rel=1e-12)


def test_evaluate_has_stable_names_and_agrees_with_the_functions():
    Y, S = some_data(ties=True)
    P = 1 / (1 + np.exp(-S))
    result = m.evaluate(Y, S, Y_train=Y[:90], probabilities=P)
    p = m.propensities(Y[:90])
    expected = {"auc": m.paper_auc(Y, S), "coverage": m.paper_coverage(Y, S)}
    expected |= {f"p@{k}": m.precision_at_k(Y, S, k) for k in (1, 3, 5)}
    expected |= {f"ndcg@{k}": m.ndcg_at_k(Y, S, k) for k in (1, 3, 5)}
    expected |= {f"psp@{k}": m.psp_at_k(Y, S, k, p) for k in (1, 3, 5)}
    expected |= {"macro_auc": m.macro_auc(Y, S), "lrap": m.lrap(Y, S)}
    expected |= {"ece": m.expected_calibration_error(Y, P)}
    assert list(result) == list(expected)
    assert result == pytest.approx(expected)
    assert list(m.evaluate(Y, S)) == list(expected)


def test_what_cannot_be_computed_is_nan():
    Y, S = np.array([[1, 0], [0, 1]]), np.eye(2)
    result = m.evaluate(Y, S)
    assert {name for name, value in result.items() if np.isnan(value)} == {
        *("p@3", "p@5", "ndcg@3", "ndcg@5", "psp@1", "psp@3", "psp@5", "ece")
    }
    assert np.isnan(m.paper_auc(np.zeros((2, 2)), S))
    assert np.isnan(m.paper_auc(np.ones((2, 2)), S))
    assert np.isnan(m.macro_auc(np.ones((2, 2)), S))
    assert np.isnan(m.micro_auc(np.ones((2, 2)), S))
    assert np.isnan(m.psp_at_k(np.zeros((2, 2)), S, 1, [0.5, 0.5]))


def test_propensities_follow_the_formula_and_grow_with_frequency():
    Y = np.zeros((100, 3))
    Y[:10, 1] = Y[:90, 2] = 1
    c = (np.log(100) - 1) * 2.5**0.55
    expected = [1 / (1 + c * (n + 1.5) ** -0.55) for n in (0, 10, 90)]
    np.testing.assert_allclose(m.propensities(Y), expected)
    np.testing.assert_allclose(m.propensities(sparse.csr_array(Y)), expected)
    hidden = np.vstack([Y, np.full((50, 3), NAN)])
    np.testing.assert_allclose(m.propensities(hidden), expected)
    assert (np.diff(m.propensities(Y, a=0.5, b=0.4)) > 0).all()


def test_calibration_error_by_hand_and_by_loop():
    Y, P = [[1, 0, 1, NAN]], [[0.95, 0.9, 0.2, 0.5]]
    # bin [0.2, 0.3): |0.2 - 1| of one entry; bin [0.9, 1]: |0.925 - 0.5| of two
    assert m.expected_calibration_error(Y, P) == pytest.approx((0.8 + 2 * 0.425) / 3)
    assert m.expected_calibration_error([[1, 0]], [[1.0, 0.0]]) == 0
    assert m.expected_calibration_error([[0, 1]], [[1.0, 0.9]]) == pytest.approx(
        0.45
    )  # a probability of 1 has no bin of its own
    rng = np.random.default_rng(0)
    p = rng.random((50, 8))
    y = (rng.random((50, 8)) < p**2).astype(float)
    slow = 0.0
    for b in range(7):
        inside = (p >= b / 7) & (p < (b + 1) / 7)
        slow += inside.mean() * abs(p[inside].mean() - y[inside].mean())
    assert m.expected_calibration_error(y, p, bins=7) == pytest.approx(slow)


def test_bootstrap_intervals_agree_with_resampled_rows_and_with_theory():
    Y, S = some_data(ties=True)
    Y[4, 3:9] = NAN
    frame = m.bootstrap_intervals(Y, S, Y_train=Y, draws=400, seed=1)
    point = m.evaluate(Y, S, Y_train=Y)
    assert list(frame.index) == [name for name in point if name not in ("macro_auc", "ece")]
    assert frame["value"].to_dict() == pytest.approx({name: point[name] for name in frame.index})
    assert (frame["low"] < frame["value"]).all()
    assert (frame["value"] < frame["high"]).all()
    best = np.array([m.precision_at_k(y[None], s[None], 1) for y, s in zip(Y, S, strict=True)])
    assert frame.loc["p@1", "standard_error"] == pytest.approx(best.std() / np.sqrt(len(best)), rel=0.15)
    aucs, psps = [], []
    rng = np.random.default_rng(2)
    p = m.propensities(Y)
    for _ in range(200):
        rows = rng.integers(0, len(Y), len(Y))
        aucs.append(m.paper_auc(Y[rows], S[rows]))
        psps.append(m.psp_at_k(Y[rows], S[rows], 3, p))
    assert frame.loc["auc", "standard_error"] == pytest.approx(np.std(aucs), rel=0.2)
    assert frame.loc["psp@3", "standard_error"] == pytest.approx(np.std(psps), rel=0.2)


def test_a_bootstrapped_difference_is_paired_row_by_row_and_averaged_over_fits():
    Y, S = some_data(ties=True)
    rng = np.random.default_rng(5)
    ours, theirs = ([S + scale * rng.normal(size=S.shape) for scale in pair] for pair in ((0.1, 0.2), (0.5, 0.6, 0.7)))
    frame = m.bootstrap_difference(Y, ours, theirs, draws=800, seed=1)

    def average(fits, rows=slice(None)):
        made = pd.DataFrame([m.evaluate(Y[rows], fit[rows]) for fit in fits]).mean()
        return made[["auc", "coverage", "p@1", "lrap"]]

    expected = average(ours) - average(theirs)
    assert frame.loc[expected.index, "value"].to_dict() == pytest.approx(expected.to_dict())
    drawn = [rng.integers(0, len(Y), len(Y)) for _ in range(200)]
    errors = pd.DataFrame([average(ours, rows) - average(theirs, rows) for rows in drawn]).std()
    # a standard deviation of 200 draws has an error of 5 %, of 800 draws 2.5 %: four of these together
    assert frame.loc[errors.index, "standard_error"].to_dict() == pytest.approx(errors.to_dict(), rel=0.23)
    same = m.bootstrap_difference(Y, [S], [S], draws=20).drop(index=["psp@1", "psp@3", "psp@5"])
    assert (same == 0).all(axis=None)


def test_bootstrap_without_training_labels_leaves_psp_open():
    frame = m.bootstrap_intervals(*some_data(40, 6), draws=20)
    assert frame.loc[["psp@1", "psp@3", "psp@5"]].isna().all(axis=None)
    assert frame.drop(index=["psp@1", "psp@3", "psp@5"]).notna().all(axis=None)


Y2, S2 = np.array([[1.0, 0.0], [0.0, 1.0]]), np.eye(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: m.paper_auc([1, 0], [1, 0]), r"^Y must be a matrix .* its shape is \(2,\)\.$"),
        (lambda: m.paper_auc(np.zeros((0, 3)), np.zeros((0, 3))), r"^Y must be a matrix .* its shape is \(0, 3\)\.$"),
        (lambda: m.paper_auc([["a"]], [[1]]), r"^Y must hold numbers .* its type is <U1\.$"),
        (lambda: m.paper_auc([[2, 0]], [[1, 0]]), r"^Y must hold only 0, 1 or NaN \(unknown\), but it holds 2\.$"),
        (lambda: m.paper_auc([[-1.0, 0]], [[1, 0]]), r"^Y must hold only 0, 1 or NaN .* it holds -1\.0\.$"),
        (lambda: m.paper_auc([[NAN]], [[1]]), r"^Y must have at least one known entry, but all .* NaN\.$"),
        (lambda: m.paper_auc(Y2, np.eye(3)), r"^scores must have the shape \(2, 2\) of Y, .* \(3, 3\)\.$"),
        (lambda: m.paper_auc(Y2, S2 * NAN), r"^scores must hold finite numbers, but it holds nan\.$"),
        (lambda: m.paper_auc(Y2, S2 - np.inf), r"^scores must hold finite numbers, but it holds -inf\.$"),
        (lambda: m.paper_auc(Y2, S2.astype(str)), r"^scores must hold numbers, but its type is <U32\.$"),
        (lambda: m.precision_at_k(Y2, S2, 0), r"^k must be between 1 and the number of labels 2, but it is 0\.$"),
        (lambda: m.ndcg_at_k(Y2, S2, 3), r"^k must be between 1 and the number of labels 2, but it is 3\.$"),
        (lambda: m.psp_at_k(Y2, S2, 1, [0.5]), r"^label_propensities must have one value .* shape is \(1,\)\.$"),
        (lambda: m.psp_at_k(Y2, S2, 1, [0.5, 0]), r"^label_propensities must be above 0 .* span \[0, 0\.5\]\.$"),
        (lambda: m.propensities(Y2), r"^Y_train must have at least 3 rows .* it has 2\.$"),
        (lambda: m.propensities(np.eye(3), a=-1), r"^a and b must not be negative, but a is -1 and b is 1\.5\.$"),
        (lambda: m.evaluate(Y2, S2, Y_train=np.eye(3)), r"^Y_train must have as many labels as Y \(2\), .* has 3\.$"),
        (lambda: m.evaluate(Y2, S2, ks=[0]), r"^ks must hold at least one k .* it is \(0,\)\.$"),
        (lambda: m.evaluate(Y2, S2, probabilities=2 * S2), r"^probabilities must lie in \[0, 1\], .* \[0, 2\]\.$"),
        (lambda: m.evaluate(Y2, S2, probabilities=[[1]]), r"^probabilities must have the shape \(2, 2\) of Y"),
        (lambda: m.expected_calibration_error(Y2, S2, 0), r"^bins must be at least 1, but it is 0\.$"),
        (lambda: m.bootstrap_intervals(Y2, S2, draws=1), r"^draws must be at least 2, but it is 1\.$"),
        (
            lambda: m.bootstrap_difference(Y2, S2, [S2]),
            r"^scores must be a list .* is an array of shape \(2, 2\)\.$",
        ),
        (lambda: m.bootstrap_difference(Y2, [S2], []), r"^others must be a list of N × K .* a list of shapes \[\]\.$"),
        (lambda: m.bootstrap_difference(Y2, [S2], None), r"^others must be a list of N × K .* of type NoneType\.$"),
        (lambda: m.bootstrap_difference(Y2, [S2[0], S2], [S2]), r"^scores must .* shapes \[\(2,\), \(2, 2\)\]\.$"),
        (
            lambda: m.bootstrap_difference(Y2, [S2], [S2[:1]]),
            r"^others must have the shape \(2, 2\) of .*\(1, 2\)\.$",
        ),
        (lambda: m.bootstrap_difference(Y2, [S2], [S2], draws=1), r"^draws must be at least 2, but it is 1\.$"),
        (lambda: m.bootstrap_intervals(Y2, S2, level=1), r"^level must lie between 0 and 1, but it is 1\.$"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_draws_without_a_true_label_are_left_out():
    Y = np.zeros((6, 3))
    Y[0, 1] = 1
    table = m.bootstrap_intervals(Y, np.random.default_rng(0).normal(size=Y.shape), draws=200)
    assert table.loc["auc"].notna().all()
    none = m.bootstrap_intervals(np.zeros((6, 3)), np.zeros((6, 3)), draws=20)
    assert none.loc["auc"].isna().all()


def test_frames_are_matched_by_their_labels():
    rng = np.random.default_rng(0)
    Y = pd.DataFrame(rng.random((20, 3)) < 0.4, columns=[*"abc"])
    scores = pd.DataFrame(rng.normal(size=Y.shape), columns=[*"abc"])
    expected = m.evaluate(Y.to_numpy(float), scores.to_numpy())
    for kind in ("boolean", "Int64", "Float64"):
        assert m.evaluate(Y.astype(kind), scores) == pytest.approx(expected, nan_ok=True)
    gaps = Y.astype("boolean")
    gaps.iloc[0, 0] = pd.NA
    plain = Y.to_numpy(float).copy()
    plain[0, 0] = np.nan
    assert m.evaluate(gaps, scores) == pytest.approx(m.evaluate(plain, scores.to_numpy()), nan_ok=True)
    with pytest.raises(ValueError, match=r"labels of Y in the same order, but its columns are \['c', 'b', 'a'\]"):
        m.evaluate(Y, scores[[*"cba"]])
