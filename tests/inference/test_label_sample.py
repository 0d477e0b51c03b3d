"""Steps that look at some of many labels: the same objective in the mean, and all that follows from it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from tiny import agree, mean_and_error, shake
from torch import Tensor

from esmc_pyro import label_sample
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.guides.whitened import COVARIANCES
from esmc_pyro.inference import fit_svi
from esmc_pyro.label_sample import LabelSample
from esmc_pyro.models import ESMC, Bernoulli, Likelihood, Propensity
from esmc_pyro.models.means import make_mean
from esmc_pyro.objectives import MAP, CollapsedELBO

pytestmark = pytest.mark.usefixtures("double")
ROWS, UNLABELLED, LABELS = 6, 2, 12


def problem(depth: int = 2, likelihood: Likelihood | None = None, **options: Any) -> tuple[Tensor, Tensor, ESMC, Any]:
    """Few ones, so that most labels do not occur in a batch; one entry is unknown, and some rows have no labels."""
    X = torch.randn(ROWS + UNLABELLED, 3)
    Y = torch.zeros(ROWS, LABELS)
    Y[0, 2] = Y[1, 5] = Y[2, 5] = Y[4, 0] = 1
    Y[0, 7] = torch.nan
    given = {"pseudo": 4, "alpha": 0.4, "beta": 0.3, "gamma": 0.5, "mean": "linear"}
    model = ESMC.from_data(X, Y, [2] * (depth - 1), likelihood=likelihood or Bernoulli(1.3), **given)
    for layer in model.layers:
        layer.mean.weight.data += 0.3 * torch.randn_like(layer.mean.weight)
    return X, Y, model, shake(DoublyStochasticGuide(model, X, Y, **options), 0.3)


def test_labels_that_occur_are_those_with_a_one() -> None:
    _, Y, _, _ = problem()
    sample = LabelSample(Y, 2)
    for size in range(1, ROWS + 1):
        for rows in combinations(range(ROWS), size):
            occurring = (Y[list(rows)] == 1).any(0).nonzero().squeeze(1)
            assert torch.equal(sample.occurring(torch.tensor(rows)), occurring)
    assert torch.equal(sample.occurring(torch.tensor([5, 4, 6, 0, 7])), torch.tensor([0, 2]))  # two have no labels


def test_a_draw_is_those_that_occur_and_as_many_others_as_asked_for() -> None:
    _, Y, _, _ = problem()
    rows, seen = torch.tensor([0, 1, 3]), set()
    for _ in range(60):
        labels, weights = LabelSample(Y, 3)(rows)
        assert labels[:2].tolist() == [2, 5]
        assert len(set(labels.tolist())) == 5
        assert weights.tolist() == pytest.approx([1, 1, 10 / 3, 10 / 3, 10 / 3])
        seen |= set(labels[2:].tolist())
    assert seen == {*range(LABELS)} - {2, 5}
    for absent in (4, 100):
        assert LabelSample(Y, absent)(rows) == (None, None)  # half of the labels: all of them


def test_rows_without_any_one_have_labels_too() -> None:
    labels, weights = LabelSample(torch.zeros(3, 5), 2)(torch.arange(3))
    assert len(set(labels.tolist())) == 2
    assert weights.tolist() == [2.5, 2.5]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_mean_over_all_draws_is_the_objective_with_all_labels(
    covariance: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of the labels that do not occur is drawn once: value and gradient are exact, not an estimate."""
    X, Y, model, guide = problem(depth, covariance=covariance)
    rows = torch.tensor([0, 1, 3, 7])
    parameters = [p for p in (*guide.parameters(), *(layer.mean.weight for layer in model.layers)) if p.requires_grad]

    def value(objective: Any) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(3)  # the same draw of c
        loss = objective(model, guide)(X, Y, rows)
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, slopes, strict=True)]

    others = [k for k in range(LABELS) if k not in (2, 5)]
    for make in (CollapsedELBO, MAP):
        parts = []
        for pair in combinations(range(len(others)), 2):
            order = torch.tensor([*pair, *(k for k in range(len(others)) if k not in pair)])
            monkeypatch.setattr(label_sample.torch, "randperm", lambda *_, order=order, **__: order)
            parts.append(value(make(absent=2)))
        monkeypatch.undo()
        whole = value(make())
        assert torch.stack([part[0] for part in parts]).mean().item() == pytest.approx(whole[0].item(), rel=1e-9)
        for place, slope in enumerate(whole[1]):
            mean = torch.stack([part[1][place] for part in parts]).mean(0)
            assert torch.allclose(mean, slope, rtol=1e-7, atol=1e-9)


