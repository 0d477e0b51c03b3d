"""Where a fit starts: functions regressed on the labels, so that no layer begins at noise."""

from __future__ import annotations

import torch
from torch import Tensor

from esmc_pyro.models import ESMC, Gaussian, Layer, rules

BLOCK = 4096  # rows at a time: a block of features is BLOCK x M


def _ridge(layer: Layer, x: Tensor, target: Tensor, noise: float) -> Tensor:
    """Whitened ``v`` (O x M) with ``mean(x) + A(x) v'`` close to ``target`` (n x O): ``(A'A + noise^2 I) v' = A' target``."""
    gram = noise**2 * torch.eye(layer.pseudo_count, dtype=torch.float64)
    cross = torch.zeros(layer.pseudo_count, layer.outputs, dtype=torch.float64)
    for start in range(0, len(target), BLOCK):
        rows = slice(start, start + BLOCK)
        a = layer.features(x[rows])
        gram += (a.mT @ a).double()
        cross += (a.mT @ (target[rows] - layer.offset(x[rows]))).double()
    return torch.linalg.solve(gram, cross).mT.to(x.dtype)


def suitability_target(model: ESMC, Y: Tensor) -> Tensor:
    """A rough ``z`` for each label: ``y`` itself under a Gaussian likelihood, else ``lambda z = +-2``; unknown: the mean."""
    target = Y.clone() if isinstance(model.likelihood, Gaussian) else (4 * Y - 2) / model.likelihood.lambda_
    known = ~torch.isnan(Y)
    mean = torch.where(known, target, target.new_zeros(())).sum(0) / known.sum(0).clamp(min=1)
    return torch.where(known, target, mean)


@torch.no_grad()
def label_informed_start(model: ESMC, X: Tensor, Y: Tensor, noise: float = 1.0) -> list[Tensor]:
    """``[u_c, ..., u_z]`` (O x M each), layer by layer, and the later layers' pseudo-instances moved to match.

    A latent layer regresses the label scores (the paper's PCA start, made to depend on ``x``) on its features and is scaled
    to unit variance; the last layer regresses a rough ``z`` on what comes before. By the paper's rule the next layer's
    pseudo-instances become ``E f_c(S_c)``, or, where the two layers differ in size, ``E f_c`` of the data rows; its
    isotropic length-scale is set by the paper's rule from the distances between ``E f_c(x)``.
    """
    us = []
    x = X
    for depth, layer in enumerate(model.layers):
        last = depth == len(model.layers) - 1
        target = suitability_target(model, Y) if last else rules.label_scores(Y, layer.outputs)
        v = _ridge(layer, x[: len(Y)], target, noise)
        u = v @ layer.factor().mT
        if not last:
            out = torch.cat([layer.predict(block, u) for block in x.split(BLOCK)])
            spread = out.std(0).clamp(min=1e-3)
            u, x = u / spread.unsqueeze(-1), out / spread
            _move(model.layers[depth + 1], layer, u, x)
        us.append(u)
    return us


def _move(following: Layer, layer: Layer, u: Tensor, x: Tensor) -> None:
    if following.pseudo_count == layer.pseudo_count:
        points = rules.latent_pseudo_instances(layer, u)
    else:
        points = x[rules.choose_pseudo_rows(len(x), following.pseudo_count)]
    following.pseudo_instances.copy_(points)
    lengthscale = getattr(following.kernel, "lengthscale", None)
    if lengthscale is not None and lengthscale.dim() == 0:
        following.kernel.lengthscale = torch.as_tensor(rules.lengthscale_from_distances(x)).to(lengthscale)
