"""Kernels by name, their sums and length-scales, and the matrix for batches of rows."""

import pytest
import torch
from pyro.contrib.gp.kernels import RBF, Kernel, Linear, Matern52, Product, Sum, WhiteNoise

from esmc_pyro.models import KERNELS, kernels, make_kernel
from esmc_pyro.models.kernels import distance_norm, is_stationary, kernel_matrix, set_lengthscale

FORMULAS = {
    "rbf": lambda r: torch.exp(-(r**2) / 2),
    "laplacian": lambda r: torch.exp(-r),
    "matern12": lambda r: torch.exp(-r),
    "matern32": lambda r: (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 / 3 * r**2) * torch.exp(-(5**0.5) * r),
}


def test_every_kernel_has_a_formula() -> None:
    assert set(FORMULAS) == set(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("small", [0, 2**16])
def test_kernels_follow_their_formulas(name: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", small)
    x, s = torch.randn(6, 3), torch.randn(4, 3)
    kernel = make_kernel(name, 3, lengthscale=0.7, variance=2.5)
    difference = (x[:, None] - s).abs()
    r = difference.sum(-1) if name == "laplacian" else difference.square().sum(-1).sqrt()
    assert torch.allclose(kernel_matrix(kernel, x, s), 2.5 * FORMULAS[name](r / 0.7), atol=1e-6)
    assert torch.allclose(kernel(x, diag=True), torch.full((6,), 2.5))


@pytest.mark.usefixtures("double")
def test_the_laplacian_is_a_product_over_dimensions() -> None:
    x, s, scales = torch.randn(6, 3), torch.randn(4, 3), torch.tensor([0.5, 1.0, 3.0])
    kernel = make_kernel("laplacian", 3, ard=True)
    kernel.lengthscale = scales
    alone = [torch.exp(-(x[:, [d]] - s[:, d]).abs() / scales[d]) for d in range(3)]
    assert torch.allclose(kernel_matrix(kernel, x, s), alone[0] * alone[1] * alone[2])
    assert torch.linalg.eigvalsh(kernel_matrix(kernel, x, x)).min() > 0
    part = kernels.Laplacian(1, active_dims=[2], lengthscale=torch.tensor(3.0))
    assert torch.allclose(kernel_matrix(part, x, s), alone[2])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("small", [0, 2**16])  # cdist, or all differences at once
def test_the_slopes_of_the_laplacian(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", small)
    x, s = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    kernel = make_kernel("laplacian", 2, lengthscale=0.8)
    assert torch.autograd.gradcheck(lambda a, b: kernel_matrix(kernel, a, b), (x, s))
    if small:  # cdist has none
        assert torch.autograd.gradgradcheck(lambda a, b: kernel_matrix(kernel, a, b), (x, s))
    same = torch.ones(2, 2, requires_grad=True)  # where rows are equal the slope is taken to be zero
    kernel(same).sum().backward()
    assert torch.equal(same.grad, torch.zeros(2, 2))


def test_the_distance_that_length_scales_divide() -> None:
    assert distance_norm(kernels.Laplacian) == distance_norm(make_kernel("laplacian", 2)) == 1
    assert distance_norm(RBF) == distance_norm(Matern52(2)) == 2
    made = make_kernel("rbf+laplacian+laplacian", 2, lengthscale=lambda norm: 10.0 * norm)
    assert [part.lengthscale.item() for part in _parts(made)] == pytest.approx([20.0, 10.0, 10.0])
    set_lengthscale(made, lambda norm: 3.0 + norm)
    assert [part.lengthscale.item() for part in _parts(made)] == pytest.approx([5.0, 4.0, 4.0])


def _parts(kernel: Sum) -> list[kernels.Isotropy]:
    return [part for part in kernel.modules() if isinstance(part, kernels.Isotropy)]


@pytest.mark.usefixtures("double")
def test_a_sum_shares_the_variance() -> None:
    x, s = torch.randn(6, 3), torch.randn(4, 3)
    k = kernel_matrix(make_kernel("rbf+matern12+matern52", 3, lengthscale=2.0, variance=3.0), x, s)
    r = torch.cdist(x, s) / 2
    assert torch.allclose(k, sum(FORMULAS[name](r) for name in ("rbf", "matern12", "matern52")), atol=1e-6)


@pytest.mark.usefixtures("double")
def test_ard_has_a_length_scale_a_dimension() -> None:
    kernel = make_kernel("rbf", 3, lengthscale=1.5, ard=True)
    assert kernel.lengthscale.shape == (3,)
    kernel.lengthscale = torch.tensor([1.0, 10.0, 1e6])
    x, s = torch.randn(6, 3), torch.randn(4, 3)
    scaled = torch.cdist(x / kernel.lengthscale, s / kernel.lengthscale)
    assert torch.allclose(kernel_matrix(kernel, x, s), FORMULAS["rbf"](scaled), atol=1e-6)


def test_set_lengthscale_reaches_every_part_and_keeps_what_is_learned() -> None:
    kernel = make_kernel("rbf+matern32", 2, ard=True)
    kernel.requires_grad_(False)
    set_lengthscale(kernel, 4.0)
    assert [part.lengthscale.tolist() for part in (kernel.kern0, kernel.kern1)] == [pytest.approx([4.0, 4.0])] * 2
    assert not any(p.requires_grad for p in kernel.parameters())


def test_batches_of_rows_give_batches_of_matrices() -> None:
    kernel = make_kernel("matern12", 2)
    x, s = torch.randn(3, 1, 5, 2), torch.randn(4, 2)
    k = kernel_matrix(kernel, x, s)
    assert k.shape == (3, 1, 5, 4)
    assert torch.allclose(k[2, 0], kernel_matrix(kernel, x[2, 0], s))


@pytest.mark.parametrize("itself", [True, False])
def test_blocks_of_rows_make_up_the_whole_matrix(itself: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", 1)  # 256 rows at a time, the least
    kernel, s = make_kernel("matern32", 3).double().requires_grad_(False), torch.randn(700, 3).double()
    x = s if itself else torch.randn(513, 3).double()
    assert torch.allclose(kernel_matrix(kernel, x, s), FORMULAS["matern32"](torch.cdist(x, s)), atol=1e-6)


def test_far_from_the_origin_float32_still_holds() -> None:
    x, s = torch.randn(6, 3), torch.randn(4, 3)
    kernel = make_kernel("rbf", 3)
    near = kernel_matrix(kernel, x, s)
    assert torch.allclose(kernel_matrix(kernel, x + 1000, s + 1000), near, atol=1e-3)
    assert not torch.allclose(kernel(x + 1000, s + 1000), near, atol=1e-3)  # the plain one does not


def test_only_stationary_kernels_are_shifted() -> None:
    assert is_stationary(Sum(RBF(2), Product(Matern52(2), RBF(2))))
    assert is_stationary(Product(RBF(2), 3.0))
    assert not is_stationary(Linear(2))
    assert not is_stationary(Sum(RBF(2), Linear(2)))
    x, s = torch.randn(5, 2) + 3, torch.randn(4, 2) + 3
    assert torch.allclose(kernel_matrix(Linear(2), x, s), x @ s.mT)


def test_kernel_objects_pass_and_unknown_names_do_not() -> None:
    kernel = RBF(3)
    assert make_kernel(kernel, 3) is kernel
    with pytest.raises(ValueError, match=r"kernel must be a Pyro kernel or a '\+' of .*'matern12'.*; got 'rbf\+cubic'"):
        make_kernel("rbf+cubic", 3)
    with pytest.raises(ValueError, match="kernel RBF must work on the 2 inputs of its layer; got one for 3"):
        make_kernel(kernel, 2)


@pytest.mark.parametrize(
    "kernel", [WhiteNoise(3), Sum(RBF(3), WhiteNoise(3)), Product(Sum(RBF(3), WhiteNoise(3)), 2.0)]
)
def test_white_noise_is_no_kernel_of_functions(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match=r"kernel must be of functions: .*; got WhiteNoise"):
        make_kernel(kernel, 3)
