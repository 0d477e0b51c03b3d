"""The model with f, c_hat, z_hat and experts integrated out: the full model's density, by Bayes' rule at any point."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroSample
from tiny import LIKELIHOOD_CASES, I, K, N, mean_and_error, tiny_data, tiny_model
from torch import Tensor

from esmc_pyro.models import ESMC, Bernoulli, Experts, Layer, Likelihood, Marginal, observed

BATCH = torch.tensor([10, 1, 4, 0])  # an unlabelled row, one with an unknown entry, two others


def spread_model(X: Tensor, Y: Tensor, depth: int, likelihood: Likelihood) -> ESMC:
    """A model whose pseudo-instances all differ, so that dense algebra with ``K`` is safe."""
    model = tiny_model(X, Y, depth, likelihood, mean="linear", fitc=depth == 2)
    with torch.no_grad():
        for layer in model.layers:
            layer.pseudo_instances.copy_(2 * torch.randn_like(layer.pseudo_instances))
    return model


def latent_values(trace: poutine.Trace) -> dict[str, Tensor]:
    """Drawn values by site, deterministic ones included."""
    return {
        name: node["value"]
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name != "y" and node["value"].is_floating_point()  # a plate's are indices
    }


def density_of_the_rest(model: ESMC, values: dict[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """``ln p(f | u) + ln p(c_hat | c, u, x)``, summed over layers, at ``values``; by dense Gaussian algebra."""
    result, h = x.new_zeros(()), x
    for layer in model.layers:
        k, f, u = layer.covariance(), values[f"f_{layer.site}"], values[f"u_{layer.site}"]
        gain = k @ torch.linalg.inv(k + layer.alpha**2 * torch.eye(len(k)))
        rest = k - gain @ k
        result = result + dist.MultivariateNormal(u @ gain.mT, (rest + rest.mT) / 2).log_prob(f).sum()
        prior, h = layer.conditional(h, u), values[layer.site]
        precision = prior.scale**-2 + layer.gamma**-2
        mean = (prior.loc * prior.scale**-2 + h * layer.gamma**-2) / precision
        result = result + scale * dist.Normal(mean, precision.rsqrt()).log_prob(values[layer.hat]).sum()
    return result


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("rows", [None, BATCH], ids=["all rows", "a batch"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("case", LIKELIHOOD_CASES)
def test_it_is_the_full_density_over_that_of_what_is_integrated_out(case: str, depth: int, rows: Tensor | None) -> None:
    """``p(kept, y) = p(everything, y) / p(integrated out | kept, y)``, at any value of what is integrated out."""
    X, Y = tiny_data()
    model = spread_model(X, Y, depth, LIKELIHOOD_CASES[case][1]())
    some = torch.arange(N + I) if rows is None else rows
    y, known = observed(Y, some)
    drawn = poutine.trace(Marginal(model)).get_trace(X, Y, rows)
    kept = {name: value for name, value in latent_values(drawn).items() if name[0] != "v"}
    volume = sum(layer.outputs * layer.factor().diagonal().log().sum() for layer in model.layers)  # of u = Lw v
    for _ in range(2):
        values = latent_values(poutine.trace(poutine.condition(model, data=kept)).get_trace(X, Y, rows))
        with pyro.plate("instances", N + I, subsample=rows, dim=-1):  # p(E | z, y), drawn
            experts = poutine.trace(model.likelihood.guide).get_trace(values["z"], y, known)
        values |= latent_values(experts)
        full = poutine.trace(poutine.condition(model, data=values)).get_trace(X, Y, rows).log_prob_sum()
        rest = density_of_the_rest(model, values, X[some], (N + I) / len(some)) + experts.log_prob_sum()
        assert torch.isfinite(full)
        assert torch.allclose(drawn.log_prob_sum(), full - rest + volume, rtol=1e-7)


@pytest.mark.usefixtures("double")
def test_experts_summed_out_are_the_sum_over_all_their_opinions() -> None:
    X, Y = tiny_data()
    model = spread_model(X, Y, 1, Experts(2))
    kept = latent_values(poutine.trace(Marginal(model)).get_trace(X, Y))
    marginal = poutine.trace(poutine.condition(Marginal(model), data=kept)).get_trace(X, Y).nodes["y"]
    one = {name: kept[name] for name in ("u_z", "z")}
    p = torch.zeros(N + I, K)
    for first in (0.0, 1.0):
        for second in (0.0, 1.0):
            experts = torch.tensor([first, second])[:, None, None].expand(2, N + I, K)
            agreed = experts[0] * experts.mean(0)
            opinions = dist.Bernoulli(logits=model.likelihood.lambda_ * one["z"]).log_prob(experts).sum(0)
            y, known = observed(Y, torch.arange(N + I))
            p += torch.where(~known | (agreed == y), opinions.exp(), torch.zeros(()))
    assert torch.allclose(marginal["fn"].log_prob(marginal["value"]), p.log().sum(-1))


def test_draws_of_y_follow_the_full_model() -> None:
    """Moments of z and y over 4000 prior draws of both programs, within 4 standard errors."""
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, Experts(3))
    moments = []
    for program in (model, Marginal(model)):
        with torch.no_grad(), pyro.plate("draws", 4000, dim=-3):
            nodes = poutine.trace(program).get_trace(X).nodes
        z, y = nodes["z"]["value"].reshape(4000, -1), nodes["y"]["value"].reshape(4000, -1)
        moments.append(mean_and_error(torch.cat([z, z.square(), z[:, :K] * z[:, K : 2 * K], y], dim=1)))
    (a, error_a), (b, error_b) = moments
    assert ((a - b).abs() < 4 * (error_a**2 + error_b**2).sqrt()).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("dim", [-2, -3])
def test_particles_at_once_are_particles_one_by_one(depth: int, dim: int) -> None:
    X, Y = tiny_data()
    marginal = Marginal(tiny_model(X, Y, depth, Experts(3)))
    with pyro.plate("particles", 5, dim=dim):
        trace = poutine.trace(marginal).get_trace(X, Y, BATCH)
    trace.compute_log_prob()
    sites = [node for node in trace.nodes.values() if node["type"] == "sample" and "log_prob" in node]
    together = sum(node["log_prob"].reshape(5, -1).sum(1) for node in sites if node["log_prob"].dim() == -dim)
    values = latent_values(trace)
    for particle in range(5):
        one = {name: value[particle].reshape(value.shape[-2:]) for name, value in values.items() if name[0] != "u"}
        alone = poutine.trace(poutine.condition(marginal, data=one)).get_trace(X, Y, BATCH).log_prob_sum()
        assert together[particle].item() == pytest.approx(alone.item(), rel=1e-4)


def test_unknown_entries_leave_finite_gradients_and_the_models_parameters_are_its_own() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, Bernoulli(), learn=Layer.LEARNABLE)
    marginal = Marginal(model)
    poutine.trace(marginal).get_trace(X, Y).log_prob_sum().backward()
    gradients = [p.grad for p in marginal.parameters() if p.grad is not None]
    assert len(gradients) == len([p for p in model.parameters() if p.requires_grad])
    assert all(torch.isfinite(g).all() for g in gradients)


def test_priors_on_parameters_are_drawn_once_for_all_rows_and_keep_their_names() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2)
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.3))
    model.layers[1].gamma = PyroSample(dist.LogNormal(-1.0, 0.3))
    marginal = Marginal(model)
    for program in (model, marginal, model):
        nodes = poutine.trace(program).get_trace(X, Y, BATCH).nodes
        for name in ("esmc.layers.0.kernel.lengthscale", "esmc.layers.1.gamma"):
            assert nodes[name]["value"].shape == ()
            assert nodes[name]["scale"] == 1.0
            assert not nodes[name]["cond_indep_stack"]
