"""FastTag: the moments of the corruption by enumeration, and the joint minimum against the alternation."""

import itertools

import numpy as np
import pytest
from label_problem import constant_added, label_problem

from esmc_pyro.baselines import FastTag
from esmc_pyro.baselines.fasttag import corruption_moments

ALPHA, BETA, LOST = 2.0, 0.5, 0.3


def expected_loss(B: np.ndarray, Y: np.ndarray, p: float) -> float:
    """``E|Y' - B Y~'|²`` over all 2^K ways to lose the entries of a row, weighted by their probabilities."""
    total = 0.0
    for kept in itertools.product([0, 1], repeat=Y.shape[1]):
        probability = np.prod([(1 - p) if k else p for k in kept])
        total += probability * ((Y.T - B @ constant_added(Y * np.array(kept)).T) ** 2).sum()
    return total


def objective(B: np.ndarray, W: np.ndarray, X: np.ndarray, Y: np.ndarray) -> float:
    agree = ((B @ constant_added(Y).T - W @ constant_added(X).T) ** 2).sum()
    return agree + BETA * (W**2).sum() + ALPHA * expected_loss(B, Y, LOST)


def test_the_moments_are_those_of_all_corruptions() -> None:
    _, Y = label_problem(N=12, K=4)
    Y = Y * np.random.default_rng(0).random(Y.shape)  # later layers hold fractions
    P, Q = np.zeros((5, 5)), np.zeros((5, 5))
    for kept in itertools.product([0, 1], repeat=4):
        lost = constant_added(Y * np.array(kept))
        probability = np.prod([(1 - LOST) if k else LOST for k in kept])
        P += probability * constant_added(Y).T @ lost
        Q += probability * lost.T @ lost
    found = corruption_moments(constant_added(Y).T @ constant_added(Y), LOST)
    assert np.allclose(found[0], P)
    assert np.allclose(found[1], Q)


def test_the_alternation_falls_to_the_minimum_that_fit_finds_at_once() -> None:
    X, Y = label_problem(N=25, F=3, K=4)
    method = FastTag(ALPHA, BETA, LOST, layers=1).fit(X, Y)
    X1, Y1 = constant_added(X), constant_added(Y)
    P, Q = corruption_moments(Y1.T @ Y1, LOST)
    B, W, values = np.zeros((4, 5)), np.zeros((4, 4)), []
    for _ in range(60):
        W = B @ Y1.T @ X1 @ np.linalg.inv(X1.T @ X1 + BETA * np.eye(4))
        B = (ALPHA * P[:-1] + W @ X1.T @ Y1) @ np.linalg.inv(ALPHA * Q + Y1.T @ Y1)
        if len(values) < 20:
            values.append(objective(B, W, X, Y))
    assert max(np.diff(values)) < 1e-12
    assert np.allclose(method.B_[0], B, atol=1e-5)
    assert np.allclose(method.W_.T, W, atol=1e-5)
    assert objective(method.B_[0], method.W_.T, X, Y) <= values[-1] + 1e-6


@pytest.mark.parametrize("F", [3, 40])
def test_no_small_change_lowers_the_objective(F: int) -> None:
    X, Y = label_problem(N=25, F=F, K=4)
    method = FastTag(ALPHA, BETA, LOST, layers=1).fit(X, Y)
    rng = np.random.default_rng(0)
    least = objective(method.B_[0], method.W_.T, X, Y)
    for _ in range(10):
        dB, dW = rng.standard_normal((4, 5)), rng.standard_normal((4, F + 1))
        for size in (1e-3, -1e-3):
            assert objective(method.B_[0] + size * dB, method.W_.T + size * dW, X, Y) > least


def test_the_second_layer_completes_what_the_first_has_made() -> None:
    X, Y = label_problem()
    one, two = FastTag(layers=1).fit(X, Y), FastTag(layers=2).fit(X, Y)
    T = constant_added(np.tanh(constant_added(Y) @ one.B_[0].T))
    assert np.allclose(two.B_[0], one.B_[0])
    X1 = constant_added(X)
    W = np.linalg.solve(X1.T @ X1 + np.eye(6), X1.T @ (T @ two.B_[1].T))
    assert np.allclose(two.decision_function(X), X1 @ W)


def test_no_small_change_lowers_the_objective_of_the_second_layer() -> None:
    X, Y = label_problem(N=25, F=3, K=4)
    method = FastTag(ALPHA, BETA, LOST, layers=2).fit(X, Y)
    T = np.tanh(constant_added(Y) @ method.B_[0].T)
    rng = np.random.default_rng(0)
    least = objective(method.B_[1], method.W_.T, X, T)
    for _ in range(10):
        dB, dW = rng.standard_normal((4, 5)), rng.standard_normal((4, 4))
        for size in (1e-3, -1e-3):
            assert objective(method.B_[1] + size * dB, method.W_.T + size * dW, X, T) > least


def test_a_label_that_never_occurs_scores_nothing() -> None:
    X, Y = label_problem()
    Y[:, 2] = 0
    assert np.abs(FastTag().fit(X, Y).decision_function(X)[:, 2]).max() < 1e-6
