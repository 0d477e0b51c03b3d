"""Data drawn from the model's own prior, with the truth kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from esmc_pyro.models import ESMC, Gaussian, Layer, Likelihood, make_kernel, make_likelihood, rules
from esmc_pyro.models.build import layer_names, plate_name
from esmc_pyro.models.means import Constant
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_number


class Simulation(NamedTuple):
    """``X`` (N x F), ``Y`` (N x K of 0 and 1), every site of the draw and ``suitability``, the model drawn from."""

    X: Tensor
    Y: Tensor
    truth: dict[str, Tensor]
    model: ESMC


def simulate(
    N: int = 500,
    F: int = 5,
    K: int = 20,
    L: int | Sequence[int] = 3,
    *,
    likelihood: str | Likelihood = "bernoulli",
    kernel: str = "rbf",
    pseudo: int = 50,
    amplitude: float = 3.0,
    offset: float = 0.0,
    alpha: float = 0.1,
    beta: float = 0.1,
    gamma: float = 0.1,
    seed: int = 0,
) -> Simulation:
    """One draw of ``x -> c -> z -> y`` for ``N`` standard normal instances.

    ``L`` is the latent width, or a list of them (empty: one layer). Every layer has a length-scale of the square root
    of the number of its inputs and, by the paper's rule, pseudo-instances where the layer before it puts its own. ``z``
    has a standard deviation near ``amplitude`` around ``offset``, which makes labels rare where it is negative.

    ``y`` is drawn given that it is 0 or 1: experts who disagree are asked again, with odds ``p(1 | z) : p(0 | z)``, and
    a Gaussian ``y`` is cut at one half.
    """
    for value, name in ((N, "N"), (F, "F"), (K, "K"), (pseudo, "pseudo")):
        check_number(value, name, low=1, whole=True)
    check_number(amplitude, "amplitude", low=0, above=True)
    widths = [L] if isinstance(L, int) else list(L)
    for width in widths:
        check_number(width, "L", low=1, whole=True)
    likelihood = make_likelihood(likelihood)
    with seeded(seed), torch.no_grad():
        X = torch.randn(N, F)
        names, sizes = layer_names(len(widths) + 1), [F, *widths, K]
        layers = [
            Layer(
                name,
                make_kernel(kernel, inputs, lengthscale=inputs**0.5, variance=amplitude**2 if name == "z" else 1.0),
                torch.zeros(pseudo, inputs),
                outputs,
                plate=plate_name(name),
                mean=Constant(torch.full((outputs,), float(offset))) if name == "z" and offset else None,
                alpha=alpha,
                beta=beta,
                gamma=gamma,
            )
            for name, inputs, outputs in zip(names, sizes[:-1], sizes[1:], strict=True)
        ]
        model = ESMC(layers, likelihood)
        functions: dict[str, Tensor] = {}
        points = X[rules.choose_pseudo_rows(N, pseudo, seed)]
        for layer in layers:
            layer.pseudo_instances.copy_(points)
            drawn = poutine.trace(layer.sample_functions).get_trace().nodes
            functions |= {site: drawn[site]["value"] for site in (f"f_{layer.site}", f"u_{layer.site}")}
            points = rules.latent_pseudo_instances(layer, functions[f"u_{layer.site}"])
        trace = poutine.trace(poutine.condition(model, data=functions)).get_trace(X)
        truth = {site: trace.nodes[site]["value"] for layer in layers for site in _sites(layer)}
        z = truth["z"]
        truth["suitability"] = likelihood.suitability(z)
        if isinstance(likelihood, Gaussian):
            Y = (trace.nodes["y"]["value"] > 0.5).to(X.dtype)
        else:
            odds = likelihood.log_prob(torch.ones_like(z), z) - likelihood.log_prob(torch.zeros_like(z), z)
            Y = torch.bernoulli(torch.sigmoid(odds))
    return Simulation(X, Y, truth, model)


def _sites(layer: Layer) -> tuple[str, ...]:
    return f"f_{layer.site}", f"u_{layer.site}", layer.hat, layer.site
