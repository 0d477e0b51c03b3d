"""Early stopping on held-out rows, and a prior whose weight rises."""

from pathlib import Path
from typing import Any

import pytest
import torch

from esmc_pyro.data import simulate
from esmc_pyro.guides import Guide
from esmc_pyro.inference import OBJECTIVES, fit_svi
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.metrics import held_out_score
from esmc_pyro.models import ESMC


def problem() -> tuple[ESMC, torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    data = simulate(60, 3, 4, 2, seed=3)
    X, Y = data.X.double(), data.Y.double()
    model = ESMC.from_data(X[:30], Y[:30], [2], likelihood="bernoulli", pseudo=8)
    return model, X[:30], Y[:30], (X[30:], Y[30:])


def test_held_out_rows_choose_the_epoch() -> None:
    model, X, Y, held_out = problem()
    posterior = fit_svi(
        model, X, Y, guide="doubly_stochastic", objective="collapsed", epochs=12, batch_size=10, lr=0.3,
        schedule="constant", held_out=held_out, progress=False,
    )  # fmt: skip
    scores = posterior.history["held_out"]
    assert len(scores) == 12
    assert scores.idxmax() < 11  # or restoring could not be told from going on
    assert held_out_score(held_out[1], posterior.predict(held_out[0])) == pytest.approx(scores.max())


def test_patience_counts_epochs_since_the_best_held_out_score(tmp_path: Path) -> None:
    options = {"epochs": 50, "batch_size": 10, "lr": 0.3, "schedule": "constant", "progress": False, "patience": 2}
    model, X, Y, held_out = problem()
    whole = fit_svi(model, X, Y, guide="doubly_stochastic", objective="collapsed", held_out=held_out, **options)
    assert len(whole.history) == whole.history["held_out"].idxmax() + 1 + 2 < 50
    # a fit that goes on from its checkpoint ends at the same best state
    model, X, Y, held_out = problem()
    again = {"guide": "doubly_stochastic", "objective": "collapsed", "held_out": held_out, **options}
    fit_svi(model, X, Y, checkpoint=Checkpoint(tmp_path / "c"), **again)
    model, X, Y, held_out = problem()
    resumed = fit_svi(model, X, Y, checkpoint=Checkpoint(tmp_path / "c"), **again)
    assert torch.equal(resumed.predict(X), whole.predict(X))
    assert list(resumed.history["held_out"]) == list(whole.history["held_out"])


@pytest.mark.parametrize(
    ("held_out", "sentence"),
    [
        (torch.ones(3, 3), "held_out must be a pair"),
        ((torch.ones(3, 2), torch.ones(3, 4)), "the X of held_out must have the 3 columns"),
        ((torch.ones(3, 3), torch.ones(3, 5)), "the Y of held_out must have the 4 labels"),
        ((torch.ones(3, 3), torch.zeros(3, 4)), "must have a label that is 1"),
        ((torch.ones(3, 3), torch.ones(3, 4)), "must have a label that is 0, or no epoch is better than another"),
        ((torch.ones(1, 3), torch.tensor([[1.0, torch.nan, 1.0, 1.0]])), "must have a label that is 0"),
    ],
)
def test_held_out_rows_are_checked(held_out: Any, sentence: str) -> None:
    model, X, Y, _ = problem()
    with pytest.raises(ValueError, match=sentence):
        fit_svi(model, X, Y, held_out=held_out, epochs=1, progress=False)


@pytest.mark.parametrize("objective", ["collapsed", "map"])
def test_the_weight_of_the_prior_warms_up(objective: str) -> None:
    model, X, Y, _ = problem()
    seen: list[float] = []

    def watched(model: ESMC, guide: Guide) -> torch.nn.Module:
        loss_of = OBJECTIVES[objective](kl_weight=0.5)(model, guide)
        loss_of.register_forward_pre_hook(lambda module, inputs: seen.append(module.kl_weight))
        return loss_of

    fit_svi(
        model, X, Y, guide="doubly_stochastic", objective=watched, epochs=3, batch_size=15, kl_warm_up=2, progress=False
    )
    assert seen[1:] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5])  # the first call makes parameters


def test_no_prior_to_warm_up() -> None:
    model, X, Y, _ = problem()
    with pytest.raises(ValueError, match="kl_warm_up needs an objective with a weight"):
        fit_svi(model, X, Y, objective="trace", kl_warm_up=2, epochs=1, progress=False)


def test_patience_waits_until_the_prior_has_its_weight() -> None:
    model, X, Y, _ = problem()
    history = fit_svi(
        model, X, Y, guide="doubly_stochastic", objective="collapsed", epochs=20, batch_size=15, kl_warm_up=5,
        patience=1, tolerance=10.0, progress=False,
    ).history  # fmt: skip
    assert len(history) == 5 + 2  # no later epoch is ten times better: the second with the whole prior is the last
