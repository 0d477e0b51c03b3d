"""The amortised guide: where it begins, what its encoder reads, and what it gains."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from tiny import K, N, agree, elbo, shake, tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.guides import AmortizedGuide, DoublyStochasticGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC, Gaussian

pytestmark = pytest.mark.usefixtures("double")


def make(depth: int = 2, shaken: bool = True, **options: float) -> tuple[ESMC, AmortizedGuide, Tensor, Tensor]:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, **options)
    guide = AmortizedGuide(model, X, Y, hidden=[6])
    return model, shake(guide, 0.3) if shaken else guide, X, Y


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("fitc", [False, True])
def test_it_begins_as_the_doubly_stochastic_guide(depth: int, fitc: bool) -> None:
    model, guide, X, Y = make(depth, shaken=False, fitc=fitc)
    other = DoublyStochasticGuide(model, X, Y, start="zero")
    other.load_state_dict({name: guide.state_dict()[name] for name in other.state_dict()})
    assert agree(elbo(model, guide, X, Y), elbo(model, other, X, Y))


def test_with_one_layer_it_is_the_doubly_stochastic_guide() -> None:
    model, guide, X, Y = make(1)
    other = DoublyStochasticGuide(model, X, Y)
    other.load_state_dict(guide.state_dict())  # no encoder: the same parameters
    values = []
    for q in (guide, other):
        torch.manual_seed(3)
        values.append(poutine.trace(q).get_trace(X, Y).nodes)
    for site in ("u_z", "f_z", "z_hat", "z"):
        assert torch.equal(values[0][site]["value"], values[1][site]["value"])


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("fitc", [False, True])
def test_given_c_the_noiseless_c_hat_has_the_models_own_conditional(depth: int, fitc: bool) -> None:
    """``p(c_hat) p(c | c_hat) / q(c_hat | c) = p(c | x, u) = N(m, s^2)``, whatever was drawn."""
    model, guide, X, Y = make(depth, fitc=fitc)
    q = poutine.trace(guide).get_trace(X, Y)
    p = poutine.trace(poutine.replay(model, trace=q)).get_trace(X, Y)
    q.compute_log_prob()
    p.compute_log_prob()
    h = X
    for layer in list(model.layers)[:-1]:
        hat = layer.conditional(h, q.nodes[f"u_{layer.site}"]["value"])
        c = q.nodes[layer.site]["value"]
        marginal = Normal(hat.loc, (hat.variance + layer.gamma**2).sqrt()).log_prob(c).sum(-1)
        ratio = p.nodes[layer.hat]["log_prob"] + p.nodes[layer.site]["log_prob"] - q.nodes[layer.hat]["log_prob"]
        assert torch.allclose(ratio, marginal)
        h = c


def q_c(guide: AmortizedGuide, X: Tensor, Y: Tensor, rows: Tensor) -> Tensor:
    """Mean and scale of ``q(c)`` for these rows, at ``E u``: n x 2L."""
    us = {f"u_{layer.site}": u for layer, u in zip(guide.model.layers, guide.u_means(), strict=True)}
    with torch.no_grad():
        base = poutine.trace(poutine.condition(guide, data=us)).get_trace(X, Y, rows).nodes["c"]["fn"].base_dist
    return torch.cat([base.loc, base.scale], -1)


def test_a_row_has_one_factor_in_every_batch_and_in_other_data() -> None:
    _, guide, X, Y = make()
    everything = q_c(guide, X, Y, torch.arange(len(X)))
    assert torch.allclose(q_c(guide, X, Y, torch.tensor([9, 1])), everything[[9, 1]])
    assert torch.allclose(q_c(guide, X[1:3], Y[1:3], torch.tensor([1])), everything[[2]])
    assert guide.rows is None
    fewer = AmortizedGuide(guide.model, X[:6], Y[:6], hidden=[6], start="zero")
    assert [p.shape for p in fewer.parameters()] == [p.shape for p in guide.parameters()]


def test_the_encoder_reads_known_labels_and_which_they_are() -> None:
    _, guide, X, Y = make()
    rows = torch.arange(N)
    before = q_c(guide, X, Y, rows)
    flipped, unknown = Y.clone(), Y.clone()
    flipped[0, 0] = 1 - flipped[0, 0]
    unknown[0, Y[0] == 0] = torch.nan  # filled with the zeros they were: only the mask tells
    for changed in (flipped, unknown):
        after = q_c(guide, X, changed, rows)
        assert not torch.allclose(after[0], before[0])
        assert torch.equal(after[1:], before[1:])
    # a row beyond Y is one of which nothing is known
    nothing = torch.cat([Y, torch.full((len(X) - N, K), torch.nan)])
    assert torch.equal(q_c(guide, X, nothing, torch.tensor([N])), q_c(guide, X, Y, torch.tensor([N])))


def test_its_bound_is_the_higher_one_where_labels_pull_at_c() -> None:
    """Noise of c as large as its function, labels almost exact: the model's own p(c | x, u) is a poor q(c)."""
    X, Y = tiny_data(unlabelled=0)
    bounds = {}
    for name in ("doubly_stochastic", "amortized"):
        model = tiny_model(X, Y, 2, Gaussian(0.3), gamma=[1.0, 0.1], beta=0.1)
        posterior = fit_svi(model, X, Y, guide=name, epochs=40, lr=0.1, progress=False)
        bounds[name] = elbo(model, posterior.guide, X, Y)
    gain = bounds["amortized"][0] - bounds["doubly_stochastic"][0]
    assert gain > 4 * (bounds["amortized"][1] ** 2 + bounds["doubly_stochastic"][1] ** 2).sqrt()


@pytest.mark.parametrize("hidden", [0, [4, 0], 2.5, [2.5], True])
def test_bad_widths_are_said(hidden: object) -> None:
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=r"hidden must be a whole number of at least 1; got (0|2.5|True)"):
        AmortizedGuide(tiny_model(X, Y), X, Y, hidden=hidden)


def test_vectorised_particles_reach_the_encoder() -> None:
    _, guide, X, Y = make(3)
    with pyro.plate("particles", 4, dim=-3):
        nodes = poutine.trace(guide).get_trace(X, Y).nodes
    assert nodes["c1"]["value"].shape == (4, 1, len(X), 3)
    assert nodes["z"]["value"].shape == (4, 1, len(X), K)
