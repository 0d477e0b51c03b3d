"""``fit_analytic``: the user's door to the analytic-bound solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference.analytic.options import Options, check_model, check_refresh
from esmc_pyro.inference.analytic.solver import Solver
from esmc_pyro.models import ESMC
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_data

Start = str | PaperGuide | Callable[[ESMC, Tensor, Tensor, str], PaperGuide]
PRETRAINING = 5  # sweeps on the labelled rows before self-training, as in the authors' code


def fit_analytic(
    model: ESMC,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    covariance: str = "full",
    start: Start = "labels",
    seed: int | None = 0,
    progress: bool = True,
    **options: Any,
) -> Posterior:
    """Coordinate ascent on the closed-form bound of ``model`` under the paper's factorisation; returns a ``Posterior``.

    The same ``Posterior`` of a ``PaperGuide`` that ``fit_svi`` gives. ``covariance`` of ``q(u)`` is "full" (M x M,
    shared by the outputs) or the paper's "diagonal". ``start`` is "labels" or "zero" (see ``PaperGuide``), a guide to
    go on from, or a function ``(model, X, Y, covariance)`` that makes one. ``options`` are the fields of ``Options``.
    The fit ends after ``sweeps``, or when a sweep changes the bound by less than ``tolerance`` (relative). The
    history has a row for each block update: ``sweep``, ``block``, ``elbo`` (the bound after it) and ``seconds``.
    Ctrl-C ends the fit and returns what was fitted so far.
    """
    unknown = sorted(set(options) - set(Options.__dataclass_fields__))
    if unknown:
        raise ValueError(f"options must be among {sorted(Options.__dataclass_fields__)}; got {unknown}")
    chosen = Options(**options)
    check_choice(covariance, ("diagonal", "full"), "covariance")
    if isinstance(start, str):
        check_choice(start, ("labels", "zero"), "start")
    X, Y = check_data(X, Y, X_unlabeled)
    check_model(model, X, Y)
    check_refresh(chosen.refresh, model, len(Y))
    dtype = model.layers[0].pseudo_instances.dtype
    X, Y = X.to(dtype), Y.to(dtype)
    with seeded(seed):
        held = None
        if chosen.unlabelled == "self_training" and len(X) > len(Y):
            solver = Solver(model, X[: len(Y)], Y, _start(start, model, X[: len(Y)], Y, covariance), chosen)
            if _run(solver, PRETRAINING, 0.0, progress):
                return _posterior(solver, True)
            held = _predict(model, solver, X[len(Y) :])
        guide = _start(start, model, X, Y, covariance)
        if held is not None:
            guide.get("z", "loc").data[len(Y) :] = held
        solver = Solver(model, X, Y, guide, chosen, frozen=None if held is None else len(Y))
        interrupted = _run(solver, chosen.sweeps, chosen.tolerance, progress)
    return _posterior(solver, interrupted)


def _start(start: Start, model: ESMC, X: Tensor, Y: Tensor, covariance: Any) -> PaperGuide:
    if isinstance(start, str):
        return PaperGuide(model, X, Y, covariance=covariance, start=start)  # type: ignore[arg-type]
    guide = start if isinstance(start, PaperGuide) else start(model, X, Y, covariance)
    if guide.model is not model or len(guide.get("z", "loc")) != len(X):
        raise ValueError(
            f"start must be a PaperGuide of this model for {len(X)} rows; got {type(guide).__name__} for "
            f"{len(guide.get('z', 'loc'))} rows of {'this' if guide.model is model else 'another'} model"
        )
    return guide


@torch.no_grad()
def _predict(model: ESMC, solver: Solver, x: Tensor) -> Tensor:
    us = [f.u_loc.to(x.dtype) for f in solver.functions]
    return model.plug_in(x, us)[-1]


def _run(solver: Solver, sweeps: int, tolerance: float, progress: bool) -> bool:
    """Sweeps until nothing much changes; True if the user stopped it."""
    before = solver.bound()
    bar = tqdm(range(sweeps), disable=not progress, desc="fit", unit="sweep")
    try:
        for _ in bar:
            now = solver.sweep()
            bar.set_postfix(elbo=f"{now:.6g}")
            if abs(now - before) <= tolerance * abs(before):
                break
            before = now
    except KeyboardInterrupt:
        return True
    return False


def _posterior(solver: Solver, interrupted: bool) -> Posterior:
    return Posterior(solver.model, solver.write(), pd.DataFrame(solver.history), interrupted)
