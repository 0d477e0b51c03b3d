"""SLEEC: neighbours, singular value projection, the sparse regression, and votes."""

import numpy as np
import pytest
from label_problem import constant_added, label_problem

from esmc_pyro.baselines import SLEEC
from esmc_pyro.baselines.sleec import embed, neighbour_products, sparse_regression


def test_inner_products_are_kept_for_neighbours_only() -> None:
    _, Y = label_problem(N=20)
    Y = Y + 1e-3 * np.random.default_rng(0).random(Y.shape)  # no ties
    G, products = neighbour_products(Y, 4), Y @ Y.T
    near = np.zeros((20, 20), dtype=bool)
    for i in range(20):
        near[i, np.argsort(-products[i])[:4]] = True
    near |= near.T | np.eye(20, dtype=bool)
    stored = np.zeros((20, 20), dtype=bool)
    rows, columns = G.nonzero()
    stored[rows, columns] = True
    assert (stored == near).all()
    assert np.allclose(G.toarray(), np.where(near, products, 0))


def test_projection_never_loses_ground_and_ends_at_its_fixed_point() -> None:
    _, Y = label_problem(N=40)
    Z, misfits = embed(Y, 3, 6, 300, seed=0)
    assert max(np.diff(misfits)) < 1e-9 * misfits[0]
    assert misfits[-1] < 0.5 * misfits[0]
    G = neighbour_products(Y, 6)
    omega = np.zeros((40, 40), dtype=bool)
    omega[np.repeat(np.arange(40), np.diff(G.indptr)), G.indices] = True
    values, vectors = np.linalg.eigh(Z @ Z.T + np.where(omega, Y @ Y.T - Z @ Z.T, 0))
    projected = (vectors[:, -3:] * np.maximum(values[-3:], 0)) @ vectors[:, -3:].T
    assert np.abs(projected - Z @ Z.T).max() < 1e-2 * np.abs(projected).max()


def test_enough_dimensions_keep_every_inner_product() -> None:
    _, Y = label_problem(N=40, K=5)
    Z, misfits = embed(Y, 5, 6, 2, seed=0)
    assert misfits[0] < 1e-18
    assert np.allclose(Z @ Z.T, Y @ Y.T)


@pytest.mark.parametrize("sparsity", [0.0, 0.3])
def test_the_regression_s_optimality_conditions_hold(sparsity: float) -> None:
    """``X'(X V - Z) + penalty V + X'G = 0`` with G in ``sparsity`` times the subgradient of ``|X V|_1``: least squares
    find no change that lowers the objective.
    """
    X, Y = label_problem(N=30, F=3)
    Z = Y[:, :2] - 0.5

    def objective(V: np.ndarray) -> float:
        return 0.5 * ((Z - X @ V) ** 2).sum() + 0.2 * (V**2).sum() + sparsity * np.abs(X @ V).sum()

    V = sparse_regression(X, Z, 0.4, sparsity, steps=4000)
    rng = np.random.default_rng(0)
    for size in (0.1, 0.01, 1e-3):
        changes = size * rng.standard_normal((50, *V.shape))
        assert all(objective(V + change) > objective(V) for change in changes)


def test_scores_are_the_mean_labels_of_the_nearest_embedded_rows() -> None:
    X, Y = label_problem()
    method = SLEEC(latent=3, neighbours=10, nearest=5, penalty=0.5).fit(X[:50], Y[:50])
    y = Y[:50] / np.sqrt(np.maximum(Y[:50].sum(axis=1, keepdims=True), 1))
    Z = embed(y, 3, 10, 10, seed=0)[0]
    X1 = constant_added(X)
    V = np.linalg.solve(X1[:50].T @ X1[:50] + 0.5 * np.eye(6), X1[:50].T @ Z)
    distance = ((X1[50:, None] @ V - X1[None, :50] @ V) ** 2).sum(axis=2)
    votes = np.stack([Y[:50][np.argsort(row)[:5]].mean(axis=0) for row in distance])
    assert np.allclose(method.decision_function(X[50:]), votes, atol=1e-5)


def test_clusters_answer_for_their_own_rows_and_learners_are_averaged() -> None:
    X, Y = label_problem(N=40)
    far = np.vstack([X, X + 100])
    labels = np.vstack([np.zeros_like(Y), np.ones_like(Y)])
    method = SLEEC(latent=2, neighbours=5, nearest=5, cluster_rows=40, learners=2).fit(far, labels)
    assert len(method.learners_) == 2
    assert np.allclose(method.decision_function(far), labels, atol=1e-5)
