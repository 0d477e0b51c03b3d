"""Mean functions."""

import pytest
import torch

from esmc_pyro.models import Layer, make_kernel
from esmc_pyro.models.means import Constant, Linear, make_mean


def test_values() -> None:
    x, weight, offset = torch.randn(5, 3), torch.randn(3, 2), torch.randn(2)
    assert torch.equal(Constant(offset)(x), offset)
    assert torch.allclose(Linear(weight, offset)(x), x @ weight + offset)
    assert torch.allclose(Linear(weight)(x), x @ weight)


def test_by_name() -> None:
    constant = torch.tensor([1.0, -2.0])
    assert make_mean("zero", 3, constant) is None
    assert make_mean("constant", 3, constant)(torch.randn(4, 3)).tolist() == [1, -2]
    assert make_mean("linear", 3, constant)(torch.randn(4, 3)).tolist() == [[1, -2]] * 4
    with pytest.raises(ValueError, match=r"mean must be one of \['constant', 'linear', 'zero'\]; got 'cubic'"):
        make_mean("cubic", 3, constant)


def test_a_layer_deviates_from_its_mean() -> None:
    x, u, S = torch.randn(5, 3), torch.randn(2, 4), torch.randn(4, 3)
    mean = Linear(torch.randn(3, 2), torch.randn(2))
    plain, offset = Layer("z", make_kernel("rbf", 3), S, 2), Layer("z", make_kernel("rbf", 3), S, 2, mean=mean)
    assert torch.allclose(offset.predict(x, u), plain.predict(x, u) + mean(x), atol=1e-5)
    assert torch.allclose(offset.conditional(x, u).loc, offset.predict(x, u))
