"""Where a fit starts."""

import pytest
import torch
from tiny import tiny_data, tiny_model

from esmc_pyro.data import simulate
from esmc_pyro.guides import DoublyStochasticGuide, PaperGuide, label_informed_start
from esmc_pyro.guides.start import regress, suitability_target
from esmc_pyro.metrics import paper_auc
from esmc_pyro.models import ESMC, Bernoulli, Gaussian, rules

pytestmark = pytest.mark.usefixtures("double")


def test_target_fills_the_unknown_with_the_mean_of_the_known() -> None:
    X, _ = tiny_data(0)
    Y = torch.tensor([[1, torch.nan], [1, 0], [0, torch.nan], [torch.nan, 0]])
    model = tiny_model(X[:4], Y, 1, Bernoulli(2.0))
    third = (1 + 1 - 1) / 3
    assert suitability_target(model, Y).flatten().tolist() == pytest.approx([1, -1, 1, -1, -1, -1, third, -1])
    model = tiny_model(X[:4], Y, 1, Gaussian())
    assert suitability_target(model, Y).flatten().tolist() == pytest.approx([1, 0, 1, 0, 0, 0, 2 / 3, 0])


def test_regression_is_ridge_on_the_whitened_features() -> None:
    X, Y = tiny_data(0)
    layer = tiny_model(X, Y, 1, mean="constant").layers[0]
    target = torch.randn(len(X), layer.outputs)
    u = regress(layer, X, target, 0.7)
    a = layer.features(X)
    gram = a.mT @ a + 0.49 * torch.eye(layer.pseudo_count)
    v = torch.linalg.solve(gram, a.mT @ (target - layer.mean.offset)).mT
    assert torch.allclose(u, v @ layer.factor().mT)


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_latent_layers_start_at_unit_variance_and_the_next_layer_moves_there(mean: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 3, mean=mean)
    us = label_informed_start(model, X, Y)
    assert [u.shape for u in us] == [(layer.outputs, layer.pseudo_count) for layer in model.layers]
    outputs = model.plug_in(X, us)
    for depth in (0, 1):
        assert torch.allclose(outputs[depth].std(0, correction=0), torch.ones(model.layers[depth].outputs), rtol=1e-3)
        layer, following = model.layers[depth], model.layers[depth + 1]
        inner = X if depth == 0 else outputs[0]
        assert torch.allclose(following.pseudo_instances, layer.predict(layer.pseudo_instances, us[depth]))
        scale = rules.lengthscale_from_distances(layer.predict(inner, us[depth]))
        assert following.kernel.lengthscale.item() == pytest.approx(scale)


def test_a_length_scale_that_was_chosen_stays() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, lengthscale=[2.0, 7.0])
    label_informed_start(model, X, Y)
    assert [layer.kernel.lengthscale.item() for layer in model.layers] == pytest.approx([2.0, 7.0])


def test_layers_of_different_size_take_data_rows() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, pseudo=[5, 7])
    us = label_informed_start(model, X, Y)
    latent = model.plug_in(X, us)[0]
    assert all(torch.isclose(latent, point).all(1).any() for point in model.layers[1].pseudo_instances)


@pytest.mark.parametrize("guide", [PaperGuide, DoublyStochasticGuide])
def test_starting_at_labels_ranks_better_than_chance_and_zero_is_chance(guide: type) -> None:
    X, Y, _, _ = simulate(300, 2, 10, 2, seed=2)
    aucs = {}
    for start in ("labels", "zero"):
        model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", pseudo=20)
        us = guide(model, X, Y, start=start).u_means()
        aucs[start] = paper_auc(Y.numpy(), model.plug_in(X, us)[-1].detach().numpy())
    assert aucs["zero"] == pytest.approx(0.5)
    assert aucs["labels"] > 0.75


def test_one_row_and_one_constant_label_start_finite() -> None:
    X, Y = torch.randn(1, 2), torch.ones(1, 1)
    model = ESMC.from_data(X, Y, [1], likelihood="bernoulli")
    assert all(torch.isfinite(u).all() for u in label_informed_start(model, X, Y))