def test_draws_of_labels_are_unbiased() -> None:
    X, Y, model, guide = problem(1)
    with torch.no_grad():
        loss_of = MAP(absent=2)(model, guide)
        draws = torch.stack([loss_of(X, Y) for _ in range(3000)])
        whole = MAP()(model, guide)(X, Y)
    assert agree(mean_and_error(draws), (whole, torch.zeros(())))
    assert draws.std() > 0.01


@pytest.mark.parametrize("objective", [CollapsedELBO, MAP])
def test_enough_labels_are_all_of_them(objective: Any) -> None:
    X, Y, model, guide = problem(1)
    some, whole = objective(absent=LABELS)(model, guide)(X, Y), objective()(model, guide)(X, Y)
    assert some.item() == pytest.approx(whole.item(), rel=1e-12)


def test_a_mean_function_of_ones_own_is_looked_at_where_it_matters() -> None:
    class Bent(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x[..., :1] * torch.arange(float(LABELS)))

    X, _, model, _ = problem(1)
    layer, some = model.layers[-1], torch.tensor([4, 0, 7])
    for mean in (Bent(), layer.mean, make_mean("constant", 3, torch.randn(LABELS)), None):
        layer.mean = mean
        whole = torch.as_tensor(layer.offset(X)).expand(len(X), LABELS)
        found = torch.as_tensor(layer.offset(X, some)).expand(len(X), 3)
        torch.testing.assert_close(found, whole[:, some])  # products of fewer columns may round otherwise


def test_labels_in_single_precision_do() -> None:
    X, Y, model, guide = problem(1)
    torch.manual_seed(0)
    double = CollapsedELBO(absent=2)(model, guide)(X, Y)
    torch.manual_seed(0)
    assert CollapsedELBO(absent=2)(model, guide)(X, Y.float()).item() == pytest.approx(double.item(), rel=1e-6)


def test_a_fit_with_some_labels_comes_close_to_one_with_all() -> None:
    X, Y, model, _ = problem(1)
    found = []
    for objective in (MAP(absent=2), MAP()):
        guide = DoublyStochasticGuide(model, X, Y, start="zero")
        fit_svi(model, X[:ROWS], Y, X[ROWS:], guide=guide, objective=objective, epochs=600, lr=0.02, progress=False)
        with torch.no_grad():
            found.append(MAP()(model, guide)(X, Y))
    some, whole = found
    assert whole < some + 1e-9
    assert some < whole + 0.02 * whole.abs()


@pytest.mark.parametrize(("absent", "what"), [(0, "at least 1; got 0"), (2.5, "whole number"), (True, "whole number")])
def test_a_wrong_number_of_labels_is_refused(absent: Any, what: str) -> None:
    for objective in (CollapsedELBO, MAP):
        with pytest.raises((ValueError, TypeError), match=f"absent must be .*{what}"):
            objective(absent=absent)


class Weighted(Bernoulli):
    """Tells labels apart by their place."""

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return super().log_prob(y, z) * torch.arange(1.0, LABELS + 1)


class Careful(Bernoulli):
    """Does not, and says so."""

    is_alike = True

    def log_prob(self, y: Tensor, z: Tensor) -> Tensor:
        return 2 * super().log_prob(y, z)


@pytest.mark.parametrize("likelihood", [Propensity([0.5] * LABELS), Weighted()])
def test_a_likelihood_that_may_not_be_the_same_for_all_labels_is_refused(likelihood: Likelihood) -> None:
    _, _, model, guide = problem(1, likelihood)
    expected = f"absent needs a likelihood that is the same for all labels.* got {type(likelihood).__name__}"
    with pytest.raises(ValueError, match=expected):
        MAP(absent=2)(model, guide)


def test_a_likelihood_of_ones_own_may_say_that_it_is_the_same_for_all_labels() -> None:
    X, Y, model, guide = problem(1, Careful())
    with torch.no_grad():
        loss_of = MAP(absent=2)(model, guide)
        draws = torch.stack([loss_of(X, Y) for _ in range(2000)])
        assert agree(mean_and_error(draws), (MAP()(model, guide)(X, Y), torch.zeros(())))
