"""Taking back what a row's own labels pull, against fits that leave the row out."""

from __future__ import annotations

import pytest
import torch

from esmc_pyro import cavity as module
from esmc_pyro import objectives
from esmc_pyro.cavity import cavity
from esmc_pyro.models import Bernoulli, Gaussian, Likelihood, NotPositiveDefiniteError
from esmc_pyro.models.means import Linear

pytestmark = pytest.mark.usefixtures("double")


def made(
    N: int = 40, M: int = 40, L: int = 3, K: int = 5, size: float = 1.0
) -> tuple[torch.Tensor, Linear, torch.Tensor]:
    """Whitened features of a Matern-1/2 kernel (N x M), slopes (L x K) of one direction a row, labels (N x K)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    K_SS = torch.exp(-torch.cdist(x[:M], x[:M])) + 0.01 * torch.eye(M)
    A = torch.linalg.solve_triangular(
        torch.linalg.cholesky(K_SS), torch.exp(-torch.cdist(x[:M], x)), upper=False
    ).mT.contiguous()
    W = size * torch.randn(L, K, generator=generator)
    b = torch.randn(K, generator=generator) - 1
    z = A @ torch.randn(M, L, generator=generator) @ W + b
    return A, Linear(W, b), (torch.rand(z.shape, generator=generator) < torch.sigmoid(z)).to(z)


def fitted(A: torch.Tensor, mean: Linear, likelihood: Likelihood, Y: torch.Tensor) -> torch.Tensor:
    """The most probable ``v`` (L x M) by Newton's steps."""
    W, b = mean.weight.detach(), mean.offset.detach()
    (L, _), M = W.shape, A.shape[1]
    v = A.new_zeros(L, M)
    known, y = ~torch.isnan(Y), torch.nan_to_num(Y)
    for _ in range(30):
        z = A @ v.mT @ W + b
        slope = ((known * likelihood.slope(y, z)) @ W.mT).mT @ A - v
        h = known * likelihood.information(y, z)
        H = torch.einsum("lk,nk,jk,nm,np->lmjp", W, h, W, A, A).reshape(L * M, L * M) + torch.eye(L * M).to(A)
        v = v + torch.linalg.solve(H, slope.flatten()).view(L, M)
    return v


def left_out(A: torch.Tensor, mean: Linear, likelihood: Likelihood, Y: torch.Tensor) -> torch.Tensor:
    """``c_n`` of the fit without row ``n``, for every row."""
    rows = torch.arange(len(Y))
    fits = [fitted(A[rows != n], mean, likelihood, Y[rows != n]) for n in rows]
    return torch.stack([v @ A[n] for n, v in enumerate(fits)])


def found(A: torch.Tensor, mean: Linear, likelihood: Likelihood, Y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fitted ``c``, and what the module makes of it."""
    v = fitted(A, mean, likelihood, Y)
    return A @ v.mT, cavity(lambda rows: A[rows], v, mean, likelihood, Y)


@pytest.mark.parametrize("M", [40, 15])
def test_of_gaussian_labels_it_is_the_fit_without_the_row(M: int) -> None:
    A, mean, Y = made(M=M)
    likelihood = Gaussian(0.5)
    c, without = found(A, mean, likelihood, Y)
    wanted = left_out(A, mean, likelihood, Y)
    torch.testing.assert_close(without, wanted, rtol=1e-6, atol=1e-8)  # as many directions as levels: none between
    assert (c - wanted).abs().max() > 0.1


def test_between_its_levels_it_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    A, mean, Y = made(L=5, size=0.7)
    likelihood = Gaussian(0.5)
    wanted = left_out(A, mean, likelihood, Y)
    c, without = found(A, mean, likelihood, Y)
    far, near = (c - wanted).norm(), (without - wanted).norm()
    assert near < 0.05 * far
    monkeypatch.setattr(module, "LEVELS", 5)
    torch.testing.assert_close(found(A, mean, likelihood, Y)[1], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gaps", [False, True])
def test_of_zeros_and_ones_most_of_the_pull_is_gone(gaps: bool) -> None:
    A, mean, Y = made()
    if gaps:
        Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(1)) < 0.2] = torch.nan
    likelihood = Bernoulli()
    c, without = found(A, mean, likelihood, Y)
    wanted = left_out(A, mean, likelihood, Y)
    assert (without - wanted).norm() < 0.25 * (c - wanted).norm()


def test_rows_without_known_labels_stay() -> None:
    A, mean, Y = made()
    Y[7] = torch.nan
    c, without = found(A, mean, Bernoulli(), Y)
    torch.testing.assert_close(without[7], c[7], rtol=0, atol=1e-12)
    c, without = found(A, mean, Bernoulli(), torch.full_like(Y, torch.nan))
    torch.testing.assert_close(without, c, rtol=0, atol=0)


def test_rows_are_looked_at_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    A, mean, Y = made()
    _, whole = found(A, mean, Bernoulli(), Y)
    monkeypatch.setattr(objectives, "BLOCK", 35)  # seven rows
    torch.testing.assert_close(found(A, mean, Bernoulli(), Y)[1], whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("K", [3, 4, 12])
def test_directions_that_are_all_but_equal_are_one(K: int) -> None:
    """One label a row, all as frequent: the information is the same in all directions but one, up to rounding."""
    A, _, _ = made(N=36, M=36)
    Y = torch.eye(K).repeat(36 // K, 1).to(A)
    standard = Y - Y.mean(0)
    W = torch.linalg.cholesky(0.2 * torch.eye(K) + standard.mT @ standard / len(Y)).mT.contiguous()
    mean, likelihood = Linear(W, Y.mean(0)), Gaussian(0.5)
    for dtype in (torch.float64, torch.float32):
        c, without = found(A.to(dtype), mean.to(dtype), likelihood, Y.to(dtype))
        wanted = left_out(A.to(dtype), mean, likelihood, Y.to(dtype))
        assert (without - wanted).norm() < 0.02 * (c - wanted).norm()


def test_a_fit_that_diverged_is_refused() -> None:
    A, mean, Y = made()
    with pytest.raises(NotPositiveDefiniteError, match=r"information of the labels .* not finite; expected a fit"):
        cavity(lambda rows: A[rows], torch.full((3, 40), torch.nan), mean, Bernoulli(), Y)


def test_a_line_goes_through_its_nodes_and_on() -> None:
    nodes, at = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
    f = 2 * nodes - 1
    torch.testing.assert_close(f @ module._interpolation(nodes, at), 2 * at - 1)
    bent = torch.tensor([0.0, 1.0, 0.0]) @ module._interpolation(nodes, at)
    torch.testing.assert_close(bent, torch.tensor([-1.0, 0.0, 0.5, 1.0, 0.5, 0.0, -0.5]))
