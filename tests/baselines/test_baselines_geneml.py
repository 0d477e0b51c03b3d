"""GenEML: each expectation by brute force, the log posterior rising to where its gradient is zero."""

import numpy as np
import pytest
import torch
from label_problem import constant_added, label_problem
from scipy.special import expit

from esmc_pyro.baselines import GenEML
from esmc_pyro.baselines.geneml import exposure, polya_gamma_mean, weighted_least_squares


def test_the_exposure_is_that_of_enumerating_both_cases() -> None:
    s, mu = np.linspace(-4, 4, 9), 0.3
    joint = {(xi, y): (mu if xi else 1 - mu) * ((expit(s) if y else expit(-s)) if xi else float(y == 0))
             for xi in (0, 1) for y in (0, 1)}  # fmt: skip
    for y in (0, 1):
        expected = joint[1, y] / (joint[0, y] + joint[1, y])
        assert np.allclose(exposure(np.full(9, float(y)), expit(s), np.full(9, mu)), expected)


def test_the_polya_gamma_mean_is_the_slope_of_its_laplace_transform() -> None:
    """``E exp(-omega t) = cosh(s/2) / cosh(sqrt((s²/2 + t) / 2))``, so ``E omega`` is minus its derivative at zero."""
    s = np.array([-6.0, -1.0, 1e-5, 0.0, 0.5, 3.0])
    t = 1e-5

    def transform(t: float) -> np.ndarray:
        inside = (s**2 / 2 + t) / 2
        return np.cosh(s / 2) / np.where(inside >= 0, np.cosh(np.sqrt(np.abs(inside))), np.cos(np.sqrt(np.abs(inside))))

    assert np.allclose(polya_gamma_mean(s, expit(s)), -(transform(t) - transform(-t)) / (2 * t), atol=1e-8)


def test_weighted_least_squares_solves_every_row() -> None:
    rng = np.random.default_rng(0)
    A, weight = rng.standard_normal((7, 3)), rng.random((4, 7))
    target, centre = rng.standard_normal((4, 7)), rng.standard_normal((4, 3))
    found = weighted_least_squares(A, weight, target, 0.5, centre)
    for i in range(4):
        system = A.T @ np.diag(weight[i]) @ A + 0.5 * np.eye(3)
        assert np.allclose(found[i], np.linalg.solve(system, A.T @ target[i] + 0.5 * centre[i]))


@pytest.mark.parametrize("unknown", [False, True])
def test_the_log_posterior_never_falls_and_its_gradient_ends_at_zero(unknown: bool) -> None:
    X, Y = label_problem(N=40, F=3, K=5)
    if unknown:
        Y[np.random.default_rng(1).random(Y.shape) < 0.2] = np.nan
    settings = {"lambda_u": 1.0, "lambda_v": 0.5, "lambda_w": 0.5, "a": 3.0, "b": 2.0}
    method = GenEML(latent=2, **settings, sweeps=4000, tolerance=1e-14).fit(X, Y)
    assert np.diff(method.objectives_).min() > -1e-9 * abs(method.objectives_[0])
    U, V, W, mu = (torch.tensor(v, requires_grad=True) for v in (method.U_, method.V_, method.W_, method.mu_))
    y, s = torch.as_tensor(Y), U @ V.T
    one = mu * torch.sigmoid(s)
    likelihood = torch.where(y == 1, one, 1 - one).log()[~torch.isnan(y)].sum()
    squares = ((U - torch.as_tensor(constant_added(X)) @ W) ** 2).sum() + 0.5 * (V**2).sum() + 0.5 * (W**2).sum()
    value = likelihood + (2 * mu.log() + (1 - mu).log()).sum() - squares / 2
    value.backward()
    assert method.objectives_[-1] == pytest.approx(value.item())
    assert max(part.grad.abs().max() for part in (U, V, W, mu)) < 2e-2


def test_scores_are_the_predicted_log_odds_of_an_exposed_label() -> None:
    X, Y = label_problem()
    method = GenEML(latent=3).fit(X, Y)
    assert np.allclose(method.decision_function(X), constant_added(X) @ method.W_ @ method.V_.T)


def test_exposure_is_the_share_of_ones_that_were_kept() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 1))
    Y = (X > 0) * (rng.random((400, 3)) < 0.5)
    method = GenEML(latent=2, lambda_u=100.0, lambda_v=1.0, lambda_w=0.01, sweeps=1500, tolerance=1e-8).fit(X, Y)
    assert method.mu_ == pytest.approx(Y[X[:, 0] > 0].mean(axis=0), abs=0.06)
