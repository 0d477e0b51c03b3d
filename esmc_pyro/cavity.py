"""``c`` of each row as a fit without that row's own labels would have it, for ``f_z`` to learn from.

A fitted ``c_n`` has been drawn to the labels of row ``n``; that of a new row has not. When it predicts, ``f_z`` sees
new rows only, so it is fitted to ``c`` with the pull of the row's own labels taken back, the cavity of expectation
propagation. At the most probable means of ``z_n = c_n W + b``, ``c_n = A_n v'``, to second order about ``z_n``::

    cavity_n = c_n - t_n g_n,     g_n = W d ln p(y_n | z_n) / d z_n          what its labels pull
                                  1 / t_n = 1 / s_n - e                      the variance without them
                                  s_n = A_n [I + e A'A]^-1 A_n'              the variance with them

in each direction of ``c`` by itself: the eigenvectors of ``W diag(h) W'``, with ``e`` the eigenvalues and ``h`` (K) the
mean information of a row's labels. ``s_n`` is computed for a few ``e``; between them ``ln(1 / s_n - 1 / |A_n|^2)`` is
taken to be linear in ``ln e``, as it is where the spectrum of ``A'A`` is a power law. For Gaussian labels all else is
exact, the mean of the fit that leaves the row out. Means that are far from the most probable ones are pulled back too
far (with few steps, by Gaussian labels of little noise); held-out rows then choose an ``f_z`` of another kind.

Shapes: ``A`` N x M, ``v`` L x M, ``c`` and ``g`` N x L, ``W`` L x K, ``e`` L.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esmc_pyro.models import Likelihood, NotPositiveDefiniteError, observed
from esmc_pyro.models.linalg import add_to_diagonal, jittered_cholesky
from esmc_pyro.models.means import Linear
from esmc_pyro.objectives import row_blocks

LEVELS = 3  # values of e for which s is computed: a Cholesky factor each
LEAST = 1e-6  # of the largest e: less is no information
APART = 1e-3  # of ln e: a line through nodes that are closer would be steep by rounding


@torch.no_grad()
def cavity(features: Callable[[Tensor], Tensor], v: Tensor, mean: Linear, likelihood: Likelihood, Y: Tensor) -> Tensor:
    """``cavity_n`` of all rows of ``Y`` (N x K), N x L; ``features`` gives ``A`` of rows by their places."""
    c, A_A, pull, information = _fitted(features, v, mean, likelihood, Y)
    name, of_c = "the information of the labels", (mean.weight * information) @ mean.weight.mT
    if not torch.isfinite(of_c).all():
        raise NotPositiveDefiniteError(f"{name} has entries that are not finite; expected a fit that did not diverge")
    e, U = torch.linalg.eigh(of_c)
    e = e.clamp(min=LEAST * e.max())
    if not e.max() > 0:  # labels that say nothing pull nothing
        return c
    nodes = _nodes(e.log())
    factors = [jittered_cholesky(add_to_diagonal(level * A_A, 1.0), name) for level in nodes.exp()]
    between = _interpolation(nodes, e.log())
    for rows in row_blocks(Y):
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
    for rows in row_blocks(Y):
        a = features(rows)
        A_A.addmm_(a.mT, a)
        c[rows] = a @ v.mT
        z, (y, known) = mean(c[rows]), observed(Y, rows)
        pull[rows] = (known * likelihood.slope(y, z)).to(z.dtype) @ mean.weight.mT
        information += (known * likelihood.information(y, z)).to(z.dtype).sum(0) / len(Y)
    return c, A_A, pull, information


def _nodes(logs: Tensor) -> Tensor:
    """The values of ``ln e`` (L) at which ``s`` is computed: all, if they are few, or some from a low one on."""
    nodes = logs.unique()
    if len(nodes) > LEVELS:
        low = logs.exp().quantile(0.1).log()
        nodes = torch.linspace(0, 1, LEVELS).to(logs) * (logs.max() - low) + low
        if not nodes[-1] - nodes[0] > APART:
            nodes = torch.stack([logs.min(), logs.max()])
    return nodes[torch.cat([torch.ones(1, dtype=torch.bool), nodes.diff() > APART])]


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
