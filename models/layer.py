"""The sparse Gaussian-process layer: one class, used once for ``c``, once for ``z``, and for any layer between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from esmc_pyro.models.kernels import is_stationary, kernel_matrix, near_kernel_matrix
from esmc_pyro.models.linalg import add_to_diagonal, bears_rounding, jittered_cholesky
from esmc_pyro.models.means import Constant, Linear
from esmc_pyro.models.unused import unused
from esmc_pyro.validation import check_number

# A float32 f is off by 1e-7; along directions whose prior deviation is less than 1e-3, that would swamp ln p(f).
FLOAT32_JITTER = 1e-6
LARGE = 2048  # pseudo-instances from which on a factor in float32 is worth having


class _Kept(NamedTuple):
    """A matrix, with copies of what it was made from."""

    kernel: Kernel
    shapers: list[Tensor]
    value: Tensor


class _Cache(dict[str, _Kept]):
    """Matrices by name: copies have them, pickles do not. They can be made again, and M x M numbers are many."""

    def __reduce__(self) -> tuple[type[_Cache], tuple[()]]:
        return _Cache, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Cache:
        return _Cache(copy.deepcopy(dict(self), memo))


def _first(path: str) -> str:
    """The attribute of the layer that the parameter called ``path`` belongs to."""
    return path.split(".")[0].removesuffix("_unconstrained")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


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

    ``mean`` is a mean function (``means``), zero if None. ``learn`` names what is learned, of ``kernel``,
    ``pseudo_instances``, ``alpha``, ``beta``, ``gamma``, ``mean``; the rest stays as given. A ``lengthscale_rule`` (see
    ``rules.lengthscale_from_distances``) lets a guide's start set the length-scale anew once it knows the inputs.
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
        lengthscale_rule: str | None = None,
        learn: Iterable[str] = (),
    ) -> None:
        super().__init__(name)
        for key, value in {"alpha": alpha, "beta": beta, "gamma": gamma}.items():
            check_number(value, key, low=0, above=True)
        self.site = name
        self.plate = plate
        self.outputs = outputs
        self.fitc = fitc
        self.lengthscale_rule = lengthscale_rule
        self.kernel = unused(kernel)
        self.mean = mean
        self.pseudo_instances = nn.Parameter(pseudo_instances.detach().clone())
        like = self.pseudo_instances.detach()
        self.alpha = PyroParam(like.new_tensor(float(alpha)), constraints.positive)
        self.beta = PyroParam(like.new_tensor(float(beta)), constraints.positive)
        self.gamma = PyroParam(like.new_tensor(float(gamma)), constraints.positive)
        self.to(like.dtype)
        self.learn(*learn)
        self._cache = _Cache()

    def learn(self, *names: str) -> Layer:
        """Learn exactly these (of ``LEARNABLE``) from now on and hold the rest fixed."""
        unknown = sorted(set(names) - set(self.LEARNABLE))
        if unknown:
            raise ValueError(f"learn must name some of {list(self.LEARNABLE)}; got {unknown}")
        for path, parameter in self.named_parameters():
            parameter.requires_grad_(_first(path) in names)
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
        """``K = k(S, S)``, M x M; in float32 with ``FLOAT32_JITTER`` times its mean diagonal added to the diagonal."""
        return self._covariance().to(self.pseudo_instances.dtype)

    def _covariance(self, noise: Tensor | float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        # in double precision where the kernel allows it: in float32 the smallest eigenvalues of K would be noise
        stationary = is_stationary(self.kernel)
        s = self.pseudo_instances.double() if stationary else self.pseudo_instances
        k = kernel_matrix(self.kernel, s, s, dtype)
        if self.pseudo_instances.dtype == torch.float32:
            noise = noise + FLOAT32_JITTER * k.diagonal().mean()
        if stationary and not torch.is_grad_enabled():
            k.diagonal().add_(noise)  # a new matrix, and no gradient needs it as it was: it need not be copied
            return k
        return add_to_diagonal(k, noise)

    def _shapers(self) -> list[Tensor]:
        return [p for path, p in self.named_parameters() if _first(path) in ("kernel", "pseudo_instances", "alpha")]

    def _drawn(self) -> bool:
        return any(m._pyro_samples for m in self.modules() if isinstance(m, PyroModule))  # priors put by the user

    @property
    def is_frozen(self) -> bool:
        """Whether the features ``A(x)`` are constant during a fit: nothing that shapes them is learned or drawn."""
        return not self._drawn() and not any(p.requires_grad for p in self._shapers())

    def _kept(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """``make()``, kept between calls while nothing that shapes it is learned, drawn, or of another value."""
        shapers = self._shapers()
        if self._drawn() or (torch.is_grad_enabled() and any(p.requires_grad for p in shapers)):
            return make()
        kept = self._cache.get(name)
        # compared by value: Pyro assigns parameters through .data, which leaves no mark on a tensor
        if (
            kept is None
            or kept.kernel is not self.kernel
            or not all(_same(a, b) for a, b in zip(kept.shapers, shapers, strict=True))
        ):
            with torch.no_grad():
                kept = _Kept(self.kernel, [p.detach().clone() for p in shapers], make())
            self._cache[name] = kept
        return kept.value

    def factor(self) -> Tensor:
        """``Lw``, the Cholesky factor of ``K + alpha^2 I`` (M x M); kept between calls while nothing in it changes."""
        return self._kept("factor", self._factor)

    def _factor(self) -> Tensor:
        noise = self.alpha**2
        if self.pseudo_count < LARGE:
            return self._cholesky(self._covariance(noise))
        scale = self.kernel(self.pseudo_instances, diag=True).detach().mean()
        own = self.pseudo_instances.dtype
        borne = bears_rounding(self.pseudo_count, float(noise.detach()), float(scale), own)
        precision = own if borne else torch.float64
        return self._cholesky(self._covariance(noise, precision), precision)

    def prior_factor(self) -> Tensor:
        """The Cholesky factor of ``K`` (M x M), with the least jitter that it needs; kept as ``factor`` is."""
        return self._kept("prior_factor", lambda: self._cholesky(self._covariance()))

    def _cholesky(self, matrix: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
        factor = jittered_cholesky(matrix, f"the kernel matrix of layer {self.site!r}", precision)
        return factor.to(self.pseudo_instances.dtype)

    def features(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """``A(x) = k(x, S) Lw^-T``: ``(..., n, d) -> (..., n, M)``. ``factor`` is ``Lw``, if it is at hand."""
        k = kernel_matrix(self.kernel, x, self.pseudo_instances)
        return torch.linalg.solve_triangular(self.factor() if factor is None else factor, k.mT, upper=False).mT

    def own_features(self, block: int = 1024) -> Tensor:
        """``A(S) = K Lw^-T = Lw - alpha^2 Lw^-T``, M x M: a third of the work of ``features(S)``.

        A triangular matrix is inverted, ``block`` columns at a time, each from its diagonal on.
        """
        factor = self.factor()
        # alpha^2 with what was added for the factor to hold
        noise = (factor.square().sum(-1) - self.kernel(self.pseudo_instances, diag=True)).mean()
        a = factor.clone(memory_format=torch.contiguous_format)  # rows are taken from it, and a factor lies in columns
        for j in range(0, len(a), block):
            columns = factor.new_zeros(len(a) - j, min(block, len(a) - j)).fill_diagonal_(1.0)
            a[j : j + block, j:] -= noise * torch.linalg.solve_triangular(factor[j:, j:], columns, upper=False).mT
        return a

    def whiten(self, u: Tensor, factor: Tensor | None = None) -> Tensor:
        """``v = Lw^-1 u`` for each output: ``(..., O, M) -> (..., O, M)``."""
        return torch.linalg.solve_triangular(self.factor() if factor is None else factor, u.mT, upper=False).mT

    def offset(self, x: Tensor, outputs: Tensor | None = None) -> Tensor | float:
        """``mean(x)``: broadcasts to ``(..., n, O)``. Of all ``outputs``, or of those whose places are given."""
        if self.mean is None:
            return 0.0
        if outputs is None:
            return self.mean(x)
        # one of the user's own need not know of outputs
        return self.mean(x, outputs) if isinstance(self.mean, Constant | Linear) else self.mean(x)[..., outputs]

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
        """``mean(x) + D(x) u``: ``(..., n, d), (..., O, M) -> (..., n, O)``, with no M x n system to solve."""
        return self.predict_whitened(x, self.whiten(u))

    def predict_whitened(self, x: Tensor, v: Tensor, block: int = 4096) -> Tensor:
        """``mean(x) + A(x) v``, the same of whitened ``v = Lw^-1 u``; ``block`` rows of ``k(x, S)`` at a time.

        A row alone and the same row among others differ by rounding only, also where it is a pseudo-instance.
        """
        weights = torch.linalg.solve_triangular(self.factor().mT, v.mT, upper=True)
        s = self.pseudo_instances

        def output(rows: Tensor) -> Tensor:
            return self.offset(rows) + near_kernel_matrix(self.kernel, rows, s) @ weights

        return torch.cat([output(rows) for rows in x.split(block, -2)], -2)

    def conditional(self, x: Tensor, u: Tensor) -> dist.Normal:
        """``p(c_hat | x, u)``, elementwise over ``(..., n, O)``. Guides take this one, they do not write it again."""
        loc, a = self._mean_and_features(x, u)
        return dist.Normal(loc, self.residual_variance(x, a).sqrt().expand_as(loc))

    def functions_given(self, u: Tensor) -> dist.MultivariateNormal:
        """``p(f | u) = MVN(T T' u / alpha^2, T T')``, ``T T' = K - K [K + alpha^2 I]^-1 K = [K^-1 + I / alpha^2]^-1``.

        For each output: ``(..., O, M)``. With ``K = L L'`` the covariance is ``L [I + L'L / alpha^2]^-1 L'``, so no
        small difference of large matrices is taken and ``T`` is as good as ``L`` is.
        """
        tril = self._kept("functions_given", self._functions_tril)
        return dist.MultivariateNormal((u @ tril @ tril.mT) / self.alpha**2, scale_tril=tril)

    def _functions_tril(self) -> Tensor:
        lower = self.prior_factor().double()
        inner = torch.eye(len(lower), dtype=lower.dtype, device=lower.device) + lower.mT @ lower / self.alpha**2
        # inner = G'G with G lower triangular: the Cholesky factor of inner read from its other end
        g = torch.linalg.cholesky(inner.flip(0, 1)).flip(0, 1).mT
        return torch.linalg.solve_triangular(g, lower, upper=False, left=False).to(self.pseudo_instances.dtype)

    def sample_functions(self) -> Tensor:
        """The prior of ``f`` and ``u``; returns ``u`` (O x M)."""
        zero = self.pseudo_instances.new_zeros(self.pseudo_count)
        with pyro.plate(self.plate, self.outputs, dim=-1):
            f = pyro.sample(f"f_{self.site}", dist.MultivariateNormal(zero, scale_tril=self.prior_factor()))
            return pyro.sample(f"u_{self.site}", dist.Normal(f, self.alpha).to_event(1))

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        """The local sites ``c_hat`` and ``c`` of the rows ``x``, inside the plate over instances; returns ``c``."""
        hat = pyro.sample(self.hat, self.conditional(x, u).to_event(1))
        return pyro.sample(self.site, dist.Normal(hat, self.gamma).to_event(1))
