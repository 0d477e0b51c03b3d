"""Closed-form coordinate updates: each is the optimum of the bound over its own factor, the rest held.

Letters as in ``bound``; ``W = [K + a² I]^-1``. Second moments of the features come whitened: with ``Lw Lw' = W^-1``
and ``D = P1 W``, ``P2w = Lw^-1 (sum_n P2[n]) Lw^-T``, so that ``sum_n E D_n' D_n = Lw^-T P2w Lw^-1``;
``cross = P1'm`` is M x O.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from esmc_pyro.inference.analytic.bound import h
from esmc_pyro.models.linalg import jittered_cholesky


def inverse_factor(precision: Tensor, name: str) -> Tensor:
    """Lower ``T`` with ``T T' = precision^-1``, from the reversed Cholesky factor ``precision = U U'``: ``U^-T``."""
    upper = jittered_cholesky(precision.flip(0, 1), name).flip(0, 1)
    eye = torch.eye(len(precision), dtype=precision.dtype)
    return solve_triangular(upper, eye, upper=True).mT.contiguous()


def update_f_covariance(K_tril: Tensor, a2: Tensor) -> Tensor:
    """The lower factor of ``S_f = (K^-1 + I/a²)^-1`` (M x M).

    ``S_f = K_tril (I + K_tril' K_tril / a²)^-1 K_tril'``, whose middle is well conditioned however singular ``K`` is.
    """
    eye = torch.eye(len(K_tril), dtype=K_tril.dtype)
    return K_tril @ inverse_factor(eye + K_tril.mT @ K_tril / a2, "the precision of q(f)")


def update_f_mean(m_u: Tensor, prior: Tensor, a2: Tensor) -> Tensor:
    """``m_f = K (K + a² I)^-1 m_u = m_u - a² (K + a² I)^-1 m_u``; O x M. ``prior`` is ``(K + a² I)^-1``."""
    return m_u - a2 * m_u @ prior


def whitened_precision(P2w: Tensor, Lw: Tensor, a2: Tensor, g2: Tensor) -> Tensor:
    """``Lw' Prec_u Lw = P2w/g² + Lw'Lw/a²`` (M x M), where ``Prec_u = D'D/g² + I/a²`` is the same for every output."""
    return P2w / g2 + Lw.mT @ Lw / a2


def update_u_mean(P2w: Tensor, cross: Tensor, m_f: Tensor, Lw: Tensor, a2: Tensor, g2: Tensor) -> Tensor:
    """``m_u = Prec_u^-1 (m_f/a² + D'm/g²)``, O x M.

    Solved for ``v = Lw^-1 u``, whose right side is ``Lw'm_f/a² + Lw^-1 cross/g²``.
    """
    right = Lw.mT @ m_f.mT / a2 + solve_triangular(Lw, cross, upper=False) / g2
    factor = jittered_cholesky(whitened_precision(P2w, Lw, a2, g2), "the precision of q(u)")
    return torch.cholesky_solve(right, factor).mT @ Lw.mT


def update_u_covariance(P2w: Tensor, Lw: Tensor, a2: Tensor, g2: Tensor) -> Tensor:
    """The lower factor (M x M) of the full ``S_u = Prec_u^-1``, shared by the outputs."""
    return Lw @ inverse_factor(whitened_precision(P2w, Lw, a2, g2), "the precision of q(u)")


def update_u_scale(P2w: Tensor, Lw: Tensor, a2: Tensor, g2: Tensor) -> Tensor:
    """``s_u = 1/sqrt(diag Prec_u)`` (M), the paper's diagonal ``q(u)``; the same for every output."""
    half = solve_triangular(Lw.mT, P2w, upper=True)
    gram = solve_triangular(Lw.mT, half.mT, upper=True)
    return (gram.diagonal().clamp(min=0) / g2 + 1 / a2).rsqrt()


def update_functions_mean(P2w: Tensor, cross: Tensor, prior: Tensor, Lw: Tensor, g2: Tensor) -> Tensor:
    """``m_u`` at the joint optimum of ``m_u`` and ``m_f``: with ``m_f`` optimal, the prior ``N(0, K + a² I)`` is left.

    ``(P2w/g² + Lw' (K + a² I)^-1 Lw) v = Lw^-1 cross/g²``, ``m_u = Lw v``; O x M. Alternating the two factors instead
    creeps along when ``a`` is small, because each then clings to the other.
    """
    factor = jittered_cholesky(P2w / g2 + Lw.mT @ prior @ Lw, "the joint precision of q(u) and q(f)")
    right = solve_triangular(Lw, cross, upper=False) / g2
    return torch.cholesky_solve(right, factor).mT @ Lw.mT


def update_z(
    z_hat: Tensor, count: Tensor, ones: Tensor, xi: Tensor, lambda_: float, g2: float, curvature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``q(z)`` under the Jaakkola bound, elementwise.

    ``prec = 1/g² + 2 B' lambda² h(xi)``, ``mean = [E z_hat/g² + lambda (sum_b E[E_b] - B'/2)] / prec``; ``B'`` =
    ``count``. Where no expert speaks (``count = 0``: unlabelled rows, unknown entries) this is ``E z_hat`` with
    variance ``g²``. ``curvature`` is ``h(xi)``, if it is at hand.
    """
    gain = (2 * lambda_ * lambda_ * g2) * count * (h(xi) if curvature is None else curvature)
    scale = 1 / (1 + gain)
    return (z_hat + (lambda_ * g2) * (ones - count / 2)) * scale, scale * g2


def update_z_gaussian(z_hat: Tensor, y: Tensor, known: Tensor, noise: float, g2: float) -> tuple[Tensor, Tensor]:
    """``prec = 1/g² + 1/noise²``, ``mean = (E z_hat/g² + y/noise²) / prec`` where ``y`` is known; elementwise."""
    weight = known * (g2 / (g2 + noise * noise))
    return z_hat + weight * (y - z_hat), g2 * (1 - weight)


def update_xi(mean: Tensor, var: Tensor, lambda_: float, rule: str = "optimal") -> Tensor:
    """``xi² = lambda² (E[z]² + Var z)``, the bound's optimum; ``rule="paper"``: ``xi = lambda |E z|``. Elementwise."""
    return lambda_ * (mean.abs() if rule == "paper" else (mean.square() + var).sqrt())


def update_experts(mean: Tensor, lambda_: float) -> Tensor:
    """``q(E_b = 1) = sigma(lambda E z)`` for the experts that ``y = 0`` leaves free; elementwise."""
    return torch.sigmoid(lambda_ * mean)
