"""Likelihoods with numbers for each label: equalities between them, what labels tell them, and what they learn."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr as scipy_log_ndtr
from tiny import tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.metrics import propensities
from esmc_pyro.models import (
    EEOE,
    ESMC,
    LIKELIHOODS,
    MPU,
    Bernoulli,
    LearnedEEOE,
    LearnedMPU,
    Likelihood,
    NoisyOr,
    Probit,
    Propensity,
    make_likelihood,
)
from esmc_pyro.models.likelihoods.links import log_ndtr
from esmc_pyro.models.rules import experts_from_ratio

pytestmark = pytest.mark.usefixtures("double")

EQUAL = {
    "learned B, B": (lambda: LearnedEEOE([6.0] * 3, 0.8), lambda: EEOE(6, 0.8)),
    "learned B for all, B": (lambda: LearnedEEOE(6.0, 0.8), lambda: EEOE(6, 0.8)),
    "B per label, B": (lambda: EEOE([6, 6, 6], 0.8), lambda: EEOE(6, 0.8)),
    "B of 1, bernoulli": (lambda: EEOE([1, 1, 1], 0.8), lambda: Bernoulli(0.8)),
    "learned c, c": (lambda: LearnedMPU(0.3, 1.2), lambda: MPU(0.3, 1.2)),
    "learned c per label, c per label": (lambda: LearnedMPU([0.1, 0.3, 0.6]), lambda: MPU([0.1, 0.3, 0.6])),
    "c of 0, bernoulli": (lambda: MPU([0, 0, 0], 1.2), lambda: Bernoulli(1.2)),
    "no leak, c": (lambda: NoisyOr([0.1, 0.3, 0.6]), lambda: MPU([0.1, 0.3, 0.6])),
    "next to no leak, c": (lambda: NoisyOr([0.1, 0.3, 0.6], 1e-200), lambda: MPU([0.1, 0.3, 0.6])),
    "propensity, c": (lambda: Propensity([0.9, 0.7, 0.4]), lambda: MPU([0.1, 0.3, 0.6])),
    "propensity of 1, bernoulli": (lambda: Propensity(1.0), lambda: Bernoulli()),
}


@pytest.mark.parametrize("pair", EQUAL)
def test_likelihoods_are_equal_where_theory_says_so(pair: str) -> None:
    a, b = (make() for make in EQUAL[pair])
    z = torch.linspace(-9, 9, 30).reshape(10, 3)
    for y in (torch.zeros_like(z), torch.ones_like(z)):
        assert torch.allclose(a.log_prob(y, z), b.log_prob(y, z), atol=1e-9)
        assert torch.allclose(a.expected_log_prob(y, z, z**2), b.expected_log_prob(y, z, z**2), atol=1e-9)
    assert torch.allclose(a.prob(z), b.prob(z))
    assert torch.equal(a.suitability(z), b.suitability(z))


def test_a_noisy_or_is_two_causes() -> None:
    """By enumeration: the label fits and is not missed, or it came by itself."""
    miss, leak, z = torch.tensor([0.1, 0.5]), torch.tensor([0.02, 0.3]), torch.randn(5, 2)
    fits = torch.sigmoid(1.3 * z)
    total, unwritten = torch.zeros_like(z), torch.zeros_like(z)
    for suits in (0, 1):
        for missed in (0, 1):
            for came in (0, 1):
                p = (fits if suits else 1 - fits) * (miss if missed else 1 - miss) * (leak if came else 1 - leak)
                written = bool((suits and not missed) or came)
                total = total + p * written
                unwritten = unwritten + p * (suits and not written)
    likelihood = NoisyOr(miss, leak, 1.3)
    assert torch.allclose(likelihood.prob(z), total)
    assert torch.allclose(likelihood.missing(z), unwritten / (1 - total))
    assert torch.isfinite(MPU(0.0).missing(torch.tensor([500.0]))).all()


def test_the_weighted_loss_that_is_not_here_is_no_likelihood() -> None:
    """What ``Propensity`` says of the unbiased weighting: its exponentials do not sum to one, nor are they bounded."""
    p, sigma = 0.4, torch.tensor([0.2, 0.9, 0.999])
    one = sigma.log() / p + (1 - 1 / p) * (1 - sigma).log()
    zero = (1 - sigma).log()
    assert ((one.exp() + zero.exp() - 1).abs() > 0.1).any()
    assert one[-1] > 0
    # it is unbiased: averaged over which ones were recorded it is the loss of the full labels
    assert torch.allclose(p * one + (1 - p) * zero, sigma.log())


def test_log_ndtr_against_scipy_with_both_derivatives() -> None:
    x = torch.cat([torch.linspace(-60, 12, 3001), torch.tensor([-1e4, -300.0])]).requires_grad_()
    value = log_ndtr(x)
    assert np.allclose(value.detach(), scipy_log_ndtr(x.detach().numpy()), rtol=1e-13, atol=1e-15)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    mills = np.exp(-(x.detach().numpy() ** 2) / 2 - 0.5 * np.log(2 * np.pi) - scipy_log_ndtr(x.detach().numpy()))
    assert np.allclose(first.detach(), mills, rtol=1e-7, atol=1e-12)
    near = x.detach().abs() < 50  # further out the difference below loses its digits
    assert np.allclose(second[near], (-mills * (x.detach().numpy() + mills))[near], rtol=1e-6, atol=1e-8)
    assert torch.allclose(second[x.detach() < -50], torch.tensor(-1.0), atol=1e-3)
    assert torch.equal(Probit(2.0).log_prob(torch.zeros(1), torch.ones(1)), log_ndtr(torch.tensor([-2.0])))


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "mpu"])
def test_every_name_is_made_from_labels(name: str) -> None:
    X, Y = tiny_data()
    likelihood = ESMC.from_data(X, Y, likelihood=name, pseudo=3).likelihood
    assert type(likelihood) is LIKELIHOODS[name]
    assert likelihood.labels in (None, 4)
    assert all(parameter.dtype == X.dtype for parameter in likelihood.parameters())


def test_what_labels_tell() -> None:
    Y = torch.zeros(60, 3)
    Y[:3, 0], Y[:20, 1], Y[5:45, 2] = 1, 1, 1
    Y[50:, 2] = torch.nan
    assert np.allclose(Propensity.from_labels(Y).propensity.detach(), propensities(Y.numpy()))
    assert not any(parameter.requires_grad for parameter in Propensity.from_labels(Y).parameters())
    assert EEOE.from_labels(Y).B == experts_from_ratio(Y) == 1
    assert LearnedEEOE.from_labels(Y).B.tolist() == pytest.approx([2, 2, 2])
    assert make_likelihood("eeoe_learned", Y, B=7).B.tolist() == pytest.approx(7)
    assert LearnedMPU.from_labels(Y).c.shape == ()
    assert LearnedMPU.from_labels(Y, per_label=True).c.tolist() == pytest.approx([0.2] * 3)
    frequency = torch.tensor([3.5 / 61, 20.5 / 61, 40.5 / 51])
    assert torch.allclose(NoisyOr.from_labels(Y).leak, 0.1 * frequency)
    assert NoisyOr.from_labels(Y, leak=0.0).leak == 0


# truth, start, the numbers that are learned, and z with the whole curve in view
LEARNED = {
    "eeoe": (lambda: EEOE([2.0, 5.0, 12.0]), lambda: LearnedEEOE([4.0] * 3), ("B",)),
    "mpu": (lambda: MPU(0.4), lambda: LearnedMPU(0.2), ("c",)),
    "mpu per label": (lambda: MPU([0.1, 0.4, 0.7]), lambda: LearnedMPU([0.2] * 3), ("c",)),
    "noisy-or": (
        lambda: NoisyOr([0.1, 0.4, 0.7], [0.02, 0.05, 0.2]),
        lambda: NoisyOr([0.2] * 3, [0.1] * 3),
        ("miss", "leak"),
    ),
}


def maximise(likelihood: Likelihood, y: Tensor, z: Tensor) -> None:
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = -likelihood.log_prob(y, z).mean()
        total.backward()
        return total

    optimizer.step(loss)


@pytest.mark.parametrize("name", LEARNED)
def test_the_truth_is_learned_where_z_is_known(name: str) -> None:
    """Within 4 standard errors, those of the Fisher information of the logarithm (or log-odds) that is learned."""
    make_truth, make_start, learned = LEARNED[name]
    truth, likelihood = make_truth(), make_start()
    z = 4 * torch.randn(3000, 3)
    y = torch.bernoulli(truth.prob(z).detach())
    maximise(likelihood, y, z)
    parameters = [getattr(likelihood, f"{key}_unconstrained") for key in learned]
    sizes = [parameter.numel() for parameter in parameters]

    def total(flat: Tensor) -> Tensor:
        values = {f"{key}_unconstrained": part.reshape(p.shape) for key, part, p in
                  zip(learned, flat.split(sizes), parameters, strict=True)}  # fmt: skip
        return torch.func.functional_call(likelihood, values, (y, z), {"only_log_prob": True}).sum()

    likelihood.forward = lambda y, z, only_log_prob: likelihood.log_prob(y, z)  # type: ignore[method-assign]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    information = -torch.autograd.functional.hessian(total, flat)
    error = torch.linalg.inv(information).diagonal().sqrt()
    inverse = (lambda v: (v - 1).log()) if "B" in learned else torch.logit
    expected = torch.cat([inverse(torch.as_tensor(getattr(truth, key)).detach()).reshape(-1) for key in learned])
    assert (error < 0.5).all()
    assert ((flat - expected).abs() < 4 * error).all(), ((flat - expected) / error, error)


@pytest.mark.parametrize("name", ["eeoe_learned", "mpu_learned", "noisy_or"])
def test_a_fit_moves_what_is_learned_and_leaves_what_is_held(name: str) -> None:
    from esmc_pyro.inference import fit_svi

    X, Y = tiny_data()
    for held in (False, True):
        likelihood = make_likelihood(name, Y).requires_grad_(not held)
        before = [parameter.detach().clone() for parameter in likelihood.parameters()]
        model = tiny_model(X, Y, 1, likelihood)
        fit_svi(model, X[: len(Y)], Y, guide="doubly_stochastic", objective="collapsed", epochs=3, lr=0.05)
        moved = [not torch.equal(a, b) for a, b in zip(before, model.likelihood.parameters(), strict=True)]
        assert moved == [not held] * len(before)
        assert all(
            torch.equal(a, b) for a, b in zip(before, likelihood.parameters(), strict=True)
        )  # the model has a copy


@pytest.mark.parametrize("likelihood", [MPU(1e-9), MPU(0.3), Propensity(1.0), NoisyOr(0.1, 0.2)])
def test_missing_is_a_probability_where_a_label_surely_fits(likelihood: Likelihood) -> None:
    z = torch.tensor([-100.0, 0.0, 17.0, 40.0, 100.0])
    found = likelihood.missing(z)
    exact = copy.deepcopy(likelihood).double().missing(z.double())
    assert ((found >= 0) & (found <= 1)).all()
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-12)
    if isinstance(likelihood, MPU) and likelihood.c == 1e-9:
        assert found[2].item() == pytest.approx(1e-9 / (1e-9 + math.exp(-17)), rel=1e-4)
