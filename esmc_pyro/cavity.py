"""``c`` of each row as a fit without that row's own labels would have it, for ``f_z`` to learn from.

A fitted ``c_n`` has been drawn to the labels of row ``n``; that of a new row has not. When it predicts, ``f_z`` sees
new rows only, so it is fitted to ``c`` with the pull of the row's own labels taken back, the cavity of expectation
propagation. At the most probable means of ``z_n = c_n W + b``, ``c_n = A_n v'``, to second order about ``z_n``::

    cavity_n = c_n - t_n g_n,     g_n = W d ln p(y_n | z_n) / d z_n          what its labels pull
                                  1 / t_n = 1 / s_n - e                      the variance without them
                                  s_n = A_n [I + e A'A]^-1 A_n'              the variance with them

in each direction of ``c`` by itself: the eigenvectors of ``W diag(h) W'``, with ``e`` the eigenvalues and ``h`` (K) the
mean information of a row's labels. For Gaussian labels this is exact: the mean of the fit that leaves the row out.
``s_n`` is computed for a few ``e``; between them ``ln(1 / s_n - 1 / |A_n|^2)`` is taken to be linear in ``ln e``, as it
is where the spectrum of ``A'A`` is a power law.

Shapes: ``A`` N x M, ``v`` L x M, ``c`` and ``g`` N x L, ``W`` L x K, ``e`` L.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esmc_pyro.models import Likelihood, observed
from esmc_pyro.models.linalg import jittered_cholesky
from esmc_pyro.models.means import Linear
from esmc_pyro.objectives import BLOCK

LEVELS = 3  # values of e for which s is computed: a Cholesky factor each
LEAST = 1e-6  # of the largest e: less is no information


@torch.no_grad()
def cavity(features: Callable[[Tensor], Tensor], v: Tensor, mean: Linear, likelihood: Likelihood, Y: Tensor) -> Tensor:
    """``cavity_n`` of all rows of ``Y`` (N x K), N x L; ``features`` gives ``A`` of rows by their places."""
    c, A_A, pull, information = _fitted(features, v, mean, likelihood, Y)
    e, U = torch.linalg.eigh((mean.weight * information) @ mean.weight.mT)
    e = e.clamp(min=LEAST * e.max())
    if not e.max() > 0:  # labels that say nothing pull nothing
        return c
    levels = _levels(e)
    name = "the information about the latent space"
    factors = [jittered_cholesky(torch.eye(len(A_A)).to(A_A) + level * A_A, name) for level in levels]
    between = _interpolation(levels.log(), e.log())
    for rows in _blocks(Y):
        a = features(rows)
        prior = 1 / a.square().sum(1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny ** 0.5)
        s = [torch.linalg.solve_triangular(factor, a.mT, upper=False).square().sum(0) for factor in factors]
        gained = (1 / torch.stack(s, 1).clamp(min=1e-30) - prior).clamp(min=1e-30)  # n x levels: 1 / s - 1 / |A|^2
        others = ((gained.log() @ between).exp() - e).clamp(min=0.0)  # what other rows say of this one
        c[rows] -= ((pull[rows] @ U) / (prior + others)) @ U.mT
    return c


def _fitted(
    features: Callable[[Tensor], Tensor], v: Tensor, mean: Linear, likelihood: Likelihood, Y: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``c`` (N x L), ``A'A`` (M x M), ``g`` (N x L) and ``h`` (K)."""
    L, M = v.shape
    c, pull, A_A = v.new_zeros(len(Y), L), v.new_zeros(len(Y), L), v.new_zeros(M, M)
    information = v.new_zeros(Y.shape[1])
    for rows in _blocks(Y):
        a = features(rows)
        A_A.addmm_(a.mT, a)
        c[rows] = a @ v.mT
        z, (y, known) = mean(c[rows]), observed(Y, rows)
        pull[rows] = (known * likelihood.slope(y, z)) @ mean.weight.mT
        information += (known * likelihood.information(y, z)).sum(0) / len(Y)
    return c, A_A, pull, information


def _blocks(Y: Tensor) -> tuple[Tensor, ...]:
    return torch.arange(len(Y)).split(min(4096, max(1, BLOCK // Y.shape[1])))


def _levels(e: Tensor) -> Tensor:
    """The values of ``e`` (L) for which ``s`` is computed: all, if they are few, or some from a low one to the top."""
    if len(e.unique()) <= LEVELS:
        return e.unique()
    low, high = e.quantile(0.1).log(), e.max().log()
    return torch.linspace(0, 1, LEVELS).to(e).mul(high - low).add(low).exp().unique()


def _interpolation(nodes: Tensor, at: Tensor) -> Tensor:
    """``T`` with ``f(at) = f(nodes) T`` for what is linear between ``nodes``, and goes on so: levels x L."""
    if len(nodes) == 1:
        return nodes.new_ones(1, len(at))
    left = torch.searchsorted(nodes, at, right=True).clamp(1, len(nodes) - 1) - 1
    share = (at - nodes[left]) / (nodes[left + 1] - nodes[left])
    T = nodes.new_zeros(len(nodes), len(at))
    places = torch.arange(len(at))
    T[left, places], T[left + 1, places] = 1 - share, share
    return T
