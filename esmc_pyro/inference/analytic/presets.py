"""Named settings: the model and the solver's options for given data, as the authors' code, the paper, or we ourselves would choose them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic.fit import fit_analytic
from esmc_pyro.inference.analytic.options import Options
from esmc_pyro.inference.analytic.solver import Solver
from esmc_pyro.models import ESMC, Experts, Gaussian, Layer, Likelihood, make_kernel, rules
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_data

AUTHORS: dict[str, Any] = {
    "covariance": "full", "functions": "alternate", "q_c": "forward", "experts": "explicit", "xi": "paper", "sweeps": 20, "tolerance": 0.0,
}  # fmt: skip


@dataclass
class Setting:
    """A model and the options to fit it with: ``setting.fit(X, Y)``, or ``fit_analytic(setting.model, X, Y, **setting.options)``."""

    model: ESMC
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None, **options: Any) -> Posterior:
        """``fit_analytic`` with this setting; ``options`` given here win."""
        return fit_analytic(self.model, X, Y, X_unlabeled, **(self.options | options))


def principal_scores(Y: Tensor, width: int) -> Tensor:
    """The scores of the top ``width`` principal components of the labels, zeros beyond their rank; unknown entries count as the mean."""
    centred = torch.nan_to_num(Y - Y.nanmean(0), nan=0.0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    rank = min(width, len(values))
    scores = Y.new_zeros(len(Y), width)
    scores[:, :rank] = left[:, :rank] * values[:rank]
    return scores


def _authors_model(X: Tensor, targets: Tensor, likelihood: Likelihood, seed: int, M: int = 200) -> tuple[ESMC, Tensor]:
    """Two RBF layers with random rows as pseudo-instances, and the rows that give those of the second."""
    K = targets.shape[1]
    L = max(1, K // 4)
    rng = np.random.default_rng(seed)
    first = torch.as_tensor(rng.permutation(len(X))[:M])
    second = torch.as_tensor(rng.permutation(len(targets))[:M])
    sigma_c = rules.lengthscale_from_distances(X, "authors", rows=3999, seed=seed)
    noise = {"alpha": 1e-3, "beta": 1e-3, "gamma": 1e-4}
    layers = [
        Layer("c", make_kernel("rbf", X.shape[1], lengthscale=sigma_c), X[first], L, **noise),
        Layer("z", make_kernel("rbf", L, lengthscale=1000.0), principal_scores(targets, L)[second], K, plate="labels", **noise),
    ]  # fmt: skip
    return ESMC(layers, likelihood), second


def _authors_start(model: ESMC, X: Tensor, Y: Tensor, covariance: str, scale: float | None) -> PaperGuide:
    """``q(c)`` is what the first layer makes of the labels' principal scores; ``q(z)`` is ``+-scale``, or ``y`` itself if that is None."""
    guide = PaperGuide(model, X, Y, covariance="full" if covariance == "full" else "diagonal", start="zero")
    targets = _targets(Y, scale)
    guide.get("z", "loc").data[: len(Y)] = targets
    guide.get("c", "loc").data[: len(Y)] = principal_scores(targets, model.layers[0].outputs)
    labelled = PaperGuide(model, X[: len(Y)], Y, covariance="full", start="zero")
    labelled.get("c", "loc").data = guide.get("c", "loc").data[: len(Y)]
    solver = Solver(model, X[: len(Y)], Y, labelled, Options(functions="alternate"))
    solver.update_u(0)
    u = solver.functions[0].u_loc.to(X.dtype)
    guide.get("c", "u_loc").data = u
    guide.get("c", "f_loc").data = u.clone()
    guide.get("c", "loc").data = torch.cat([model.layers[0].predict(x, u).detach() for x in X.split(4096)])
    return guide


def _targets(Y: Tensor, scale: float | None) -> Tensor:
    filled = torch.where(torch.isnan(Y), Y.nanmean(0), Y)
    return filled if scale is None else scale * (2 * filled - 1)


def authors_b0(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0) -> Setting:
    """The authors' code with ``B = 0``: ``z`` is pinned to ``y``."""
    X, Y = check_data(X, Y, X_unlabeled)
    model, rows = _authors_model(X, _targets(Y, None), Gaussian(noise=1e-6), seed)
    start = lambda model, X, Y, covariance: _authors_start(model, X, Y, covariance, None)  # noqa: E731
    return Setting(model, AUTHORS | {"refresh": rows, "start": start})


def authors_experts(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0, B: int | None = None) -> Setting:
    """The authors' code with experts: ``lambda = 1e5``, ``z`` from +-100 and clamped to 1000 where ``y = 1``."""
    X, Y = check_data(X, Y, X_unlabeled)
    B = rules.experts_from_ratio(Y, cap=50) if B is None else B
    model, rows = _authors_model(X, _targets(Y, 100.0), Experts(B, lambda_=1e5), seed)
    start = lambda model, X, Y, covariance: _authors_start(model, X, Y, covariance, 100.0)  # noqa: E731
    return Setting(model, AUTHORS | {"refresh": rows, "start": start, "clamp": 1000.0, "xi_start": 1.0})
