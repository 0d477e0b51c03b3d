"""The latent space up to rotation and sign: the model's own symmetry, and its undoing for plots."""

import copy

import numpy as np
import pytest
import torch
from pyro import poutine
from pyro.contrib.gp.kernels import RBF, Linear
from tiny import tiny_data, tiny_model

from esmc_pyro.alignment import align, orthogonal_map, symmetry
from esmc_pyro.models import ESMC, make_kernel

L = 3


def random_map(rng: np.random.Generator, kind: str) -> np.ndarray:
    if kind == "rotation":
        return np.linalg.qr(rng.standard_normal((L, L)))[0]
    return np.eye(L)[rng.permutation(L)] * rng.choice([-1.0, 1.0], L)


@pytest.mark.parametrize("kind", ["rotation", "permutation"])
def test_a_turned_copy_comes_back(kind: str) -> None:
    rng = np.random.default_rng(0)
    c = rng.standard_normal((30, L))
    turns = np.stack([random_map(rng, kind) for _ in range(5)])
    aligned = align(c @ turns, c, kind)
    np.testing.assert_allclose(aligned.c, np.broadcast_to(c, (5, 30, L)), atol=1e-10)
    np.testing.assert_allclose(aligned.maps, turns.transpose(0, 2, 1), atol=1e-10)
    np.testing.assert_allclose(align(c @ turns[0], c, kind).c[0], c, atol=1e-10)  # one fit


def test_permutations_are_the_best_of_all_signed_permutations() -> None:
    rng = np.random.default_rng(1)
    c, reference = rng.standard_normal((2, 12, L))
    found = np.square(c @ orthogonal_map(c, reference, "permutation") - reference).sum()
    every = [
        np.square(c @ (np.eye(L)[list(p)] * np.array(s)) - reference).sum()
        for p in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
        for s in np.ndindex(2, 2, 2)
        for s in [1.0 - 2.0 * np.array(s)]
    ]
    assert len(every) == 48
    assert found == pytest.approx(min(every))
    assert np.square(c @ orthogonal_map(c, reference) - reference).sum() < found  # rotations can only do better


@pytest.mark.parametrize("kind", ["rotation", "permutation"])
def test_without_a_reference_draws_meet_at_their_mean(kind: str) -> None:
    rng = np.random.default_rng(2)
    c = rng.standard_normal((40, L)) * [3.0, 2.0, 1.0]
    noisy = c + 0.1 * rng.standard_normal((25, 40, L))
    draws = np.stack([one @ random_map(rng, kind) for one in noisy])
    aligned = align(draws, symmetry=kind)
    assert draws.std(0).mean() > 0.5
    # noise of 0.1 is left; rotations take up a little of it, 3 of 120 degrees of freedom
    assert aligned.c.std(0).mean() == pytest.approx(0.1, rel=0.05)
    np.testing.assert_allclose(aligned.reference, aligned.c.mean(0), atol=1e-3)


def turned(model: ESMC, Q: torch.Tensor) -> ESMC:
    """The model in other latent coordinates: ``S_z Q``, and ``Q'`` times the slopes of the mean of ``z``."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layers[1].pseudo_instances.copy_(model.layers[1].pseudo_instances @ Q)
        other.layers[1].mean.weight.copy_(Q.T @ model.layers[1].mean.weight)
    return other


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "rbf+matern32"])
def test_the_model_does_not_know_which_way_round_c_is(kernel: str) -> None:
    """The joint density of every site, z and all, is the same at ``c``, ``u_c`` and at ``c Q``, ``Q' u_c``."""
    X, Y = tiny_data()
    model = tiny_model(X, Y, kernel=kernel, mean=["zero", "linear"])
    with torch.no_grad():
        model.layers[1].mean.weight.normal_()
    Q = torch.linalg.qr(torch.randn(2, 2))[0]
    assert not torch.allclose(Q.abs(), torch.eye(2), atol=0.1)
    with torch.no_grad():
        trace = poutine.trace(model).get_trace(X, Y)
        values = {name: trace.nodes[name]["value"] for name in ("f_c", "u_c", "c_hat", "c", "f_z", "u_z", "z_hat", "z")}
        rotated = values | {name: Q.T @ values[name] for name in ("f_c", "u_c")}
        rotated |= {name: values[name] @ Q for name in ("c_hat", "c")}
        other = turned(model, Q)
        again = poutine.trace(poutine.condition(other, data=rotated)).get_trace(X, Y)
        before = poutine.trace(poutine.condition(model, data=values)).get_trace(X, Y)
        z = [m.plug_in(X, [v["u_c"], v["u_z"]]) for m, v in ((model, values), (other, rotated))]
    assert torch.allclose(again.log_prob_sum(), before.log_prob_sum())
    assert torch.allclose(z[1][1], z[0][1])
    assert not torch.allclose(z[1][0], z[0][0], atol=0.1)
    np.testing.assert_allclose(align(z[1][0], z[0][0]).c[0], z[0][0], atol=1e-8)


