"""Data drawn from the model: SVI finds the truth again, from a start that knows nothing."""

from functools import partial

import pytest
import torch

from esmc_pyro.data import Simulation, simulate
from esmc_pyro.guides import DoublyStochasticGuide, PaperGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import paper_auc
from esmc_pyro.models import ESMC
from esmc_pyro.posterior import Posterior


def split(data: Simulation, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Training data, held-out data, and the AUC of the true ``z`` on the held-out rows."""
    X, Y = data.X, data.Y
    return X[:rows], Y[:rows], X[rows:], Y[rows:], paper_auc(Y[rows:].numpy(), data.truth["z"][rows:].numpy())


def auc(posterior: Posterior, X: torch.Tensor, Y: torch.Tensor) -> float:
    return paper_auc(Y.numpy(), posterior.predict(X).numpy())


def test_the_doubly_stochastic_guide_reaches_the_truth_from_chance() -> None:
    X, Y, X_new, Y_new, best = split(simulate(1500, 2, 20, 2, pseudo=30, seed=1), 1000)
    model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", pseudo=30, variance=[1.0, 9.0])
    start = partial(DoublyStochasticGuide, start="zero")
    assert auc(Posterior(model, start(model, X, Y)), X_new, Y_new) == pytest.approx(0.5)
    posterior = fit_svi(
        model, X, Y, guide=start, objective="collapsed", epochs=60, lr=0.05, progress=False
    )  # fmt: skip
    assert auc(posterior, X_new, Y_new) > best - 0.02


def test_the_papers_guide_reaches_the_truth_from_chance_with_one_layer() -> None:
    X, Y, X_new, Y_new, best = split(simulate(1500, 2, 20, [], pseudo=30, seed=1), 1000)
    model = ESMC.from_data(X, Y, [], likelihood="bernoulli", pseudo=30, variance=9.0, gamma=1.0)
    start = partial(PaperGuide, start="zero", functions="optimal")
    assert auc(Posterior(model, start(model, X, Y)), X_new, Y_new) == pytest.approx(0.5)
    posterior = fit_svi(model, X, Y, guide=start, epochs=60, lr=0.05, progress=False)
    assert auc(posterior, X_new, Y_new) > best - 0.02


def test_the_papers_guide_stays_with_the_truth_from_its_start_at_the_labels() -> None:
    X, Y, X_new, Y_new, best = split(simulate(1100, 2, 40, 2, pseudo=20, seed=1), 600)
    model = ESMC.from_data(
        X, Y, [2], likelihood="bernoulli", pseudo=20, variance=[1.0, 9.0], alpha=0.3, gamma=[0.5, 1.0]
    )
    posterior = fit_svi(model, X, Y, guide="paper", epochs=60, lr=0.05, batch_size=600, progress=False)
    assert posterior.history["elbo"].iloc[-1] > posterior.history["elbo"].iloc[0] + 1000
    assert auc(posterior, X_new, Y_new) > best - 0.02


@pytest.mark.slow
def test_the_papers_guide_reaches_the_truth_from_chance_with_two_layers() -> None:
    """Local factors for c and z chase each other through gamma, so this takes many more steps than the other guide."""
    X, Y, X_new, Y_new, best = split(simulate(1100, 2, 40, 2, pseudo=20, seed=1), 600)
    model = ESMC.from_data(
        X, Y, [2], likelihood="bernoulli", pseudo=20, variance=[1.0, 9.0], lengthscale=2**0.5, alpha=0.3,
        gamma=[0.5, 1.0],
    )  # fmt: skip
    start = partial(PaperGuide, start="zero", functions="optimal")
    assert auc(Posterior(model, start(model, X, Y)), X_new, Y_new) == pytest.approx(0.5)
    posterior = fit_svi(model, X, Y, guide=start, epochs=1500, lr=0.05, batch_size=600, progress=False)
    assert auc(posterior, X_new, Y_new) > best - 0.02
