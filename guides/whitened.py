"""``q(u)``, whitened: what the guides share that learn it and condition everything else on its draw."""

from __future__ import annotations

from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.transforms import LowerCholeskyAffine
from pyro.nn import PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.start import STARTS, label_informed_start
from esmc_pyro.models import ESMC, Layer
from esmc_pyro.validation import check_choice, check_number

COVARIANCES = ("common", "diagonal", "shared", "full")


class WhitenedGuide(Guide):
    """``q(u) p(f | u)``; the local sites are left to the guides made of it.

    ``q(u)`` is whitened, ``u = Lw v``, ``Lw Lw' = K + alpha^2 I``: a priori ``v ~ N(0, I)``, and ``D(x) u = A(x) v``::

        q(v_o) = N(v_loc_o, V_o)    v_loc O x M; V_o by choice
        covariance="common"         v_scale 1 x M, diagonal and one for all outputs: costs next to nothing
        covariance="diagonal"       v_scale O x M
        covariance="shared"         v_tril M x M, one for all outputs
        covariance="full"           v_tril O x M x M

    ``start="labels"`` begins at ``label_informed_start``, which also moves the model's later layers, ``start="zero"``
    at zero means; ``scale`` is the first standard deviation of ``v``.
    """

    def __init__(
        self,
        model: ESMC,
        X: Tensor,
        Y: Tensor,
        *,
        covariance: Literal["common", "diagonal", "shared", "full"] = "diagonal",
        start: Literal["labels", "zero"] = "labels",
        scale: float = 0.1,
    ) -> None:
        super().__init__(model)
        check_choice(covariance, COVARIANCES, "covariance")
        check_choice(start, STARTS, "start")
        self.covariance = covariance
        check_number(scale, "scale", low=0, above=True)
        us = label_informed_start(model, X, Y) if start == "labels" else None
        for depth, layer in enumerate(model.layers):
            O, M = layer.outputs, layer.pseudo_count
            v = X.new_zeros(O, M) if us is None else layer.whiten(us[depth]).detach()
            setattr(self, f"{layer.site}_v_loc", nn.Parameter(v.clone()))
            if covariance in ("common", "diagonal"):
                shape = (1 if covariance == "common" else O, M)
                spread = PyroParam(X.new_full(shape, scale), constraints.positive)
            else:
                tril = scale * torch.eye(M, dtype=X.dtype)
                spread = PyroParam(
                    tril if covariance == "shared" else tril.expand(O, M, M).clone(), constraints.lower_cholesky
                )
            setattr(self, f"{layer.site}_v_{'scale' if self.is_diagonal else 'tril'}", spread)

    @property
    def is_diagonal(self) -> bool:
        """Whether ``V`` is a diagonal, kept as ``v_scale``."""
        return self.covariance in ("common", "diagonal")

    def v_loc(self, layer: Layer, outputs: Tensor | None = None) -> Tensor:
        """The mean of ``v``, O x M, of all ``outputs`` or of those whose places are given."""
        loc = getattr(self, f"{layer.site}_v_loc")
        return loc if outputs is None else loc[outputs]

    def q_v(self, layer: Layer) -> dist.TorchDistribution:
        """``q(v)`` of a layer: batch O, event M."""
        if self.is_diagonal:
            loc = self.v_loc(layer)
            return dist.Normal(loc, getattr(self, f"{layer.site}_v_scale").expand_as(loc)).to_event(1)
        return dist.MultivariateNormal(self.v_loc(layer), scale_tril=getattr(self, f"{layer.site}_v_tril"))

    def output_variance(self, layer: Layer, features: Tensor, outputs: Tensor | None = None) -> Tensor:
        """``A_n V_o A_n'``, the variance that ``q(v)`` gives output ``o`` of row ``n``.

        Shapes: ``(..., n, M) -> (..., n, O)``, or ``(..., n, 1)`` where the outputs share it; of all ``outputs``, or of
        those whose places are given.
        """
        spread = getattr(self, f"{layer.site}_v_{'scale' if self.is_diagonal else 'tril'}")
        if outputs is not None and self.covariance in ("diagonal", "full"):
            spread = spread[outputs]
        if self.is_diagonal:
            return features.square() @ spread.square().mT
        if self.covariance == "shared":
            return (features @ spread).square().sum(-1, keepdim=True)
        return torch.einsum("...nm,omk->...nok", features, spread).square().sum(-1)

    def mean_covariance(self, layer: Layer, features: Tensor) -> Tensor:
        """``mean_o A V_o A'``, the covariance of rows by ``q(v)``, in the mean over outputs: ``(n, M) -> (n, n)``."""
        if self.is_diagonal:
            variance = getattr(self, f"{layer.site}_v_scale").square().mean(0)
            return (features * variance) @ features.mT
        tril = getattr(self, f"{layer.site}_v_tril")
        spread = features @ tril  # n x M, or O x n x M
        return spread @ spread.mT if self.covariance == "shared" else (spread @ spread.mT).mean(0)

    def kl(self, layer: Layer) -> Tensor:
        """``KL(q(u) || p(u)) = KL(q(v) || N(0, I))``, summed over the outputs; whitening leaves it unchanged."""
        loc = self.v_loc(layer)
        copies = layer.outputs if self.covariance in ("common", "shared") else 1
        if self.is_diagonal:
            scale = getattr(self, f"{layer.site}_v_scale")
            spread = 0.5 * scale.square().sum() - scale.log().sum()
        else:
            tril = getattr(self, f"{layer.site}_v_tril")
            spread = 0.5 * tril.square().sum() - tril.diagonal(dim1=-2, dim2=-1).log().sum()
        return 0.5 * loc.square().sum() - 0.5 * loc.numel() + copies * spread

    def sample_globals(self) -> list[Tensor]:
        us = []
        for layer, plate in self._plates():
            with plate:
                unwhiten = LowerCholeskyAffine(layer.pseudo_instances.new_zeros(layer.pseudo_count), layer.factor())
                u = pyro.sample(f"u_{layer.site}", dist.TransformedDistribution(self.q_v(layer), [unwhiten]))
                pyro.sample(f"f_{layer.site}", layer.functions_given(u))
                us.append(u)
        return us

    @torch.no_grad()
    def plug_in(self, x: Tensor) -> list[Tensor]:
        """As every guide's, straight from the means of ``v``."""
        outputs = []
        for layer in self.model.layers:
            x = layer.predict_whitened(x, self.v_loc(layer))
            outputs.append(x)
        return outputs

    def u_means(self) -> list[Tensor]:
        with torch.no_grad():
            return [self.v_loc(layer) @ layer.factor().mT for layer in self.model.layers]
