"""Gradient steps on ``q(c)``: a hidden layer's outputs are the next layer's uncertain inputs, so no closed form exists.

Row ``n`` of the bound, as a function of ``q(c_n) = N(mu, diag s²)`` and with everything else held (rows do not meet)::

    J = -[|mu - E c_hat|² + sum s²]/(2 g²) + sum ln(s²)/2 - [<P2[n], Q> - 2 <P1[n], R[n]>]/(2 g_next²),   R = m_next W
    m_u'

Since ``d E[.]/d s² = E[d²./d c²]/2``, the gradient by ``s²`` is half the mean curvature: it gives both the fixed
point of the variance and the scale of a step of the mean (natural gradients). A step is kept only in rows where ``J``
rises.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esmc_pyro.inference.analytic.blocks import RowBlock, SharedBlock, UncertainBlock
from esmc_pyro.inference.analytic.psi import Radial, psi1_slope

LEAST_PRECISION = 0.1  # of the prior's 1/g²: where the next layer curves the other way a step still has a length
MOST_STEP = 4.0


@dataclass(frozen=True)
class Above:
    """The next layer as its inputs see it: ``weights`` = m_u W (O x M), ``Q`` (M x M), ``g2``, float64."""

    radial: Radial
    weights: Tensor
    Q: Tensor
    g2: float

    def block(self, mean: Tensor, var: Tensor, shared: bool) -> UncertainBlock:
        """Psi statistics of rows; ``var`` is 1 x d if ``shared``, else n x d."""
        return (SharedBlock if shared else RowBlock)(self.radial, mean, var)

    def cost(self, block: UncertainBlock, R: Tensor) -> Tensor:
        """``[<P2[n], Q> - 2 <P1[n], R[n]>]/(2 g²)``, n."""
        return (block.dot(self.Q) - 2 * (block.p1 * R).sum(-1)) / (2 * self.g2)

    def cost_slope(self, block: UncertainBlock, R: Tensor, by_var: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """``cost`` (n) and its gradients by ``mean`` (n x d) and ``var`` (n x d, or 1 x d summed over rows)."""
        second = block.dot_slope(self.Q, by_var)
        first = psi1_slope(self.radial, block.mean, block.var, block.p1, R, by_var)
        half = 1 / (2 * self.g2)
        return (
            half * (second.value - 2 * first.value),
            half * (second.mean - 2 * first.mean),
            half * (second.var - 2 * first.var),
        )


def own_part(mean: Tensor, var: Tensor, c_hat: Tensor, g2: float) -> Tensor:
    """``-[|mu - E c_hat|² + sum s²]/(2 g²) + sum ln(s²)/2`` of each row, n."""
    return -((mean - c_hat).square() + var).sum(-1) / (2 * g2) + var.log().sum(-1) / 2


def climb(block: UncertainBlock, c_hat: Tensor, R: Tensor, above: Above, g2: float, size: Tensor, tries: int) -> None:
    """One safeguarded step of ``q(c)`` for the rows of ``block``, in place; ``size`` (n) has each row's step length."""
    shared = isinstance(block, SharedBlock)
    cost, by_mean, by_var = above.cost_slope(block, R, by_var=not shared)
    now = own_part(block.mean, block.var, c_hat, g2) - cost
    uphill = -(block.mean - c_hat) / g2 - by_mean
    if shared:
        move, log_change = uphill * block.var, torch.zeros_like(uphill)
    else:
        precision = (1 / g2 + 2 * by_var).clamp(min=LEAST_PRECISION / g2)
        move, log_change = uphill / precision, -(precision * block.var).log()
    pending: Tensor | slice = slice(None)
    for _ in range(tries):
        length = size[pending, None]
        trial = block.moved(pending, length * move[pending], length.clamp(max=1) * log_change[pending])
        value = own_part(trial.mean, trial.var, c_hat[pending], g2) - above.cost(trial, R[pending])
        good = value > now[pending]
        bad = (~good).nonzero().squeeze(-1)
        size[pending] = torch.where(good, (size[pending] * 1.5).clamp(max=MOST_STEP), size[pending] / 4)
        if isinstance(pending, slice):  # most rows rise at once: all of them move, and the others go back
            trial.take(block.rows(bad), bad)
            block.adopt(trial)
            pending = bad
        else:
            block.take(trial.rows(good), pending[good])
            pending = pending[bad]
        if not len(pending):
            break


def shared_variance(var: Tensor, by_var: Tensor, rows: int, g2: float, size: float) -> Tensor:
    """The shared variance (1 x d), moved by ``size`` on a log scale to its fixed point ``1/g² + 2 (d cost/d s²)/N``."""
    precision = (1 / g2 + 2 * by_var / rows).clamp(min=LEAST_PRECISION / g2)
    return var * (-size * (precision * var).log()).exp()
