"""The model, the start and the options of the authors' released code, for the presets that are named after them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.solver import Solver
from esmc_pyro.models import ESMC, Layer, Likelihood, make_kernel, rules

NOISES: dict[str, Any] = {"alpha": 1e-3, "beta": 1e-3, "gamma": 1e-4}
SIGMA_Z = 1000.0
M = 200


def targets(Y: Tensor, scale: float | None) -> Tensor:
    """Where ``z`` starts: ``+-scale``, or ``y`` itself if that is None. Unknown entries count as their label's
    frequency.
    """
    filled = torch.where(torch.isnan(Y), torch.nan_to_num(Y.nanmean(0)), Y)
    return filled if scale is None else scale * (2 * filled - 1)


def principal_scores(T: Tensor, width: int) -> Tensor:
    """Scores of the top ``width`` principal components, zeros beyond the rank: ``(N, K) -> (N, width)``."""
    left, values, _ = torch.linalg.svd(T - T.mean(0), full_matrices=False)
    rank = min(width, len(values))
    scores = T.new_zeros(len(T), width)
    scores[:, :rank] = left[:, :rank] * values[:rank]
    return scores


def model(X: Tensor, Y: Tensor, scale: float | None, likelihood: Likelihood, seed: int) -> tuple[ESMC, Tensor]:
    """Two RBF layers over two independent random sets of rows; returns the model and the rows behind ``S_z``."""
    K = Y.shape[1]
    L = max(1, K // 4)
    rng = np.random.default_rng(seed)
    first, second = (torch.as_tensor(rng.permutation(n)[:M]) for n in (len(X), len(Y)))
    sigma_c = rules.lengthscale_from_distances(X, "authors", rows=3999, seed=seed)
    S_z = principal_scores(targets(Y, scale), L)[second]
    layers = [
        Layer("c", make_kernel("rbf", X.shape[1], lengthscale=sigma_c), X[first], L, **NOISES),
        Layer("z", make_kernel("rbf", L, lengthscale=SIGMA_Z), S_z, K, plate="labels", **NOISES),
    ]
    return ESMC(layers, likelihood), second


def options(rows: Tensor, scale: float | None) -> dict[str, Any]:
    """Twenty sweeps of alternating updates with ``c`` as a forward pass and ``S_z`` following the rows behind it."""
    return {
        "covariance": "full", "functions": "alternate", "q_c": "forward", "experts": "explicit", "xi": "paper",
        "refresh": rows, "sweeps": 20, "tolerance": 0.0, "z_steps": 1, "start": partial(start, rows=rows, scale=scale),
    }  # fmt: skip


@torch.no_grad()
def start(model: ESMC, X: Tensor, Y: Tensor, covariance: str, *, rows: Tensor, scale: float | None) -> PaperGuide:
    """``q(z)`` at ``targets``, ``q(c)`` at what the first layer, fitted to their principal scores, makes of ``x``."""
    N, layer = len(Y), model.layers[0]
    z = targets(Y, scale)
    scores = principal_scores(z, layer.outputs)
    model.layers[1].pseudo_instances.copy_(scores[rows])
    labelled = PaperGuide(model, X[:N], Y, covariance="full", start="zero")
    labelled.get("c", "loc").copy_(scores)
    solver = Solver(model, X[:N], Y, labelled, Options(functions="alternate"))
    solver.functions[0].update_u(solver.second[0], solver.cross[0], joint=False)
    u = solver.functions[0].u_loc.to(X.dtype)
    guide = PaperGuide(model, X, Y, covariance="full" if covariance == "full" else "diagonal", start="zero")
    guide.get("z", "loc")[:N] = z
    for what, value in {"u_loc": u, "f_loc": solver.functions[0].f_loc.to(X.dtype)}.items():
        guide.get("c", what).copy_(value)
    guide.get("c", "loc").copy_(torch.cat([layer.predict(x, u) for x in X.split(4096)]))
    return guide
