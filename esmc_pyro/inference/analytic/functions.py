"""``q(f)`` and ``q(u)`` of one layer beside the matrices of its prior, all M x M algebra in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic import bound, updates
from esmc_pyro.models import Layer


class Functions:
    """The global factors of a layer: ``f_loc``, ``u_loc`` (O x M), ``f_tril`` (M x M), and ``u_tril`` (M x M) or
    ``u_scale`` (O x M).

    ``Lw Lw' = K + a² I`` is the model's own factor, ``K_tril`` that of the prior of ``f``, ``W = (Lw Lw')^-1``, and
    ``prior`` the same inverse made from ``K_tril`` (they differ by the jitter, if there was any). ``layer_changed``
    makes them anew.
    """

    def __init__(self, layer: Layer, guide: PaperGuide) -> None:
        self.layer, self.full = layer, guide.covariance == "full"
        self.a2, self.b2, self.g2 = (x.detach().double().square() for x in (layer.alpha, layer.beta, layer.gamma))
        get = lambda what: guide.get(layer.site, what).detach().double().clone()  # noqa: E731
        self.f_loc, self.f_tril, self.u_loc = get("f_loc"), get("f_tril"), get("u_loc")
        self.u_spread = get("u_tril" if self.full else "u_scale")
        self.layer_changed()

    @torch.no_grad()
    def layer_changed(self) -> None:
        """Kernel and pseudo-instances are not what they were."""
        self.Lw = self.layer.factor().detach().double()
        self.W = torch.cholesky_inverse(self.Lw)
        self.K_tril = self.layer.prior_factor().detach().double()
        eye = torch.eye(len(self.Lw), dtype=torch.float64)
        self.prior = torch.cholesky_inverse(torch.linalg.cholesky(self.K_tril @ self.K_tril.mT + self.a2 * eye))
        self.functions_changed()

    def functions_changed(self) -> None:
        """``weights`` = m_u W (O x M), so that ``E c_hat = P1 weights'``, and ``Q = W (m_u'm_u + sum_o S_o) W`` (M x
        M).
        """
        self.weights = self.u_loc @ self.W
        self.Q = self.weights.mT @ self.weights + self.W @ self.u_covariance_sum() @ self.W
        self.whitened_Q = self.Lw.mT @ self.Q @ self.Lw
        self._term: float | None = None

    def u_covariance_sum(self) -> Tensor:
        """``sum_o S_o``, M x M."""
        if self.full:
            return len(self.u_loc) * self.u_spread @ self.u_spread.mT
        return self.u_spread.square().sum(0).diag()

    def term(self) -> float:
        """``E ln p(u|f) + E ln p(f) + H q(f) + H q(u)``, kept until a factor changes."""
        if self._term is None:
            self._term = self._compute_term()
        return self._term

    def _compute_term(self) -> float:
        outputs = len(self.u_loc)
        if self.full:
            entropy = bound.entropy_shared(self.u_spread, outputs)
        else:
            entropy = bound.entropy_diagonal(self.u_spread.log().sum(), self.u_spread.numel())
        var_u = self.u_covariance_sum().diagonal()
        return float(
            bound.expected_log_u_given_f(self.u_loc, var_u, self.f_loc, self.f_tril, self.a2)
            + bound.expected_log_f(self.f_loc, self.f_tril, self.K_tril)
            + bound.entropy_shared(self.f_tril, outputs)
            + entropy
        )

    def update_f(self) -> None:
        """``q(f)`` at its optimum."""
        f_tril = updates.update_f_covariance(self.K_tril, self.a2)
        self.f_loc, self.f_tril = updates.update_f_mean(self.u_loc, self.prior, self.a2), f_tril
        self._term = None

    def update_u(self, P2w: Tensor, cross: Tensor, *, joint: bool) -> None:
        """``q(u)`` at its optimum; ``joint``: its mean at the optimum over ``q(f)`` and ``q(u)`` together, and
        ``q(f)`` with it.
        """
        if joint:
            u_loc = updates.update_functions_mean(P2w, cross, self.prior, self.Lw, self.g2)
        else:
            u_loc = updates.update_u_mean(P2w, cross, self.f_loc, self.Lw, self.a2, self.g2)
        if self.full:
            self.u_spread = updates.update_u_covariance(P2w, self.Lw, self.a2, self.g2)
        else:
            self.u_spread = updates.update_u_scale(P2w, self.Lw, self.a2, self.g2).expand_as(u_loc).clone()
        self.u_loc = u_loc
        if joint:
            self.update_f()
        self.functions_changed()
