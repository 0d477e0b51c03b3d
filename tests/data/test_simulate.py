"""Draws from the model's own prior."""

import pytest
import torch

from esmc_pyro.data import simulate
from esmc_pyro.metrics import paper_auc
from esmc_pyro.models import EEOE, MPU, Experts, Gaussian, rules

CASES = {"bernoulli": "bernoulli", "eeoe": EEOE(4), "mpu": MPU(0.3), "gaussian": Gaussian(0.2), "experts": Experts(4)}


@pytest.mark.parametrize("case", CASES)
def test_shapes_truth_and_labels(case: str) -> None:
    X, Y, truth, model = simulate(60, 3, 5, 2, likelihood=CASES[case], pseudo=10, seed=1)
    assert X.shape == (60, 3)
    assert Y.shape == (60, 5)
    assert set(Y.unique().tolist()) == {0.0, 1.0}
    shapes = {"f_c": (2, 10), "u_c": (2, 10), "c_hat": (60, 2), "c": (60, 2), "f_z": (5, 10), "u_z": (5, 10),
              "z_hat": (60, 5), "z": (60, 5), "suitability": (60, 5)}  # fmt: skip
    assert {site: value.shape for site, value in truth.items()} == shapes
    assert torch.allclose(truth["suitability"], model.likelihood.suitability(truth["z"]))
    assert not any(value.requires_grad for value in truth.values())


def test_the_truth_is_of_the_model() -> None:
    X, _, truth, model = simulate(40, 2, 4, 2, pseudo=10, beta=1e-4, gamma=1e-4)
    c, z = model.plug_in(X, [truth["u_c"], truth["u_z"]])
    assert torch.allclose(truth["c"], c, atol=0.01)
    assert torch.allclose(truth["z"], z, atol=0.05)
    S_z = rules.latent_pseudo_instances(model.layers[0], truth["u_c"])
    assert torch.equal(model.layers[1].pseudo_instances, S_z)


@pytest.mark.parametrize("likelihood", [EEOE(3), Experts(3), MPU(0.4)])
def test_labels_have_their_probabilities_given_z(likelihood: object) -> None:
    data = simulate(4000, 2, 5, 1, likelihood=likelihood, seed=4)
    z = data.truth["z"]
    odds = likelihood.log_prob(torch.ones_like(z), z) - likelihood.log_prob(torch.zeros_like(z), z)
    p = torch.sigmoid(odds)
    error = (p * (1 - p)).sum().sqrt()
    assert (data.Y.sum() - p.sum()).abs() < 4 * error
    high = p > 0.5
    assert (data.Y[high].sum() - p[high].sum()).abs() < 4 * (p * (1 - p))[high].sum().sqrt()


def test_amplitude_and_offset_shape_z() -> None:
    rare = simulate(500, 3, 40, 3, amplitude=2.0, offset=-3.0, seed=2)
    assert rare.Y.mean() < 0.25
    assert rare.truth["z"].mean() == pytest.approx(-3.0, abs=0.6)
    assert rare.truth["z"].std() == pytest.approx(2.0, abs=0.6)
    assert paper_auc(rare.Y.numpy(), rare.truth["z"].numpy()) > 0.8


@pytest.mark.parametrize(("L", "names"), [([], ["z"]), ([3, 2], ["c1", "c2", "z"])])
def test_any_depth(L: list[int], names: list[str]) -> None:
    data = simulate(30, 2, 4, L, pseudo=6)
    assert [layer.site for layer in data.model.layers] == names
    assert set(names) <= set(data.truth)


def test_same_seed_same_data_and_the_callers_state_is_untouched() -> None:
    before = torch.get_rng_state()
    one, two, other = simulate(20, 2, 3, 1, seed=5), simulate(20, 2, 3, 1, seed=5), simulate(20, 2, 3, 1, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.Y, two.Y)
    assert torch.equal(one.X, two.X)
    assert not torch.equal(one.X, other.X)


def test_bad_sizes_are_said() -> None:
    with pytest.raises(ValueError, match="N must be a whole number of at least 1; got 0"):
        simulate(0)
    with pytest.raises(ValueError, match="L must be a whole number of at least 1; got 0"):
        simulate(5, L=0)
    with pytest.raises(ValueError, match="amplitude must be a number above 0; got -1"):
        simulate(5, amplitude=-1)
