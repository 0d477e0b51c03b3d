"""Psi statistics against quadrature over the uncertain inputs, and their gradients against finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from esmc_pyro.inference.analytic.blocks import FixedBlock, RowBlock, SharedBlock
from esmc_pyro.inference.analytic.psi import POINT, Radial, psi1_slope, whitened, whitened_gram
from esmc_pyro.models import make_kernel

N, M, D = 5, 4, 2


def inputs(shared: bool) -> tuple[Radial, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    kernel = make_kernel("rbf", D, variance=1.7, ard=True)
    kernel.lengthscale = torch.tensor([0.8, 1.4])
    radial = Radial.of(kernel.double(), draw(M, D))
    return radial, draw(N, D), 0.05 + 0.1 * draw(1 if shared else N, D).square()


def make(radial: Radial, mean: Tensor, var: Tensor, shared: bool) -> SharedBlock | RowBlock:
    return (SharedBlock if shared else RowBlock)(radial, mean, var)


def by_quadrature(radial: Radial, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """``E k`` and ``E k k'`` with 60 x 60 Gauss-Hermite nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = torch.as_tensor(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, D))
    weight = torch.as_tensor(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    c = mean[:, None] + var.expand_as(mean)[:, None].sqrt() * grid
    k = radial.v * (-(c[:, :, None] - radial.S).square().div(2 * radial.l2).sum(-1)).exp()
    return torch.einsum("g,ngm->nm", weight, k), torch.einsum("g,ngm,ngl->nml", weight, k, k)


@pytest.mark.parametrize("shared", [True, False])
def test_statistics_are_expectations(shared: bool) -> None:
    radial, mean, var = inputs(shared)
    block = make(radial, mean, var, shared)
    first, second = by_quadrature(radial, mean, var)
    Q = torch.randn(M, M, dtype=torch.float64)
    Q = Q + Q.mT
    torch.testing.assert_close(block.p1, first, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(block.second_sum(), second.sum(0), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(block.dot(Q), (second * Q).sum((1, 2)), rtol=1e-8, atol=1e-10)


def test_shared_and_row_variances_agree() -> None:
    radial, mean, var = inputs(shared=True)
    shared, rows = SharedBlock(radial, mean, var), RowBlock(radial, mean, var.expand_as(mean))
    Q = torch.eye(M, dtype=torch.float64) + 0.3
    torch.testing.assert_close(shared.second_sum(), rows.second_sum())
    a, b = shared.dot_slope(Q), rows.dot_slope(Q)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.var, b.var.sum(0, keepdim=True))
    assert torch.equal(shared.dot_slope(Q, by_var=False).var, torch.zeros_like(var))


def slope_by_differences(
    function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor]:
    """Central differences of a sum over rows."""
    out = []
    for which in (0, 1):
        gradient = torch.zeros_like((mean, var)[which])
        for index in np.ndindex(*gradient.shape):
            step = torch.zeros_like(gradient)
            step[index] = 1e-5
            up = function(*((mean + step, var) if which == 0 else (mean, var + step)))
            down = function(*((mean - step, var) if which == 0 else (mean, var - step)))
            gradient[index] = (up.sum() - down.sum()) / 2e-5
        out.append(gradient)
    return out[0], out[1]


@pytest.mark.parametrize("shared", [True, False])
def test_gradients(shared: bool) -> None:
    radial, mean, var = inputs(shared)
    Q = torch.randn(M, M, dtype=torch.float64)
    Q = Q + Q.mT
    R = torch.randn(N, M, dtype=torch.float64)
    block = make(radial, mean, var, shared)
    second = block.dot_slope(Q)
    by_mean, by_var = slope_by_differences(lambda m, v: make(radial, m, v, shared).dot(Q), mean, var)
    torch.testing.assert_close(second.value, block.dot(Q))
    torch.testing.assert_close(second.mean, by_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(second.var, by_var, rtol=1e-6, atol=1e-7)
    first = psi1_slope(radial, mean, var, block.p1, R)
    by_mean, by_var = slope_by_differences(lambda m, v: (make(radial, m, v, shared).p1 * R).sum(-1), mean, var)
    torch.testing.assert_close(first.mean, by_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(first.var, by_var, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shared", [True, False])
def test_rows_can_be_moved_one_by_one(shared: bool) -> None:
    radial, mean, var = inputs(shared)
    block, target = make(radial, mean.clone(), var.clone(), shared), make(radial, mean + 1, var, shared)
    keep = torch.tensor([True, False, True, True, False])
    block.take(target.rows(keep), keep.nonzero().squeeze(-1))
    expected = make(radial, torch.where(keep[:, None], mean + 1, mean), var, shared)
    torch.testing.assert_close(block.p1, expected.p1)
    torch.testing.assert_close(block.second_sum(), expected.second_sum())


def test_points_have_the_kernel_itself() -> None:
    radial, mean, _ = inputs(shared=True)
    kernel = make_kernel("rbf", D, variance=1.7, ard=True)
    kernel.lengthscale = torch.tensor([0.8, 1.4])
    fixed = FixedBlock(kernel.double(), radial.S, mean)
    Lw = torch.linalg.cholesky(kernel(radial.S) + 0.1 * torch.eye(M, dtype=torch.float64)).detach()
    for scale, points in ((POINT / 10, True), (POINT * 100, False)):
        block = SharedBlock(radial, mean, scale * radial.l2)
        assert block.points is points
        torch.testing.assert_close(block.p1, fixed.p1)
        torch.testing.assert_close(whitened(block.second_sum(), Lw), whitened_gram(fixed.p1, Lw))


def test_only_rbf_has_statistics() -> None:
    with pytest.raises(ValueError, match=r"must have the kernel .rbf.*got Matern32"):
        Radial.of(make_kernel("matern32", D), torch.zeros(M, D))
