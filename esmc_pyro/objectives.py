"""Objectives: estimates of the bound that a fit raises.

Protocol: an objective is called with ``(model, guide)``, the model being ``guide.joint``, and gives a module that is
called with ``(X, Y, rows)`` and returns the loss, minus the estimate, scaled up from ``rows`` to all rows. Those of
Pyro's ELBOs that have a module form are objectives as they are: ``Trace_ELBO``, ``TraceMeanField_ELBO``,
``TraceEnum_ELBO``, ``TraceTMC_ELBO``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.infer import (
    ELBO,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceMeanField_ELBO,
    Trace_ELBO,
    TraceMeanField_ELBO,
)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from esmc_pyro.guides import DoublyStochasticGuide, Guide
from esmc_pyro.guides.whitened import WhitenedGuide
from esmc_pyro.label_sample import LabelSample
from esmc_pyro.models import ESMC, Layer, Likelihood, observed
from esmc_pyro.models.means import Linear
from esmc_pyro.validation import check_number

BLOCK = 2**24  # labels of rows that are looked at together


class CollapsedELBO:
    """``sum_n E ln p(y_n | z_n) - sum_layers KL(q(u) || p(u))``, an estimate of lower variance than ``Trace_ELBO``'s.

    The likelihood is a sum over instances, so the expectation over the draw of ``u`` that they share equals the sum of
    expectations with ``u`` integrated out a row at a time::

        c_n ~ N(mean(x_n) + A_n v_loc', A_n V A_n' + beta^2 + gamma^2)     one reparametrised draw a layer and row
        z_n ~ the same given c_n                                           integrated by the likelihood

    Used as Pyro's ELBOs are: ``CollapsedELBO()(model, guide)(X, Y, rows)`` is the loss. ``kl_weight`` other than 1
    tempers the prior; then it is no longer a bound. ``absent`` makes steps with many labels cheap: they look at the
    labels that occur in their rows and at so many of the others (``label_sample``), None at all of them.
    """

    def __init__(self, kl_weight: float = 1.0, absent: int | None = None) -> None:
        check_number(kl_weight, "kl_weight", low=0)
        _check_absent(absent)
        self.kl_weight, self.absent = kl_weight, absent

    def __call__(self, model: ESMC, guide: Guide) -> CollapsedLoss:
        if not isinstance(guide, DoublyStochasticGuide):
            raise ValueError(
                f"the objective 'collapsed' needs the guide 'doubly_stochastic', whose q(u) it integrates; "
                f"got {type(guide).__name__}"
            )
        _refuse_own_locals(guide, "collapsed")
        return CollapsedLoss(model, guide, self.kl_weight, self.absent)


class FrozenFeatures:
    """The first layer's whitened features ``A(X)`` ((N + I) x M), computed once while nothing in them is learned.

    Fitting ``q(u)`` is then matrix products over them: the same bound, only what is recomputed changes.
    """

    BUDGET = 2**29  # numbers kept at most, 2 GiB in float32; a larger A is computed a batch at a time

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.kept: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self, X: Tensor, rows: Tensor) -> Tensor:
        """``A(X[rows])``, n x M."""
        whole = self.whole(X)
        return self.layer.features(X[rows]) if whole is None else whole.index_select(0, rows)

    def whole(self, X: Tensor) -> Tensor | None:
        """``A(X)``, made once; None where it is learned or beyond the budget."""
        if not self.layer.is_frozen or len(X) * self.layer.pseudo_count > self.BUDGET:
            return None
        factor = self.layer.factor()  # the same tensor while nothing that shapes the features has another value
        if self.kept is None or not _same_memory(self.kept[0], X) or self.kept[1] is not factor:
            self.kept = None  # before the next are made: they may fill the memory
            with torch.no_grad():
                self.kept = (X, factor, self._make(X))
        return self.kept[2]

    def _make(self, X: Tensor) -> Tensor:
        if torch.equal(X, self.layer.pseudo_instances):
            return self.layer.own_features()
        features = torch.empty(len(X), self.layer.pseudo_count, dtype=X.dtype, device=X.device)
        for x, out in zip(X.split(4096), features.split(4096), strict=True):
            out.copy_(self.layer.features(x))
        return features


class GivenLabels:
    """What is kept of ``Y`` between batches: whether it has gaps, and which labels occur where (``label_sample``)."""

    def __init__(self, likelihood: Likelihood, absent: int | None = None) -> None:
        if absent is not None and not likelihood.is_alike:
            raise ValueError(
                "absent needs a likelihood that is the same for all labels, and says so (is_alike); got "
                f"{type(likelihood).__name__}"
            )
        self.absent = absent
        self.seen: tuple[Tensor, bool, LabelSample | None] | None = None

    def _look(self, Y: Tensor) -> tuple[bool, LabelSample | None]:
        if self.seen is None or not _same_memory(self.seen[0], Y):
            sample = None if self.absent is None else LabelSample(Y, self.absent)
            self.seen = (Y, not bool(torch.isnan(Y).any()), sample)
        return self.seen[1:]

    def draw(self, Y: Tensor, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The labels that this batch looks at, and how many each stands for; None where it looks at all."""
        _, sample = self._look(Y)
        return (None, None) if sample is None else sample(rows)

    def log_prob(
        self, X: Tensor, Y: Tensor, rows: Tensor, log_prob: Callable[[Tensor], Tensor],
        drawn: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Tensor:  # fmt: skip
        """The sum of ``log_prob(y)`` (n x K, or n x what was ``drawn``) over the known entries of these rows, scaled up
        to all rows of ``X`` and all labels.
        """
        is_whole, _ = self._look(Y)
        labels, weights = drawn
        if is_whole and len(Y) == len(X):
            values = log_prob(Y.index_select(0, rows) if labels is None else Y[rows.unsqueeze(-1), labels])
        else:
            y, known = observed(Y, rows, labels)
            values = log_prob(y)
            values = torch.where(known, values, values.new_zeros(()))
        total = values.sum() if weights is None else values.sum(0) @ weights.to(values.dtype)
        return total * (len(X) / len(rows))


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def propagate(
    model: ESMC, guide: DoublyStochasticGuide, x: Tensor, features: Tensor | None = None, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``z``, given one draw of the layers before it: ``(n, F) -> (n, K), (n, K)``.

    ``features`` is ``A(x)`` of the first layer (n x M), if it is at hand; ``labels`` are those looked at, None all.
    """
    layers = list(model.layers)
    for layer in layers:
        outputs = labels if layer is layers[-1] else None
        a = features if layer is layers[0] and features is not None else layer.features(x)
        mean = layer.offset(x, outputs) + a @ guide.v_loc(layer, outputs).mT
        var = guide.output_variance(layer, a, outputs) + layer.residual_variance(x, a) + layer.gamma**2
        if layer is not layers[-1]:
            x = mean + var.sqrt() * torch.randn_like(mean)
    return mean, var.expand_as(mean)


class CollapsedLoss(nn.Module):
    """The loss of ``CollapsedELBO``; ``terms`` gives its parts."""

    def __init__(
        self, model: ESMC, guide: DoublyStochasticGuide, kl_weight: float, absent: int | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.guide, self.kl_weight = model, guide, kl_weight
        self.features, self.labels = FrozenFeatures(model.layers[0]), GivenLabels(model.likelihood, absent)

    def terms(self, X: Tensor, Y: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """``likelihood`` (scaled to all rows) and ``kl_c``, ``kl_z``, ...: the ELBO is the first less the others.

        ``X`` (N + I) x F, ``Y`` N x K, ``rows`` (n,); each term is a number.
        """
        drawn = self.labels.draw(Y, rows)
        mean, var = propagate(self.model, self.guide, X[rows], self.features(X, rows), drawn[0])
        expected = self.model.likelihood.expected_log_prob
        likelihood = self.labels.log_prob(X, Y, rows, lambda y: expected(y, mean, var), drawn)
        return {"likelihood": likelihood} | {f"kl_{l.site}": self.guide.kl(l) for l in self.model.layers}

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Minus the ELBO."""
        terms = self.terms(X, Y, torch.arange(len(X), device=X.device) if rows is None else rows)
        likelihood = terms.pop("likelihood")
        return self.kl_weight * sum(terms.values(), likelihood.new_zeros(())) - likelihood


class MAP:
    """``sum_n ln p(y_n | z_n) - sum_layers |v_loc - v_0|^2 / (2 s_0^2)`` with ``z`` the plug-in mean: the means alone.

    The most probable whitened functions: the collapsed objective in the limit of no spread and no noise. The prior has
    mean 0 and scale 1, or, to go on from an earlier fit, the earlier posterior's (``prior``: a pair O x M, 1 x M a
    layer). The guide's spread does not enter; ``laplace_spread`` sets it afterwards. ``features`` are those of the
    model's first layer, if other work shares them; ``kl_weight`` tempers the prior; ``absent`` as in ``CollapsedELBO``.
    """

    def __init__(
        self,
        prior: Sequence[tuple[Tensor, Tensor]] | None = None,
        features: FrozenFeatures | None = None,
        kl_weight: float = 1.0,
        absent: int | None = None,
    ) -> None:
        check_number(kl_weight, "kl_weight", low=0)
        _check_absent(absent)
        self.prior, self.features, self.kl_weight, self.absent = prior, features, kl_weight, absent

    def __call__(self, model: ESMC, guide: Guide) -> MAPLoss:
        if not isinstance(guide, DoublyStochasticGuide):
            raise ValueError(f"the objective 'map' needs the guide 'doubly_stochastic'; got {type(guide).__name__}")
        _refuse_own_locals(guide, "map")
        return MAPLoss(model, guide, self.prior, self.features, self.kl_weight, self.absent)


def _check_absent(absent: int | None) -> None:
    if absent is not None:
        check_number(absent, "absent", low=1, whole=True)


def _refuse_own_locals(guide: Guide, objective: str) -> None:
    if type(guide).sample_locals is not Guide.sample_locals:
        raise ValueError(
            f"the objective {objective!r} needs a guide whose c and z are drawn as the model draws them; got "
            f"{type(guide).__name__} with a sample_locals of its own (use 'trace')"
        )


def plug_in_z(
    model: ESMC, guide: DoublyStochasticGuide, x: Tensor, first: Tensor, labels: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """``z`` with every layer at its mean (n x K), and the input of the last layer (None for one layer).

    ``first`` (n x O) is ``A(x) v_loc'`` of the first layer; ``labels`` are those looked at, None all.
    """
    layers = list(model.layers)
    h = inputs = layers[0].offset(x, labels if len(layers) == 1 else None) + first
    for layer in layers[1:]:
        outputs = labels if layer is layers[-1] else None
        inputs, v = h, guide.v_loc(layer, outputs)
        h = layer.offset(inputs, outputs)
        # means that are held at zero, as those of an f_z that takes no part, cost nothing
        if v.requires_grad or v.any():
            h = h + layer.features(inputs) @ v.mT
    return h, inputs if len(layers) > 1 else None


class _Ridge(torch.autograd.Function):
    """``A v'`` (n x O) and ``weight |v|^2 / 2`` for features ``A`` (n x M) and means ``v`` (O x M).

    The gradient of both together, ``g'A + weight v``, is one matrix product; apart they would take three more passes
    over matrices of the size of ``v``, and memory for them, at every step.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, v: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(features, v)
        ctx.weight = weight
        return features @ v.mT, 0.5 * weight * torch.linalg.vector_norm(v).square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_prior: Tensor) -> tuple[None, Tensor, None]:
        features, v = ctx.saved_tensors
        return None, torch.addmm(v, g.mT, features, beta=ctx.weight * g_prior.item()), None


class MAPLoss(nn.Module):
    """The loss of ``MAP``."""

    def __init__(
        self,
        model: ESMC,
        guide: DoublyStochasticGuide,
        prior: Sequence[tuple[Tensor, Tensor]] | None = None,
        features: FrozenFeatures | None = None,
        kl_weight: float = 1.0,
        absent: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.guide, self.prior, self.kl_weight = model, guide, prior, kl_weight
        self.features = FrozenFeatures(model.layers[0]) if features is None else features
        self.labels = GivenLabels(model.likelihood, absent)

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Minus the log of the joint density, up to a constant."""
        rows = torch.arange(len(X), device=X.device) if rows is None else rows
        a, layers, drawn = self.features(X, rows), list(self.model.layers), self.labels.draw(Y, rows)
        outputs = drawn[0] if len(layers) == 1 else None
        v = self.guide.v_loc(layers[0], outputs)
        if self.prior is None and not a.requires_grad and outputs is None:
            first, penalty = _Ridge.apply(a, v, self.kl_weight)
        else:
            first, penalty = a @ v.mT, self._penalty(0)
        z, _ = plug_in_z(self.model, self.guide, X[rows], first, drawn[0])
        loss = penalty - self.labels.log_prob(X, Y, rows, lambda y: self.model.likelihood.log_prob(y, z), drawn)
        return loss + sum(self._penalty(depth) for depth in range(1, len(layers)))

    def _penalty(self, depth: int) -> Tensor:
        v = self.guide.v_loc(self.model.layers[depth])
        if self.prior is not None:
            mean, scale = self.prior[depth]
            v = (v - mean) / scale
        return 0.5 * self.kl_weight * v.square().sum()


def row_blocks(Y: Tensor, block: int | None = None) -> tuple[Tensor, ...]:
    """The rows of ``Y`` (N x K), ``block`` of them at a time; None is as many as ``BLOCK`` labels allow."""
    return torch.arange(len(Y)).split(min(4096, max(1, BLOCK // Y.shape[1])) if block is None else block)


@torch.no_grad()
def laplace_spread(
    model: ESMC,
    guide: DoublyStochasticGuide,
    X: Tensor,
    Y: Tensor,
    block: int | None = None,
    features: FrozenFeatures | None = None,
) -> None:
    """Set a "common" spread to where the collapsed bound is stationary, to second order in the spread.

    ``s_m^2 = 1 / (1 + mean_o sum_n h_no A_nm^2)``, with ``h_no`` the information of ``y_n`` about output ``o``
    (for a ``Bernoulli`` label ``lambda^2 p (1 - p)``), and ``sum_k W_ok^2 h_nk`` for a latent dimension behind a linear
    mean ``W``, whatever the slope of ``f_z`` adds. For one layer, or two of which the second has such a mean.
    ``block`` rows are looked at together (``row_blocks``).
    """
    if guide.covariance != "common":
        raise ValueError(f"the guide's covariance must be 'common' for a Laplace spread; got {guide.covariance!r}")
    X, layers = X[: len(Y)], list(model.layers)
    if len(layers) > 2 or (len(layers) == 2 and not isinstance(layers[1].mean, Linear)):
        raise ValueError(
            "model must have one layer, or a second one with a linear mean, for a Laplace spread; got "
            f"{len(layers)} layers, the last with the mean {type(layers[-1].mean).__name__}"
        )
    totals = [torch.zeros(layer.pseudo_count, dtype=X.dtype) for layer in layers]
    for rows in row_blocks(Y, block):
        y, known = observed(Y, rows)
        a = layers[0].features(X[rows]) if features is None else features(X, rows)
        z, inputs = plug_in_z(model, guide, X[rows], a @ guide.v_loc(layers[0]).mT)
        h = known * model.likelihood.information(y, z)
        if inputs is not None:
            totals[-1] += layers[-1].features(inputs).square().mT @ h.mean(1)
            h = h @ layers[-1].mean.weight.square().mT
        totals[0] += a.square().mT @ h.mean(1)
    for layer, total in zip(layers, totals, strict=True):
        setattr(guide, f"{layer.site}_v_scale", (1 + total).rsqrt().unsqueeze(0))


def check_elbo(objective: Any) -> None:
    """Raise ``ValueError`` for those of Pyro's ELBOs that have no module form, or one for global parameters only."""
    if isinstance(objective, type) and issubclass(objective, ELBO):
        raise ValueError(f"objective must be an object, {objective.__name__}(); got the class")
    jit = isinstance(objective, JitTrace_ELBO | JitTraceEnum_ELBO | JitTraceMeanField_ELBO)
    if isinstance(objective, ELBO) and (jit or not hasattr(objective, "differentiable_loss")):
        raise ValueError(
            "objective must be a Trace_ELBO, TraceMeanField_ELBO, TraceEnum_ELBO or TraceTMC_ELBO, if it is one of "
            f"Pyro's; got {type(objective).__name__}"
        )


def _refuse_explicit_experts(model: nn.Module, objective: str) -> None:
    if isinstance(model, ESMC) and getattr(model.likelihood, "explicit", False):
        raise ValueError(
            f"the objective {objective!r} needs the experts summed out; "
            "got explicit ones (make the likelihood with Experts(B, explicit=False))"
        )


class MeanFieldELBO:
    """Pyro's ``TraceMeanField_ELBO``: divergences in closed form where the guide's sites follow the model's order.

    That holds for the guide 'paper' and for autoguides. Guides with a whitened ``q(u)`` draw ``u`` before ``f``.
    """

    def __call__(self, model: nn.Module, guide: Guide) -> nn.Module:
        _refuse_explicit_experts(model, "mean_field")
        if isinstance(guide, WhitenedGuide):
            instead = "collapsed" if isinstance(guide, DoublyStochasticGuide) else "trace"
            raise ValueError(
                f"the objective 'mean_field' needs a guide that draws its sites in the model's order, like 'paper'; "
                f"got {type(guide).__name__} (use {instead!r})"
            )
        return TraceMeanField_ELBO()(model, guide)


class RenyiELBO:
    """``ln(mean_i w_i^(1 - order)) / (1 - order)`` with ``w_i = p / q`` of particle ``i``.

    Order 0 is the importance-weighted bound, tighter than the ELBO with more particles; on minibatches it is no bound.
    Pyro's class of this name has no module form.
    """

    def __init__(self, order: float = 0.0, particles: int = 2) -> None:
        check_number(order, "order", low=0)
        check_number(particles, "particles", low=1, whole=True)
        if order == 1:
            raise ValueError("order must not be 1, where the bound is the ELBO (objective 'trace'); got 1")
        self.order, self.particles = order, particles

    def __call__(self, model: nn.Module, guide: Guide) -> RenyiLoss:
        _refuse_explicit_experts(model, "renyi")
        if guide.is_point:
            raise ValueError(
                "the objective 'renyi' needs draws to weigh against each other; got a guide that is a single point"
            )
        return RenyiLoss(model, guide, self.order, self.particles)


class RenyiLoss(nn.Module):
    """The loss of ``RenyiELBO``."""

    def __init__(self, model: nn.Module, guide: Guide, order: float, particles: int) -> None:
        super().__init__()
        self.model, self.guide, self.order, self.particles = model, guide, order, particles

    def _log_weight(self, *data: Any) -> Tensor:
        q = poutine.trace(self.guide).get_trace(*data)
        p = poutine.trace(poutine.replay(self.model, trace=q)).get_trace(*data)
        return p.log_prob_sum() - q.log_prob_sum()

    def forward(self, X: Tensor, Y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Minus the bound."""
        log_weights = torch.stack([self._log_weight(X, Y, rows) for _ in range(self.particles)])
        power = 1 - self.order
        return -(torch.logsumexp(power * log_weights, 0) - math.log(self.particles)) / power


OBJECTIVES: dict[str, Callable[[], Callable[[Any, Guide], nn.Module]]] = {
    "trace": Trace_ELBO,
    "mean_field": MeanFieldELBO,
    "renyi": RenyiELBO,
    "collapsed": CollapsedELBO,
    "map": MAP,
}