@pytest.mark.usefixtures("double")
def test_rotations_change_a_laplacian_model_and_signed_permutations_do_not() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, kernel="laplacian", mean=["zero", "linear"])
    u_c, u_z = (torch.randn(layer.outputs, layer.pseudo_count) for layer in model.layers)
    z = model.plug_in(X, [u_c, u_z])[1]
    swap = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert torch.allclose(turned(model, swap).plug_in(X, [swap.T @ u_c, u_z])[1], z)
    Q = torch.linalg.qr(torch.randn(2, 2))[0]
    assert not torch.allclose(turned(model, Q).plug_in(X, [Q.T @ u_c, u_z])[1], z, atol=1e-3)


@pytest.mark.usefixtures("double")
def test_rotations_change_an_ard_model_and_signed_permutations_do_not() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, ard=[False, True], mean=["zero", "linear"])
    model.layers[1].kernel.lengthscale = torch.tensor([0.5, 2.0])
    u_c, u_z = (torch.randn(layer.outputs, layer.pseudo_count) for layer in model.layers)
    z = model.plug_in(X, [u_c, u_z])[1]
    swap = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    other = turned(model, swap)
    other.layers[1].kernel.lengthscale = torch.tensor([2.0, 0.5])
    assert torch.allclose(other.plug_in(X, [swap.T @ u_c, u_z])[1], z)
    Q = torch.linalg.qr(torch.randn(2, 2))[0]
    assert not torch.allclose(turned(model, Q).plug_in(X, [Q.T @ u_c, u_z])[1], z, atol=1e-3)


def test_symmetry_of_kernels() -> None:
    assert symmetry(make_kernel("rbf", 3)) == "rotation"
    assert symmetry(make_kernel("rbf", 3, ard=True)) == "permutation"
    assert symmetry(make_kernel("laplacian", 3)) == symmetry(make_kernel("rbf+laplacian", 3)) == "permutation"
    assert symmetry(make_kernel("rbf+matern12", 3)) == "rotation"
    assert symmetry(make_kernel("rbf+matern12", 3, ard=True)) == "permutation"
    for kernel in (RBF(2, active_dims=[0, 2]), Linear(2)):
        with pytest.raises(ValueError, match="kernel must be a stationary kernel of all its inputs; got"):
            symmetry(kernel)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"draws": np.zeros(3)}, r"draws must be finite, draws x rows x L; got shape \(3,\)"),
        ({"draws": np.full((2, 3, 2), np.nan)}, "draws must be finite"),
        ({"draws": np.zeros((2, 3, 2)), "reference": np.zeros(3)}, "reference must be a finite matrix, rows x L"),
        ({"draws": np.zeros((2, 3, 2)), "reference": np.zeros((3, 4))}, r"same shape; got \(3, 2\) and \(3, 4\)"),
        ({"draws": np.zeros((2, 3, 2)), "symmetry": "mirror"}, "symmetry must be one of .*; got 'mirror'"),
        ({"draws": np.zeros((2, 3, 2)), "iterations": 0}, "iterations must be a whole number of at least 1; got 0"),
    ],
)
def test_bad_arguments_are_said(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        align(**arguments)
