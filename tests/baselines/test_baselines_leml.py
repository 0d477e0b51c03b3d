"""LEML: stationary in both factors, and for the squared loss the global optimum of a convex problem."""

import numpy as np
import pytest
import torch
from label_problem import constant_added, label_problem
from scipy import sparse

from esmc_pyro.baselines import LEML
from esmc_pyro.baselines.leml import conjugate_gradients


def objective(method: LEML, X: np.ndarray, Y: np.ndarray, W: torch.Tensor, H: torch.Tensor) -> torch.Tensor:
    M, y = torch.as_tensor(constant_added(X)) @ W @ H.T, torch.as_tensor(Y)
    known = ~torch.isnan(y)
    M, y = M[known], y[known]
    if method.loss == "squared":
        loss = 0.5 * ((y - M) ** 2).sum()
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(M, y, reduction="sum")
    return loss + method.penalty / 2 * ((W**2).sum() + (H**2).sum())


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("F", [5, 70])
def test_both_gradients_are_zero_and_the_objective_never_rises(loss: str, unknown: bool, F: int) -> None:
    X, Y = label_problem(F=F)
    if unknown:
        Y[np.random.default_rng(1).random(Y.shape) < 0.2] = np.nan
    method = LEML(latent=2, penalty=0.8, loss=loss, sweeps=400, steps=50, tolerance=1e-13).fit(X, Y)
    W, H = (torch.tensor(part, requires_grad=True) for part in (method.W_, method.H_))
    value = objective(method, X, Y, W, H)
    value.backward()
    assert method.objectives_[-1] == pytest.approx(value.item())
    assert max(W.grad.abs().max(), H.grad.abs().max()) < 1e-3
    assert np.diff(method.objectives_).max() < 1e-9 * method.objectives_[0]


def test_with_enough_dimensions_the_map_is_the_best_under_the_nuclear_norm() -> None:
    """|W|² + |H|² is at least twice the nuclear norm of Z = W H': its optimality conditions hold for Z."""
    X, Y = label_problem()
    method = LEML(latent=7, penalty=4.0, sweeps=2000, tolerance=1e-14).fit(X, Y)
    Z = method.W_ @ method.H_.T
    gradient = constant_added(X).T @ (constant_added(X) @ Z - Y)
    assert np.linalg.norm(gradient, 2) < 4.0 * (1 + 1e-3)
    assert (gradient * Z).sum() == pytest.approx(-4.0 * np.linalg.norm(Z, "nuc"), rel=1e-4)
    assert 0 < np.linalg.matrix_rank(Z, tol=1e-2) < 6


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_sparse_features_give_the_same_map(loss: str) -> None:
    X, Y = label_problem()
    Y[3, 2] = Y[10, 5] = np.nan
    dense, thin = (LEML(latent=2, loss=loss).fit(x, Y).decision_function(X) for x in (X, sparse.csr_array(X)))
    assert np.allclose(dense, thin)


def test_rows_without_a_known_label_change_nothing() -> None:
    X, Y = label_problem()
    Y[40:] = np.nan
    all_rows, known_rows = LEML(latent=2, sweeps=200).fit(X, Y), LEML(latent=2, sweeps=200).fit(X[:40], Y[:40])
    assert np.allclose(all_rows.decision_function(X), known_rows.decision_function(X), atol=1e-2)


def test_conjugate_gradients_solve_a_system() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 9))
    A = A @ A.T + np.eye(6)
    target = rng.standard_normal((6, 2))
    diagonal = np.diag(A)[:, None]
    x = conjugate_gradients(lambda v: A @ v, target, lambda r: r / diagonal, 100, 1e-12)
    assert np.allclose(A @ x, target)
