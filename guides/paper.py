"""The paper's guide: every factor of its variational distribution."""

from __future__ import annotations

from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.start import STARTS, label_informed_start
from esmc_pyro.models import ESMC, Layer
from esmc_pyro.validation import check_choice

COVARIANCES = ("diagonal", "full")
FUNCTIONS = ("free", "optimal")


class PaperGuide(Guide):
    """``q = q(f) q(u) p(c_hat | u, x) q(c) p(z_hat | c, u) q(z) q(E)``, a factor for each site of ``models.esmc``.

    Per layer ``c`` with ``O`` outputs and ``M`` pseudo-instances, over ``N + I`` rows::

        q(f_c) = MVN(f_loc, f_tril f_tril')    f_loc O x M, f_tril M x M shared by the outputs
        q(u_c) = Normal(u_loc, u_scale)        O x M each; covariance="full": u_tril M x M shared by the outputs
        q(c)   = Normal(c_loc, c_scale)        (N + I) x O each, a row for each instance
        q(E)   = the likelihood's own best factor, given E z (``Likelihood.guide``)

    ``start="labels"`` begins at ``label_informed_start``, which also moves the model's later layers, ``start="zero"``
    at zero means. Plain tensors, so that the analytic solver can write its result here.

    ``functions="free"`` keeps ``q(f)`` as parameters, which begin at the optimum ``p(f | u = E u)``. Gradient steps
    on them are as stiff as ``K`` is close to singular, so ``functions="optimal"`` (what SVI takes) leaves them alone
    and uses that optimum throughout: the paper's own update of ``q(f)``, after every step of ``q(u)``.
    """

    def __init__(
        self,
        model: ESMC,
        X: Tensor,
        Y: Tensor,
        *,
        covariance: Literal["diagonal", "full"] = "diagonal",
        functions: Literal["free", "optimal"] = "free",
        start: Literal["labels", "zero"] = "labels",
    ) -> None:
        super().__init__(model)
        check_choice(covariance, COVARIANCES, "covariance of the guide 'paper'")
        check_choice(functions, FUNCTIONS, "functions")
        check_choice(start, STARTS, "start")
        self.covariance = covariance
        self.functions = functions
        self.rows = len(X)
        dtype = X.dtype
        if start == "labels":
            us = label_informed_start(model, X, Y)
            with torch.no_grad():
                outputs = model.plug_in(X, us)
        else:
            us = [torch.zeros(layer.outputs, layer.pseudo_count, dtype=dtype) for layer in model.layers]
            outputs = [torch.zeros(len(X), layer.outputs, dtype=dtype) for layer in model.layers]
        for layer, u, output in zip(model.layers, us, outputs, strict=True):
            M, name, alpha = layer.pseudo_count, layer.site, layer.alpha.item()
            with torch.no_grad():
                best = layer.functions_given(u)
            self._set(name, "f_loc", best.loc.clone())
            self._set(name, "f_tril", best.scale_tril[0].clone(), constraints.lower_cholesky)
            self._set(name, "u_loc", u.clone())
            if covariance == "full":
                self._set(name, "u_tril", alpha * torch.eye(M, dtype=dtype), constraints.lower_cholesky)
            else:
                self._set(name, "u_scale", torch.full_like(u, alpha), constraints.positive)
            for parameter in (self.get(name, "f_loc"), self.get(name, "f_tril_unconstrained")):
                parameter.requires_grad_(functions == "free")
            self._set(name, "loc", output.clone())
            self._set(name, "scale", torch.full_like(output, layer.gamma.item()), constraints.positive)

    def _set(self, layer: str, what: str, value: Tensor, constraint: constraints.Constraint | None = None) -> None:
        setattr(self, f"{layer}_{what}", nn.Parameter(value) if constraint is None else PyroParam(value, constraint))

    def get(self, layer: str, what: str) -> Tensor:
        """A parameter by layer and name: ``get("c", "u_loc")``."""
        return getattr(self, f"{layer}_{what}")

    def q_u(self, layer: str) -> dist.TorchDistribution:
        """``q(u)`` of a layer: batch O, event M."""
        loc = self.get(layer, "u_loc")
        if self.covariance == "full":
            return dist.MultivariateNormal(loc, scale_tril=self.get(layer, "u_tril"))
        return dist.Normal(loc, self.get(layer, "u_scale")).to_event(1)

    def q_f(self, layer: Layer) -> dist.MultivariateNormal:
        """``q(f)`` of a layer: batch O, event M."""
        if self.functions == "optimal":
            return layer.functions_given(self.get(layer.site, "u_loc"))
        return dist.MultivariateNormal(self.get(layer.site, "f_loc"), scale_tril=self.get(layer.site, "f_tril"))

    def sample_globals(self) -> list[Tensor]:
        us = []
        for layer, plate in self._plates():
            with plate:
                pyro.sample(f"f_{layer.site}", self.q_f(layer))
                us.append(pyro.sample(f"u_{layer.site}", self.q_u(layer.site)))
        return us

    def sample_locals(self, x: Tensor, y: Tensor, known: Tensor, rows: Tensor, us: list[Tensor]) -> Tensor:
        h = x
        for layer, u in zip(self.model.layers, us, strict=True):
            pyro.sample(layer.hat, layer.conditional(h, u).to_event(1))
            loc, scale = self.get(layer.site, "loc")[rows], self.get(layer.site, "scale")[rows]
            h = pyro.sample(layer.site, dist.Normal(loc, scale).to_event(1))
        return loc

    def u_means(self) -> list[Tensor]:
        return [self.get(layer.site, "u_loc").detach() for layer in self.model.layers]
