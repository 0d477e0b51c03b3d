"""FaIE's code and kernel ridge regression against N x N matrices."""

import numpy as np
import pytest
from label_problem import label_problem
from scipy.spatial.distance import pdist, squareform

from esmc_pyro.baselines import FaIE

ALPHA, PENALTY = 3.0, 0.2


def kernel(X: np.ndarray) -> np.ndarray:
    return np.exp(-(squareform(pdist(X)) ** 2) / (2 * (2 * pdist(X).mean()) ** 2))


@pytest.mark.parametrize("landmarks", [60, 20])
def test_the_code_solves_the_eigenvalue_problem(landmarks: int) -> None:
    X, Y = label_problem()
    method = FaIE(latent=3, alpha=ALPHA, penalty=PENALTY, landmarks=landmarks).fit(X, Y)
    G = method._map(X) @ method._map(X).T
    if landmarks == 60:
        assert np.allclose(G, kernel(X), atol=1e-6)
    H = G @ np.linalg.inv(G + PENALTY * np.eye(60))
    A = Y @ Y.T + ALPHA * H
    C = method.C_
    values, vectors = np.linalg.eigh(A)
    assert np.allclose(C.T @ C, np.eye(3), atol=1e-8)
    assert np.allclose(A @ C, C * values[:-4:-1], atol=1e-6)
    assert np.allclose(np.abs(np.diag(C.T @ vectors[:, :-4:-1])), 1)
    assert np.allclose(method.decoder_, C.T @ Y)


def test_scores_are_kernel_ridge_predictions_of_the_code_decoded() -> None:
    X, Y = label_problem()
    method = FaIE(latent=3, alpha=ALPHA, penalty=PENALTY).fit(X, Y)
    G = kernel(X)
    C = method.C_
    expected = G @ np.linalg.solve(G + PENALTY * np.eye(60), C) @ C.T @ Y
    assert np.allclose(method.decision_function(X), expected, atol=1e-5)
