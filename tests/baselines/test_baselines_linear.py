"""BR, PLST and CPLST against their own conditions of optimality."""

import numpy as np
import pytest
from label_problem import centred, label_problem
from scipy.special import expit

from esmc_pyro.baselines import BR, CPLST, PLST


@pytest.mark.parametrize("F", [5, 90])
def test_the_gradient_of_binary_relevance_is_zero(F: int) -> None:
    X, Y = label_problem(F=F)
    method = BR(penalty=0.7, tolerance=1e-7, steps=60).fit(X, Y)
    error = expit(X @ method.W_ + method.offset_) - Y
    assert np.abs(X.T @ error + 0.7 * method.W_).max() < 1e-5
    assert np.abs(error.sum(axis=0)).max() < 1e-5


def test_labels_that_never_or_always_occur_get_their_smoothed_frequency() -> None:
    X, Y = label_problem()
    Y[:, 0], Y[:, 1] = 0, 1
    scores = BR().fit(X, Y).decision_function(X)
    assert np.allclose(scores[:, 0], np.log(0.5 / 60.5))
    assert np.allclose(scores[:, 1], np.log(60.5 / 0.5))


def test_single_precision_finds_the_same_regressions() -> None:
    X, Y = label_problem()
    double, single = (BR().fit(x, Y).decision_function(x) for x in (X, X.astype(np.float32)))
    assert np.allclose(double, single, atol=1e-3)


@pytest.mark.parametrize("F", [5, 90])
@pytest.mark.parametrize("kind", [PLST, CPLST])
def test_the_ridge_regression_onto_the_code_solves_its_normal_equations(kind: type[PLST], F: int) -> None:
    X, Y = label_problem(F=F)
    method = kind(latent=3, penalty=0.5).fit(X, Y)
    error = X @ method.W_ + method.offset_ - centred(Y) @ method.V_
    assert np.abs(X.T @ error + 0.5 * method.W_).max() < 1e-8
    assert np.abs(error.sum(axis=0)).max() < 1e-8
    decoded = (X @ method.W_ + method.offset_) @ method.V_.T + Y.mean(axis=0)
    assert np.allclose(method.decision_function(X), decoded)


def test_plst_loses_no_more_of_the_labels_than_the_best_rank_must() -> None:
    X, Y = label_problem()
    V = PLST(latent=3).fit(X, Y).V_
    lost = ((centred(Y) - centred(Y) @ V @ V.T) ** 2).sum()
    assert np.allclose(V.T @ V, np.eye(3))
    assert lost == pytest.approx((np.linalg.svd(centred(Y))[1][3:] ** 2).sum())


@pytest.mark.parametrize("F", [5, 90])
def test_cplst_keeps_as_much_of_what_features_explain_as_any_code_can(F: int) -> None:
    X, Y = label_problem(F=F)
    V = CPLST(latent=2, penalty=0.5).fit(X, Y).V_
    Xc, Yc = centred(X), centred(Y)
    H = Xc @ np.linalg.solve(Xc.T @ Xc + 0.5 * np.eye(F), Xc.T)
    kept = np.trace(V.T @ Yc.T @ H @ Yc @ V)
    assert kept == pytest.approx(np.linalg.eigvalsh(Yc.T @ H @ Yc)[-2:].sum())


def test_with_as_many_dimensions_as_labels_both_codes_are_plain_ridge_regression() -> None:
    X, Y = label_problem()
    W = np.linalg.solve(centred(X).T @ centred(X) + np.eye(5), centred(X).T @ Y)
    ridge = centred(X) @ W + Y.mean(axis=0)
    for kind in (PLST, CPLST):
        assert np.allclose(kind(latent=100, penalty=1.0).fit(X, Y).decision_function(X), ridge)
