"""What ``fit_analytic`` says to models, options and data it cannot work with: one sentence each."""

import re
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.nn import PyroSample
from torch import nn

from esmc_pyro.inference import fit_analytic
from esmc_pyro.models import ESMC, Experts, Gaussian, Layer, make_kernel
from esmc_pyro.models.means import Linear


def with_layer(**changes: Any) -> ESMC:
    layers = [
        Layer("c", make_kernel("rbf", 3), torch.randn(4, 3), 2).learn(),
        Layer("z", make_kernel(changes.pop("kernel", "rbf"), 2), torch.randn(4, 2), 3, plate="labels", **changes),
    ]
    return ESMC(layers, Experts(2))


class _Half(RBF):
    """A kernel of one's own that is no RBF, though its class is one."""

    def forward(self, *given: Any, **options: Any) -> torch.Tensor:
        return super().forward(*given, **options).sqrt()


def learning_likelihood() -> ESMC:
    model = with_layer()
    model.likelihood = Gaussian(learn_noise=True)
    return model


def with_prior() -> ESMC:
    model = with_layer()
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    return model


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (with_layer(fitc=True), {}, "layer 'z' has fitc=True, whose input-dependent variance has no closed-form bound"),
        (with_layer(kernel="matern32"), {}, "layer 'z' must have the kernel 'rbf'"),
        (with_layer(kernel=_Half(2)), {}, "layer 'z' must have the kernel 'rbf' for the analytic solver, which"),
        (with_layer(kernel=RBF(1, active_dims=[1])), {}, "must see all 2 inputs in order for the analytic solver; got"),
        (
            with_layer(kernel=RBF(2, active_dims=[1, 0])),
            {},
            "layer 'z' must see all 2 inputs in order for the analytic",
        ),
        (with_layer(mean=Linear(torch.zeros(2, 3))), {}, "layer 'z' must have no mean function or a Constant one"),
        (learning_likelihood(), {}, "got the likelihood Gaussian with parameters to learn"),
        (with_prior(), {}, "got layer 'c' with a prior on some"),
        (with_layer(learn=["gamma"]), {}, "holds the model's parameters fixed; got layer 'z' that learns ['gamma']"),
        (nn.Identity(), {}, "model must be an ESMC; got Identity"),
        (with_layer(), {"q_c": "newton"}, "q_c must be one of ['forward', 'gradient']; got 'newton'"),
        (with_layer(), {"sweeps": 0}, "sweeps must be a whole number of at least 1; got 0"),
        (with_layer(), {"covariance": "banded"}, "covariance must be one of ['diagonal', 'full']; got 'banded'"),
        (with_layer(), {"start": "here"}, "start must be one of ['labels', 'zero']; got 'here'"),
        (with_layer(), {"clamp": "big"}, "clamp must be a number"),
        (with_layer(), {"refresh": "often"}, "refresh must be one of ['pseudo']; got 'often'"),
        (with_layer(), {"refresh": torch.arange(3)}, "refresh must give 4 pseudo-instances to layer 'z'; it gives 3"),
        (with_layer(), {"refresh": torch.arange(4) + 9}, "refresh must be 'pseudo' or row numbers from 0 to 9"),
        (with_layer(), {"speed": 3}, "options must be among"),
        (with_layer(), {"sigmoid": "quadrature", "clamp": 3.0}, "clamp and xi_start belong to experts"),
    ],
)
def test_bad_input_gets_one_sentence(model: Any, options: dict[str, Any], sentence: str) -> None:
    X, Y = torch.randn(10, 3), torch.zeros(10, 3)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fit_analytic(model, X, Y, **options)


def test_data_that_do_not_fit_the_model() -> None:
    model = with_layer()
    with pytest.raises(ValueError, match="Y must have a column for each of the model's 3 labels; got 2"):
        fit_analytic(model, torch.randn(5, 3), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="X must have 3 columns, as the model's pseudo-instances; got 4"):
        fit_analytic(model, torch.randn(5, 4), torch.zeros(5, 3))
    one = ESMC([Layer("z", make_kernel("rbf", 3), torch.randn(4, 3), 3, plate="labels").learn()], Gaussian())
    with pytest.raises(ValueError, match="got a model with one layer"):
        fit_analytic(one, torch.randn(5, 3), torch.zeros(5, 3), refresh="pseudo")
