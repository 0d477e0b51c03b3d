"""Pyro's autoguides as guides of this model: ``q`` over all that the model keeps once the rest is integrated out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import pyro
import pyro.distributions as dist
import pyro.infer.autoguide as pyro_autoguide
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoContinuous,
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor, nn

from esmc_pyro.guides.base import Guide
from esmc_pyro.guides.start import STARTS, label_informed_start
from esmc_pyro.models import ESMC, Layer, NotPositiveDefiniteError
from esmc_pyro.models.marginal import Marginal
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice

AUTOGUIDES: dict[str, type[pyro_autoguide.AutoGuide]] = {
    "auto_delta": AutoDelta,
    "auto_normal": AutoNormal,
    "auto_diagonal_normal": AutoDiagonalNormal,
    "auto_multivariate_normal": AutoMultivariateNormal,
    "auto_low_rank_multivariate_normal": AutoLowRankMultivariateNormal,
    "auto_laplace_approximation": AutoLaplaceApproximation,
    "auto_iaf_normal": AutoIAFNormal,
}
BY_SITE = (AutoDelta, AutoNormal)  # a factor for each site, so that a minibatch is a choice of rows
# one normal distribution of all numbers (or the point that becomes its middle), whose median is its mean
NORMAL = (AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoLaplaceApproximation)
MEAN_DRAWS = 4000
CLIMB = 200


class MarginalGuide(Guide):
    """One of Pyro's autoguides on ``models.marginal.Marginal``: ``q(v_c, ..., v_z, c, ..., z)`` of the training rows.

    ``auto`` is the autoguide's class, or anything that makes one from a program, such as
    ``partial(AutoLowRankMultivariateNormal, rank=5)``. ``u = Lw v`` and ``f ~ p(f | u)`` follow from the draw, and the
    local sites are drawn together with ``v``: call the guide itself. ``start`` is as in the other guides (a flow begins
    at a standard normal all the same).

    Those with a factor for each site (``BY_SITE``) take minibatches; the others keep one vector of all the numbers of
    all rows, and so need all rows at once. After a fit ``AutoLaplaceApproximation`` is the normal distribution with
    the curvature of ``ln p`` at the peak that the fit led to.
    """

    def __init__(
        self,
        model: ESMC,
        X: Tensor,
        Y: Tensor,
        *,
        auto: Callable[..., pyro_autoguide.AutoGuide] = AutoNormal,
        start: Literal["labels", "zero"] = "labels",
    ) -> None:
        super().__init__(model)
        check_choice(start, STARTS, "start")
        if model.has_priors:
            raise ValueError(
                "the model must have plain parameters for an autoguide, which would draw those with a prior apart from "
                "u; got a model with priors (use NUTS)"
            )
        kind = auto.func if isinstance(auto, partial) else auto
        if isinstance(kind, type) and not issubclass(kind, (AutoContinuous, *BY_SITE)):
            raise _not_an_autoguide(kind)
        self._joint = (Marginal(model),)  # in a tuple for the same reason as the model
        self.rows = len(X)
        made = auto(self.joint, **self._starting_at(auto, X, Y, start))
        if not isinstance(made, (AutoContinuous, *BY_SITE)):
            raise _not_an_autoguide(type(made))
        made.create_plates = _instances  # left to themselves they would choose rows of their own
        self.needs_all_rows = not isinstance(made, BY_SITE)
        self.is_point = isinstance(made, AutoDelta | AutoLaplaceApproximation)
        self.auto = made
        with _default_dtype(X.dtype), torch.no_grad():
            poutine.block(made)(X, Y, None)  # its parameters are made at the first call, with the sizes it sees then

    def _starting_at(self, auto: Callable[..., Any], X: Tensor, Y: Tensor, start: str) -> dict[str, Any]:
        """The autoguide's first means, as its option ``init_loc_fn``, unless the user gave one."""
        if isinstance(auto, partial) and "init_loc_fn" in auto.keywords:
            return {}
        if start == "labels":
            us = label_informed_start(self.model, X, Y)
        else:
            us = [X.new_zeros(layer.outputs, layer.pseudo_count) for layer in self.model.layers]
        with torch.no_grad():
            outputs = self.model.plug_in(X, us)
            values: dict[str, Tensor] = {}
            for layer, u, output in zip(self.model.layers, us, outputs, strict=True):
                values |= {f"v_{layer.site}": layer.whiten(u), layer.site: output}
        kind = auto.func if isinstance(auto, partial) else auto
        flow = isinstance(kind, type) and issubclass(kind, pyro_autoguide.AutoNormalizingFlow)
        return {} if flow else {"init_loc_fn": init_to_value(values=values)}

    @property
    def joint(self) -> nn.Module:
        return self._joint[0]

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> None:
        # Pyro takes the parameters of a batch as large as the data in their own order, whatever the batch's is
        if rows is not None and (self.needs_all_rows or len(rows) >= len(X)):
            if not torch.equal(rows, torch.arange(len(X), device=rows.device)):
                fewer, why = (
                    ("", "draws all rows at once") if self.needs_all_rows else (" or fewer", "keeps their order")
                )
                raise ValueError(
                    f"rows must be None or all {len(X)} rows in order{fewer}: {type(self.auto).__name__} {why}; got "
                    f"{len(rows)} of them"
                )
            rows = None
        self.auto(X, Y, rows)

    def sample_globals(self) -> list[Tensor]:
        vs = self._vs_in(self.auto.sample_latent()) if self.needs_all_rows else None
        us = []
        for depth, (layer, plate) in enumerate(self._plates()):
            with plate:
                if vs is None:
                    v = pyro.sample(f"v_{layer.site}", self._q_v(layer))
                else:
                    v = pyro.deterministic(f"v_{layer.site}", vs[depth], event_dim=1)
                u = pyro.deterministic(f"u_{layer.site}", v @ layer.factor().mT, event_dim=1)
                pyro.sample(f"f_{layer.site}", layer.functions_given(u))
            us.append(u)
        return us

    def _vs_in(self, latent: Tensor) -> list[Tensor]:
        """``[v_c, ..., v_z]`` in the vector of all numbers, which begins with them as ``Marginal`` does."""
        vs, begin = [], 0
        for layer in self.model.layers:
            end = begin + layer.outputs * layer.pseudo_count
            v = latent[..., begin:end].unflatten(-1, (layer.outputs, layer.pseudo_count))
            # with particles the vector has a dimension of size one where v has that of the plate over outputs
            vs.append(v.squeeze(-3) if v.dim() > 2 else v)
            begin = end
        return vs

    def _q_v(self, layer: Layer) -> dist.TorchDistribution:
        """``q(v)`` of a layer where each site has a factor: batch O, event M."""
        name = f"v_{layer.site}"
        if isinstance(self.auto, AutoDelta):
            return dist.Delta(getattr(self.auto, name), event_dim=1)
        return dist.Normal(getattr(self.auto.locs, name), getattr(self.auto.scales, name)).to_event(1)

    def sample_locals(self, x: Tensor, y: Tensor, known: Tensor, rows: Tensor, us: list[Tensor]) -> Tensor:
        raise TypeError("an autoguide draws its local sites together with v; call guide(X, Y, rows)")

    @torch.no_grad()
    def u_means(self) -> list[Tensor]:
        """``E u``; of a flow, which has no mean in closed form, the mean of ``MEAN_DRAWS`` draws, always the same."""
        if isinstance(self.auto, NORMAL):
            vs = self._vs_in(self.auto.loc)
        elif isinstance(self.auto, BY_SITE):
            vs = [self._q_v(layer).mean for layer in self.model.layers]
        else:
            with seeded(0), pyro.plate("draws", MEAN_DRAWS, dim=-3):
                vs = [v.mean((0, 1)) for v in self._vs_in(self.auto.sample_latent())]
        return [v @ layer.factor().mT for layer, v in zip(self.model.layers, vs, strict=True)]

    def finish(self, X: Tensor, Y: Tensor) -> None:
        """Laplace's approximation: on to the peak, then the inverse of the curvature of ``-ln p`` there."""
        if isinstance(self.auto, AutoLaplaceApproximation):
            self._climb(X, Y)
            try:
                normal = self.auto.laplace_approximation(X, Y, None)
            except torch.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    "the posterior has no peak where the fit ended, so Laplace's approximation has no covariance; "
                    "expected a fit that has converged (try more epochs)"
                ) from None
            normal.create_plates = _instances
            self.auto, self.is_point = normal, False

    def _climb(self, X: Tensor, Y: Tensor) -> None:
        """Move the point to the nearest peak of ``ln p``, the model held as it is, by ``CLIMB`` steps of L-BFGS."""
        loc = self.auto.loc
        steps = torch.optim.LBFGS(
            [loc], max_iter=CLIMB, line_search_fn="strong_wolfe", tolerance_grad=1e-8, tolerance_change=1e-15
        )

        def closure() -> Tensor:
            q = poutine.trace(self.auto).get_trace(X, Y, None)
            loss = -poutine.trace(poutine.replay(self.joint, trace=q)).get_trace(X, Y, None).log_prob_sum()
            loc.grad = torch.autograd.grad(loss, loc)[0]
            return loss.detach()

        steps.step(closure)
        loc.grad = None


def _not_an_autoguide(kind: type) -> ValueError:
    known = sorted(known.__name__ for known in AUTOGUIDES.values())
    return ValueError(f"auto must make one of {known} or another AutoContinuous; got {kind.__name__}")


def _instances(X: Tensor, Y: Tensor, rows: Tensor | None) -> pyro.plate:
    """The plate over instances, as ``Marginal`` has it."""
    return pyro.plate("instances", len(X), subsample=rows, dim=-1)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The networks of a flow are made in the default precision, which may not be the model's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def is_autoguide(guide: Any) -> bool:
    """Whether ``guide`` is a class of Pyro's autoguides, or ``partial`` of one."""
    kind = guide.func if isinstance(guide, partial) else guide
    return isinstance(kind, type) and issubclass(kind, pyro_autoguide.AutoGuide)
