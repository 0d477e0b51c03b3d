"""Cholesky factors: duplicated rows, escalating jitter, the error sentence."""

import pytest
import torch

from esmc_pyro.models import NotPositiveDefiniteError, jittered_cholesky
from esmc_pyro.models.linalg import JITTERS, bears_rounding


def test_a_good_matrix_gets_no_jitter() -> None:
    a = torch.randn(5, 5, dtype=torch.float64)
    matrix = a @ a.mT + torch.eye(5)
    assert torch.allclose(jittered_cholesky(matrix), torch.linalg.cholesky(matrix))


def test_duplicated_rows_get_the_least_jitter_that_works() -> None:
    matrix = torch.ones(4, 4, dtype=torch.float64)  # rank one
    factor = jittered_cholesky(matrix)
    added = (factor @ factor.mT - matrix).diagonal()
    assert torch.allclose(added, torch.full_like(added, 1e-10), rtol=1e-3)


@pytest.mark.parametrize("jitter", JITTERS[1:])
def test_jitter_escalates_to_what_is_needed(jitter: float) -> None:
    matrix = torch.diag(torch.tensor([2.0, -0.5 * jitter, 1.0], dtype=torch.float64))  # mean diagonal about 1
    factor = jittered_cholesky(matrix)
    added = (factor @ factor.mT - matrix).diagonal()
    assert torch.allclose(added, torch.full_like(added, jitter * matrix.diagonal().mean().item()), rtol=1e-3)


def test_the_factor_comes_back_in_its_dtype_and_carries_gradients() -> None:
    matrix = torch.full((3, 3), 2.0, requires_grad=True)
    factor = jittered_cholesky(matrix)
    factor.sum().backward()
    assert factor.dtype == torch.float32
    assert torch.isfinite(matrix.grad).all()


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (
            -torch.eye(3),
            r"the kernel \(3 x 3\) is not positive definite even with 0.001 times its mean diagonal -1 added",
        ),
        (torch.diag(torch.tensor([1.0, -1.0])), "is not positive definite even with 0.001"),
        (torch.eye(2) * torch.nan, "the kernel has entries that are not finite"),
        (torch.eye(2) * torch.inf, "the kernel has entries that are not finite"),
    ],
)
def test_what_cannot_be_mended_is_said(matrix: torch.Tensor, sentence: str) -> None:
    with pytest.raises(NotPositiveDefiniteError, match=sentence):
        jittered_cholesky(matrix, "the kernel")


def test_noise_that_bears_rounding_gives_a_factor_in_float32_that_solves() -> None:
    # the hardest of matrices: rank one and large, so that all but one eigenvalue is the noise
    rows, noise = 600, 4 * 600 * 1.2e-7
    assert bears_rounding(rows, noise, 1.0, torch.float32)
    assert not bears_rounding(rows, noise / 2, 1.0, torch.float32)
    assert not bears_rounding(rows, noise, 2.5, torch.float32)
    exact = torch.ones(rows, rows, dtype=torch.float64) + noise * torch.eye(rows)
    factor = jittered_cholesky(exact.float(), precision=torch.float32).double()
    # variances in every direction, beside the exact ones
    root = torch.linalg.cholesky(exact)
    ratio = torch.linalg.solve_triangular(root, factor, upper=False)
    off = (torch.linalg.svdvals(ratio).square() - 1).abs()
    # so near the bound a few directions are lost, and no more; which, and by how much, is the processor's order of sums
    assert (off > 0.5).sum() <= 3
    assert off.max() < 3
    assert off.mean() < 0.01


def test_the_precision_is_the_one_that_is_asked_for() -> None:
    a = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    matrix = a @ a.mT + torch.eye(50)
    exact = torch.linalg.cholesky(matrix.double())
    kinds = torch.float64, torch.float32
    errors = [(jittered_cholesky(matrix, precision=kind).double() - exact).abs().max() for kind in kinds]
    assert errors[0] <= 2e-7 * exact.max() < errors[1] < 1e-4


def test_what_fails_in_single_precision_is_done_in_double() -> None:
    matrix = torch.ones(600, 600) + 2e-7 * torch.eye(600)  # float32 keeps the noise, but not a factor of it
    _, failed = torch.linalg.cholesky_ex(matrix)
    assert failed
    assert torch.equal(jittered_cholesky(matrix, precision=torch.float32), jittered_cholesky(matrix))
