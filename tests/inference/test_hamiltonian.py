"""The samplers alone, on targets whose moments are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from esmc_pyro.inference.hamiltonian import HMC, NUTS, Sampler, StepSize, run, windows


def collect(sampler: Sampler, q: Tensor, warmup: int, draws: int, target: float = 0.8) -> dict[str, Tensor]:
    """Draws x chains x D of the states, draws x chains of the rest."""
    kept = [draw for draw in run(sampler, q, warmup, draws, target) if draw is not None]
    return {name: torch.stack([torch.as_tensor(getattr(draw, name)) for draw in kept]) for name in kept[0]._fields}


def errors_away(values: Tensor, truth: Tensor) -> Tensor:
    """How many standard errors the mean of draws x chains x D is from ``truth`` (D,); chains are independent."""
    chains = values.mean(0)
    return (chains.mean(0) - truth).abs() / (chains.std(0) / math.sqrt(len(chains)))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [NUTS, HMC])
def test_moments_of_a_correlated_gaussian(make: type[Sampler]) -> None:
    """Means, variances and covariances of a target with scales from 0.2 to 3, within 4.5 standard errors."""
    mean, scale = torch.tensor([1.0, -2.0, 0.0, 5.0]), torch.diag(torch.tensor([0.2, 1.0, 3.0, 0.5]))
    mix = torch.eye(4)
    mix[2, 1] = 0.8
    mix[3, 0] = -0.6
    covariance = scale @ mix @ mix.mT @ scale
    precision = torch.linalg.inv(covariance)

    def energy(q: Tensor) -> Tensor:
        return 0.5 * ((q - mean) @ precision * (q - mean)).sum(-1)

    sampler = make(energy, 0.3, torch.tensor([0.04, 1.0, 9.0, 0.25]))
    drawn = collect(sampler, mean + torch.randn(300, 4), 60, 12)
    q = drawn["q"] - mean
    products = (q.unsqueeze(-1) * q.unsqueeze(-2)).flatten(-2)
    assert (errors_away(q, torch.zeros(4)) < 4.5).all()
    assert (errors_away(products, covariance.flatten()) < 4.5).all()
    assert not drawn["diverging"].any()
    assert 0.65 < drawn["accept"].mean() < 0.95
    assert torch.allclose(drawn["energy"], energy(drawn["q"]))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [NUTS, HMC])
def test_a_target_that_is_no_gaussian(make: type[Sampler]) -> None:
    """Logistic noise has variance pi^2 / 3 and fourth moment 7 pi^4 / 15."""

    def energy(q: Tensor) -> Tensor:
        return (-q + 2 * torch.nn.functional.softplus(q)).sum(-1)

    exact = torch.logit(torch.rand(2000, 2))
    q = collect(make(energy, 1.0, torch.ones(2)), exact, 0, 6)["q"]
    assert ((q[-1] - exact).abs() > 0.1).double().mean() > 0.8  # it moved, and stayed where it should
    assert (errors_away(q, torch.zeros(2)) < 4.5).all()
    assert (errors_away(q**2, torch.full((2,), math.pi**2 / 3)) < 4.5).all()
    assert (errors_away(q**4, torch.full((2,), 7 * math.pi**4 / 15)) < 4.5).all()


@pytest.mark.usefixtures("double")
def test_each_chain_is_what_it_would_be_alone_but_for_its_random_numbers() -> None:
    """A chain that stops early is not moved by those that go on: its state is one of its own trajectory's."""

    precision = torch.tensor([1.0, 100.0]).repeat(500).unsqueeze(-1)  # every other target is ten times narrower

    def energy(q: Tensor) -> Tensor:
        return 0.5 * (q.square() * precision).sum(-1)

    drawn = collect(NUTS(energy, 0.15, torch.ones(3)), torch.randn(1000, 3) / precision.sqrt(), 0, 8)
    wide, narrow = drawn["q"][:, 0::2], drawn["q"][:, 1::2]
    assert drawn["steps"][:, 0::2].mean() > 3 * drawn["steps"][:, 1::2].mean()
    assert (errors_away(wide.square(), torch.ones(3)) < 4.5).all()
    assert (errors_away(narrow.square(), torch.full((3,), 0.01)) < 4.5).all()
    assert (errors_away(wide, torch.zeros(3)) < 4.5).all()


@pytest.mark.usefixtures("double")
def test_steps_that_are_too_large_diverge_and_are_told() -> None:
    def energy(q: Tensor) -> Tensor:
        return 0.5 * (1e4 * q.square()).sum(-1)

    for sampler in (NUTS(energy, 1.0, torch.ones(2)), HMC(energy, 1.0, torch.ones(2))):
        start = torch.full((3, 2), 0.01)
        draw = sampler.step(start)
        assert draw.diverging.all()
        assert torch.equal(draw.q, start)
    lost = NUTS(lambda q: torch.where(q > 0.5, torch.nan, 0.5 * q.square()).sum(-1), 0.5, torch.ones(1))
    drawn = collect(lost, torch.zeros(2, 1), 0, 50)
    assert torch.isfinite(drawn["q"]).all()
    assert drawn["diverging"].any()


def test_the_depth_of_a_tree_is_bounded() -> None:
    sampler = NUTS(lambda q: 0.5 * q.square().sum(-1), 1e-4, torch.ones(2), max_depth=3)
    assert (sampler.step(torch.ones(2, 2)).steps == 7).all()


def test_the_step_size_reaches_the_acceptance_it_aims_at() -> None:
    adapt = StepSize(1.0, 0.8)
    size = 1.0
    for _ in range(2000):
        size = adapt.update(math.exp(-size))  # 0.8 at a size of -ln 0.8
    assert adapt.final() == pytest.approx(-math.log(0.8), rel=0.05)


def test_windows_lie_inside_the_warm_up_and_grow() -> None:
    assert windows(1) == set()
    assert sorted(windows(500)) == [100, 150, 250, 450]
    assert all(15 < end <= 90 for end in windows(100))
