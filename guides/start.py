"""Where a fit starts: functions regressed on the labels, so that no layer begins at noise."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from esmc_pyro.models import ESMC, Layer, rules
from esmc_pyro.models.kernels import set_lengthscale

STARTS = ("labels", "zero")
BLOCK = 4096  # rows at a time: a block of features is BLOCK x M


def suitability_target(model: ESMC, Y: Tensor) -> Tensor:
    """``Likelihood.rough_z`` of every label, an unknown one at the mean of its column: ``(N, K) -> (N, K)``."""
    known = ~torch.isnan(Y)
    target = model.likelihood.rough_z(torch.where(known, Y, Y.new_zeros(())))
    mean = torch.where(known, target, target.new_zeros(())).sum(0) / known.sum(0).clamp(min=1)
    return torch.where(known, target, mean)


def regress(layer: Layer, x: Tensor, target: Tensor, noise: float) -> Tensor:
    """``u`` (O x M) with ``mean(x) + D(x) u'`` close to ``target``: ridge regression on the whitened features ``A(x)``.

    ``u = Lw v`` and ``(A'A + noise^2 I) v' = A' (target - mean(x))``, for x of shape n x d and target n x O.
    """
    gram = noise**2 * torch.eye(layer.pseudo_count, dtype=torch.float64, device=x.device)
    cross = torch.zeros(layer.pseudo_count, layer.outputs, dtype=torch.float64, device=x.device)
    for rows, y in zip(x.split(BLOCK), target.split(BLOCK), strict=True):
        a = layer.features(rows).double()
        gram += a.mT @ a
        cross += a.mT @ (y - layer.offset(rows)).double()
    v = torch.linalg.solve(gram, cross).mT.to(x.dtype)
    return v @ layer.factor().mT


@torch.no_grad()
def label_informed_start(model: ESMC, X: Tensor, Y: Tensor, noise: float = 1.0) -> list[Tensor]:
    """``[u_c, ..., u_z]`` (O x M each), layer by layer; later layers are moved to where their inputs now are.

    A latent layer regresses the label scores (the paper's PCA start, made to depend on ``x``) on its features and is
    scaled to unit variance; the last layer regresses a rough ``z`` on what comes before. **This changes the model**,
    once, before the fit: by the paper's rule the next layer's pseudo-instances become ``E f_c(S_c)``, or, where the two
    layers differ in size, ``E f_c`` of data rows, and a length-scale that came from a rule comes from it again.
    """
    us = []
    x = X
    for layer, following in zip(model.layers, [*list(model.layers)[1:], None], strict=True):
        target = suitability_target(model, Y) if following is None else rules.label_scores(Y, layer.outputs)
        u = regress(layer, x[: len(Y)], target, noise)
        if following is not None:
            u = u / _outputs(layer, x, u).std(0, correction=0).clamp(min=1e-3).unsqueeze(-1)
            following_inputs = _outputs(layer, x, u)
            _move(following, layer, u, following_inputs)
            x = following_inputs
        us.append(u)
    return us


def _outputs(layer: Layer, x: Tensor, u: Tensor) -> Tensor:
    """``mean(x) + D(x) u`` in blocks: n x O."""
    return torch.cat([layer.predict(rows, u) for rows in x.split(BLOCK)])


def _move(following: Layer, layer: Layer, u: Tensor, inputs: Tensor) -> None:
    """Pseudo-instances and length-scale of the layer after ``layer``, whose inputs for the data rows are ``inputs``."""
    if following.pseudo_count == layer.pseudo_count:
        points = rules.latent_pseudo_instances(layer, u)
    else:
        points = inputs[rules.choose_pseudo_rows(len(inputs), following.pseudo_count)]
    following.pseudo_instances.copy_(points)
    if following.lengthscale_rule is not None:
        scale = partial(rules.lengthscale_from_distances, inputs, following.lengthscale_rule)
        set_lengthscale(following.kernel, scale)
