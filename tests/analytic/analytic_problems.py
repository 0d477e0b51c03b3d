"""Small random problems for the tests of the analytic solver, all float64."""

from __future__ import annotations

import torch
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic import Options, Solver
from esmc_pyro.models import EEOE, ESMC, MPU, Bernoulli, Experts, Gaussian, Layer, Likelihood, make_kernel
from esmc_pyro.models.means import Constant


def make_likelihood(name: str) -> Likelihood:
    """A fresh likelihood by a short name."""
    return {
        "experts": lambda: Experts(4, lambda_=0.8),
        "summed": lambda: Experts(4, lambda_=0.8, explicit=False),
        "bernoulli": lambda: Bernoulli(lambda_=1.3),
        "gaussian": lambda: Gaussian(noise=0.4),
        "eeoe": lambda: EEOE(5.0),
        "mpu": lambda: MPU(0.3),
    }[name]()


LIKELIHOODS = ["experts", "summed", "bernoulli", "gaussian", "eeoe", "mpu"]


def make_data(
    seed: int, N: int = 7, labelled: int = 5, F: int = 3, K: int = 3, unknown: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Features of ``N`` rows and labels of the first ``labelled``, some of them unknown."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, F, generator=generator, dtype=torch.float64)
    Y = (torch.rand(labelled, K, generator=generator) < 0.4).double()
    Y[torch.rand(labelled, K, generator=generator) < unknown] = torch.nan
    Y[0, 0] = 1.0
    return X, Y


def make_model(
    X: Tensor, K: int, widths: list[int], likelihood: Likelihood, M: int = 3, seed: int = 0, noise: float = 0.4
) -> ESMC:
    """Layers with their own kernels, noises, sizes and a constant mean on top."""
    generator = torch.Generator().manual_seed(seed + 100)
    names = ["z"] if not widths else ["c", "z"] if len(widths) == 1 else ["c1", "c2", "z"]
    layers, inputs = [], X.shape[1]
    for depth, (name, outputs) in enumerate(zip(names, [*widths, K], strict=True)):
        kernel = make_kernel("matern32" if depth == 0 else "rbf", inputs, lengthscale=1.2, variance=1.5, ard=depth > 0)
        S = torch.randn(M + depth, inputs, generator=generator, dtype=torch.float64)
        mean = Constant(torch.linspace(-1, 1, outputs, dtype=torch.float64)) if name == "z" else None
        plate = "labels" if name == "z" else f"latent{name[1:]}"
        layer = Layer(name, kernel, S, outputs, plate=plate, alpha=0.7 * noise, beta=0.2, gamma=noise, mean=mean)
        layers.append(layer.learn())
        inputs = outputs
    return ESMC(layers, likelihood)


def random_guide(model: ESMC, X: Tensor, Y: Tensor, covariance: str, seed: int = 0) -> PaperGuide:
    """A guide with every parameter away from its start."""
    guide = PaperGuide(model, X, Y, covariance=covariance, start="zero")  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed + 200)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return guide


def make_solver(seed: int = 0, likelihood: str = "bernoulli", covariance: str = "full", **options: object) -> Solver:
    """A two-layer problem at a random ``q``."""
    X, Y = make_data(seed)
    model = make_model(X, Y.shape[1], [2], make_likelihood(likelihood), seed=seed)
    return Solver(model, X, Y, random_guide(model, X, Y, covariance, seed), Options(**options))  # type: ignore[arg-type]
