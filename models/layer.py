"""The sparse Gaussian-process layer: one class, used once for ``c``, once for ``z``, and for any layer between."""

from __future__ import annotations

from collections.abc import Iterable

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from esmc_pyro.models.kernels import kernel_matrix
from esmc_pyro.models.linalg import jittered_cholesky


class Layer(PyroModule):
    """``O`` Gaussian processes of one kernel, seen through ``M`` pseudo-instances ``S`` (the rows of a matrix, M x d).

    Sites, for a layer called ``c``::

        f_c    ~ MVN(0, K),                     K = k(S, S)             O x M, plate over outputs
        u_c    ~ Normal(f_c, alpha)                                     O x M
        c_hat  ~ Normal(mean(x) + D(x) u_c, beta)                       n x O, plate over instances
        c      ~ Normal(c_hat, gamma)                                   n x O

        D(x) = k(x, S) [K + alpha^2 I]^-1 = A(x) Lw^-1,   Lw Lw' = K + alpha^2 I,   A(x) = k(x, S) Lw^-T

    ``A(x)`` (n x M) are the whitened features: ``D(x) u = A(x) v`` with ``u = Lw v`` and ``v ~ N(0, I)`` a priori.
    With ``fitc=True`` the variance of ``c_hat`` is ``beta^2 + k(x, x) - |A(x)|^2``, the exact conditional of a Gaussian
    process, wide far from the pseudo-instances; the paper keeps the constant ``beta^2``.

    ``learn`` names what is learned, of ``kernel``, ``pseudo_instances``, ``alpha``, ``beta``, ``gamma``, ``mean``; the
    rest stays as given.
    """

    LEARNABLE = ("kernel", "pseudo_instances", "alpha", "beta", "gamma", "mean")

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        pseudo_instances: Tensor,
        outputs: int,
        *,
        plate: str = "latent",
        alpha: float = 0.1,
        beta: float = 0.1,
        gamma: float = 0.1,
        mean: nn.Module | None = None,
        fitc: bool = False,
        learn: Iterable[str] = (),
    ) -> None:
        super().__init__(name)
        for key, value in {"alpha": alpha, "beta": beta, "gamma": gamma}.items():
            if not value > 0:
                raise ValueError(f"{key} must be a positive number; got {value!r}")
        self.site = name
        self.plate = plate
        self.outputs = outputs
        self.fitc = fitc
        self.kernel = kernel
        self.mean = mean
        self.pseudo_instances = nn.Parameter(pseudo_instances.detach().clone())
        like = self.pseudo_instances.detach()
        self.alpha = PyroParam(like.new_tensor(float(alpha)), constraints.positive)
        self.beta = PyroParam(like.new_tensor(float(beta)), constraints.positive)
        self.gamma = PyroParam(like.new_tensor(float(gamma)), constraints.positive)
        self.to(like.dtype)
        self.learn(*learn)
        self._constant: tuple[object, Tensor] | None = None

    def learn(self, *names: str) -> Layer:
        """Learn exactly these (of ``LEARNABLE``) from now on and hold the rest fixed."""
        unknown = sorted(set(names) - set(self.LEARNABLE))
        if unknown:
            raise ValueError(f"learn must name some of {list(self.LEARNABLE)}; got {unknown}")
        for path, parameter in self.named_parameters():
            parameter.requires_grad_(path.split(".")[0].removesuffix("_unconstrained") in names)
        return self

    @property
    def hat(self) -> str:
        """The name of the noiseless site, ``c_hat`` for the layer ``c``."""
        return f"{self.site}_hat"

    @property
    def pseudo_count(self) -> int:
        """``M``."""
        return len(self.pseudo_instances)

    def covariance(self) -> Tensor:
        """``K = k(S, S)``, M x M."""
        return self.kernel(self.pseudo_instances)

    def _shapes_factor(self) -> list[Tensor]:
        return [*self.kernel.parameters(), self.pseudo_instances, self.alpha_unconstrained]

    def factor(self) -> Tensor:
        """``Lw``, the Cholesky factor of ``K + alpha^2 I`` (M x M); kept between calls while nothing in it is learned."""
        shapers = self._shapes_factor()
        if torch.is_grad_enabled() and any(p.requires_grad for p in shapers):
            return self._factor()
        key = tuple((p.data_ptr(), p.dtype, p._version) for p in shapers)
        if self._constant is None or self._constant[0] != key:
            with torch.no_grad():
                self._constant = (key, self._factor())
        return self._constant[1]

    def _factor(self) -> Tensor:
        k = self.covariance()
        noise = self.alpha**2 * torch.eye(len(k), dtype=k.dtype, device=k.device)
        return jittered_cholesky(k + noise, f"the kernel matrix of layer {self.site!r}")

    def features(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """``A(x) = k(x, S) Lw^-T``: ``(..., n, d) -> (..., n, M)``. ``factor`` is ``Lw``, if it is at hand."""
        k = kernel_matrix(self.kernel, x, self.pseudo_instances)
        return torch.linalg.solve_triangular(self.factor() if factor is None else factor, k.mT, upper=False).mT

    def whiten(self, u: Tensor, factor: Tensor | None = None) -> Tensor:
        """``v = Lw^-1 u`` for each output: ``(..., O, M) -> (..., O, M)``."""
        return torch.linalg.solve_triangular(self.factor() if factor is None else factor, u.mT, upper=False).mT

    def offset(self, x: Tensor) -> Tensor | float:
        """``mean(x)``: broadcasts to ``(..., n, O)``."""
        return 0.0 if self.mean is None else self.mean(x)

    def residual_variance(self, x: Tensor, features: Tensor) -> Tensor:
        """The variance of ``c_hat`` given ``u``: ``beta^2``, plus what ``fitc`` adds. Broadcasts to ``(..., n, 1)``."""
        if not self.fitc:
            return self.beta**2
        prior = self.kernel(x.reshape(-1, x.shape[-1]), diag=True).reshape(x.shape[:-1])
        return self.beta**2 + (prior - features.square().sum(-1)).clamp(min=0.0).unsqueeze(-1)

    def _mean_and_features(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor()
        a = self.features(x, factor)
        return self.offset(x) + a @ self.whiten(u, factor).mT, a

    def predict(self, x: Tensor, u: Tensor) -> Tensor:
        """``mean(x) + D(x) u``: ``(..., n, d), (..., O, M) -> (..., n, O)``."""
        return self._mean_and_features(x, u)[0]

    def conditional(self, x: Tensor, u: Tensor) -> dist.Normal:
        """``p(c_hat | x, u)``, elementwise over ``(..., n, O)``. Guides take this one, they do not write it again."""
        loc, a = self._mean_and_features(x, u)
        return dist.Normal(loc, self.residual_variance(x, a).sqrt().expand_as(loc))

    def functions_given(self, u: Tensor) -> dist.MultivariateNormal:
        """``p(f | u) = MVN(K P u, K - K P K)``, ``P = [K + alpha^2 I]^-1``, for each output: ``(..., O, M)``.

        With ``K = P^-1 - alpha^2 I`` these are ``u - alpha^2 P u`` and ``alpha^2 I - alpha^4 P``.
        """
        p = torch.cholesky_inverse(self.factor())
        eye = torch.eye(len(p), dtype=p.dtype, device=p.device)
        variance = self.alpha**2
        tril = jittered_cholesky(variance * (eye - variance * p), f"p(f | u) of layer {self.site!r}")
        return dist.MultivariateNormal(u - variance * u @ p, scale_tril=tril)

    def sample_functions(self) -> Tensor:
        """The prior of ``f`` and ``u``; returns ``u`` (O x M)."""
        zero = self.pseudo_instances.new_zeros(self.pseudo_count)
        tril = jittered_cholesky(self.covariance(), f"the kernel matrix of layer {self.site!r}")
        with pyro.plate(self.plate, self.outputs, dim=-1):
            f = pyro.sample(f"f_{self.site}", dist.MultivariateNormal(zero, scale_tril=tril))
            return pyro.sample(f"u_{self.site}", dist.Normal(f, self.alpha).to_event(1))

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        """The local sites ``c_hat`` and ``c`` of the rows ``x``, inside the plate over instances; returns ``c``."""
        hat = pyro.sample(self.hat, self.conditional(x, u).to_event(1))
        return pyro.sample(self.site, dist.Normal(hat, self.gamma).to_event(1))
