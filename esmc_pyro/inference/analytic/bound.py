"""The bound, term by term, in closed form. ``design`` letters: O outputs, M pseudo-instances, N rows (labelled or not).

    bound = sum over layers [ E ln p(u|f) + E ln p(f) + H q(f) + H q(u) + E ln p(c|c_hat) + H q(c) ] + E ln p(y|z)

for ``q = q(f) q(u) p(c_hat|u,x) q(c) p(z_hat|c,u) q(z) q(E)``; ``a``, ``b``, ``g`` stand for alpha, beta, gamma. The
sites ``c_hat`` have the model's own conditionals in ``q``, so they cancel and leave ``b`` behind as a constant.
Everything is a Python float or a float64 tensor of one number, summed from row blocks by the solver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LOG_2PI = math.log(2 * math.pi)


def expected_log_u_given_f(m_u: Tensor, var_u: Tensor, m_f: Tensor, S_f_tril: Tensor, a2: Tensor) -> Tensor:
    """``E ln p(u|f) = -O M/2 ln(2 pi a²) - 1/(2a²) [ |m_u - m_f|² + sum s_u² + O tr S_f ]``.

    ``m_u``, ``m_f`` O x M; ``var_u`` the M variances of ``q(u)`` summed over outputs; ``S_f_tril`` the M x M factor
    of ``S_f``.
    """
    square = (m_u - m_f).square().sum() + var_u.sum() + len(m_u) * S_f_tril.square().sum()
    return -0.5 * (m_u.numel() * (LOG_2PI + a2.log()) + square / a2)


def expected_log_f(m_f: Tensor, S_f_tril: Tensor, K_tril: Tensor) -> Tensor:
    """``E ln p(f) = -1/2 [ O M ln 2 pi + O ln|K| + tr(m_f K^-1 m_f') + O tr(K^-1 S_f) ]``.

    ``K = K_tril K_tril'`` (M x M).
    """
    outputs = len(m_f)
    mean = torch.linalg.solve_triangular(K_tril, m_f.mT, upper=False).square().sum()
    spread = torch.linalg.solve_triangular(K_tril, S_f_tril, upper=False).square().sum()
    log_det = 2 * K_tril.diagonal().log().sum()
    return -0.5 * (m_f.numel() * LOG_2PI + outputs * (log_det + spread) + mean)


def entropy_shared(tril: Tensor, outputs: int) -> Tensor:
    """``O [ M/2 ln(2 pi e) + sum ln diag tril ]``: ``O`` Gaussians of one covariance ``tril tril'`` (M x M)."""
    return outputs * (0.5 * len(tril) * (LOG_2PI + 1) + tril.diagonal().log().sum())


def entropy_diagonal(log_scale_sum: Tensor, count: int) -> Tensor:
    """``count/2 ln(2 pi e) + sum ln s``: independent Gaussians of standard deviations ``s``."""
    return 0.5 * count * (LOG_2PI + 1) + log_scale_sum


@dataclass
class Moments:
    """What the rows tell the bound about a layer's outputs, summed over them.

    ``m`` is the mean of ``q(c)`` less the layer's mean function.

    ``count`` = N O, ``square`` = |m|², ``var`` = sum s², ``log_scale`` = sum ln s, ``cross`` = <m, P1 W m_u'>,
    ``quad`` = <P2, W (m_u'm_u + sum_o S_o) W>. For known inputs ``P1 = k(x, S)`` and ``P2 = k'k``.
    """

    count: int
    square: Tensor
    var: Tensor
    log_scale: Tensor
    cross: Tensor
    quad: Tensor


def expected_log_output(moments: Moments, b2: Tensor, g2: Tensor) -> Tensor:
    """``E ln p(c|c_hat) = -(N O/2) ln(2 pi g²) - 1/(2g²) [ |m|² + sum s² - 2 cross + quad + N O b² ]``."""
    square = moments.square + moments.var - 2 * moments.cross + moments.quad + moments.count * b2
    return -0.5 * (moments.count * (LOG_2PI + g2.log()) + square / g2)


def output_term(moments: Moments, b2: Tensor, g2: Tensor) -> Tensor:
    """``E ln p(c|c_hat) + H q(c)``."""
    return expected_log_output(moments, b2, g2) + entropy_diagonal(moments.log_scale, moments.count)


def h(xi: Tensor) -> Tensor:
    """``tanh(xi/2) / (4 xi)``, 1/8 at 0: the curvature of the Jaakkola-Jordan bound. Even, smooth, falls as 1/|xi|."""
    small = xi.abs() < 0.02
    safe = torch.where(small, torch.ones_like(xi), xi)
    square = xi * xi
    return torch.where(small, 0.125 - square * (1 / 96 - square / 960), torch.tanh(safe / 2) / (4 * safe))


def jaakkola(
    count: Tensor, ones: Tensor, mean: Tensor, var: Tensor, xi: Tensor, lambda_: float, curvature: Tensor | None = None
) -> Tensor:
    """``E ln`` of ``count`` experts of whom ``ones`` are 1 (in expectation), each bounded by ``G``; elementwise.

        p(E|z) = exp(E t) sigma(-t) >= exp(E t) G(-t, xi),   t = lambda z,   z ~ N(mean, var)
        ln G(-t, xi) = ln sigma(xi) - (t + xi)/2 - h(xi) (t² - xi²)

    ``curvature`` is ``h(xi)``, if it is at hand.
    """
    t = lambda_ * mean
    curve = (h(xi) if curvature is None else curvature) * (t.square() + lambda_**2 * var - xi.square())
    return ones * t + count * (logsigmoid(xi) - (t + xi) / 2 - curve)


def entropy_experts(r: Tensor) -> Tensor:
    """``-r ln r - (1 - r) ln(1 - r)``, 0 at 0 and 1: the entropy of one expert with ``q(E = 1) = r``; elementwise."""
    return -torch.xlogy(r, r) - torch.xlogy(1 - r, 1 - r)
