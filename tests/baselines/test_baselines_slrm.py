"""SLRM: singular-value shrinkage, the graph, and the optimality conditions of the whole."""

import numpy as np
import pytest
from label_problem import centred, label_problem

from esmc_pyro.baselines import SLRM
from esmc_pyro.baselines.slrm import laplacian, shrink_singular_values


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_shrinking_takes_the_same_from_every_singular_value(shape: tuple[int, int]) -> None:
    A = np.random.default_rng(0).standard_normal(shape)
    U, s, V = np.linalg.svd(A, full_matrices=False)
    assert np.allclose(shrink_singular_values(A, 1.5), (U * np.maximum(s - 1.5, 0)) @ V)
    assert np.allclose(shrink_singular_values(A, 100.0), 0)


def test_the_laplacian_sums_squared_differences_along_the_edges() -> None:
    X, _ = label_problem(N=20)
    L = laplacian(X, 3).toarray()
    f = np.random.default_rng(1).standard_normal(20)
    distance = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    A = np.zeros((20, 20))
    for i in range(20):
        A[i, np.argsort(distance[i])[1:4]] = 1
    A = (A + A.T) / 2
    assert f @ L @ f == pytest.approx(0.5 * (A * (f[:, None] - f[None]) ** 2).sum())
    assert np.allclose(L.sum(axis=1), 0)


@pytest.mark.parametrize("F", [5, 110])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_nuclear_norm_s_optimality_conditions_hold(gamma: float, F: int) -> None:
    """The smooth part's gradient G: |G|_2 <= penalty and <G, W> = -penalty |W|_*."""
    X, Y = label_problem(F=F)
    more, _ = label_problem(N=30, F=F, seed=1)
    penalty = 4.0
    method = SLRM(penalty, gamma, neighbours=4, steps=5000, tolerance=1e-9).fit(X, Y, more)
    rows = np.vstack([X, more])
    smooth = rows.T @ laplacian(rows, 4).toarray() @ rows
    W = method.W_
    G = centred(X).T @ (centred(X) @ W - centred(Y)) + gamma * smooth @ W
    assert np.linalg.norm(G, 2) < penalty * (1 + 1e-5)
    assert (G * W).sum() == pytest.approx(-penalty * np.linalg.norm(W, "nuc"), rel=1e-5)
    assert np.abs(W).max() > 1e-3
    assert np.allclose(method.decision_function(X).mean(axis=0), Y.mean(axis=0))


def test_the_usual_tolerance_is_near_the_optimum() -> None:
    X, Y = label_problem()
    usual, exact = (
        SLRM(1.0, 0.1, **more).fit(X, Y).decision_function(X) for more in ({}, {"steps": 5000, "tolerance": 1e-9})
    )
    assert np.abs(usual - exact).max() < 0.01


def test_unlabelled_rows_make_a_difference_only_through_the_graph() -> None:
    X, Y = label_problem()
    more, _ = label_problem(seed=1)
    for gamma, same in ((0.0, True), (1.0, False)):
        with_more, without = (SLRM(1.0, gamma).fit(X, Y, extra).W_ for extra in (more, None))
        assert np.allclose(with_more, without) is same
