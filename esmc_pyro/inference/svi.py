"""Stochastic variational inference: minibatches of rows, any guide, any objective."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from tqdm.auto import tqdm

from esmc_pyro.guides import GUIDES, Guide
from esmc_pyro.models import ESMC
from esmc_pyro.objectives import CollapsedELBO
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_data, check_number

# An objective is called with (model, guide) and gives a module that is called with (X, Y, rows) and returns the loss.
OBJECTIVES: dict[str, Callable[[], Any]] = {
    "trace": Trace_ELBO,
    "mean_field": TraceMeanField_ELBO,
    "renyi": RenyiELBO,
    "collapsed": CollapsedELBO,
}

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, float, int], Any]] = {
    "constant": lambda optimizer, lr, steps: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
    "cosine": lambda optimizer, lr, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "one_cycle": lambda optimizer, lr, steps: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=steps + 1
    ),
}


class Plateau:
    """Says when a smoothed score has not risen by ``tolerance`` (relative) for ``patience`` epochs."""

    def __init__(self, patience: int | None, tolerance: float = 1e-4, smoothing: float = 0.7) -> None:
        self.patience, self.tolerance, self.smoothing = patience, tolerance, smoothing
        self.smooth: float | None = None
        self.best = -float("inf")
        self.waited = 0

    def reached(self, score: float) -> bool:
        self.smooth = score if self.smooth is None else self.smoothing * self.smooth + (1 - self.smoothing) * score
        if self.smooth > self.best + self.tolerance * abs(self.best) or self.best == -float("inf"):
            self.best, self.waited = self.smooth, 0
        else:
            self.waited += 1
        return self.patience is not None and self.waited >= self.patience


def make_guide(guide: str | type[Guide] | Guide, model: ESMC, X: Tensor, Y: Tensor, **options: Any) -> Guide:
    """A guide by name, by class, or the guide itself."""
    if isinstance(guide, Guide):
        return guide
    if isinstance(guide, str):
        check_choice(guide, GUIDES, "guide")
        guide = GUIDES[guide]
    return guide(model, X, Y, **options)


def fit_svi(
    model: ESMC,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    guide: str | type[Guide] | Guide = "paper",
    objective: str | Any = "trace",
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 0.02,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    schedule: str = "one_cycle",
    clip: float | None = 1e3,
    patience: int | None = None,
    tolerance: float = 1e-4,
    seed: int | None = 0,
    progress: bool = True,
) -> Posterior:
    """Maximise the ELBO of ``model`` under ``guide`` by stochastic gradients; returns a ``Posterior``.

    An epoch passes once over all rows, labelled and not, in random batches. The history has a row an epoch: the mean of
    the unbiased ELBO estimates of its batches, the learning rate, seconds since the start and rows a second.
    ``patience`` stops the fit when the smoothed ELBO has not risen by ``tolerance`` (relative) for so many epochs; ``clip`` bounds the
    norm of the gradient of the ELBO per row. Ctrl-C ends the fit and returns what was fitted so far.
    """
    X, Y = check_data(X, Y, X_unlabeled)
    check_number(epochs, "epochs", low=1, whole=True)
    check_number(batch_size, "batch_size", low=1, whole=True)
    check_number(lr, "lr", low=0, above=True)
    check_choice(schedule, SCHEDULES, "schedule")
    if isinstance(objective, str):
        check_choice(objective, OBJECTIVES, "objective")
        objective = OBJECTIVES[objective]()
    with seeded(seed):
        guide = make_guide(guide, model, X, Y)
        loss_of = objective(model, guide)
        loss_of(X, Y, torch.arange(min(2, len(X))))  # guides that make their parameters at the first call have them now
        parameters = [p for p in loss_of.parameters() if p.requires_grad]
        stepper = optimizer(parameters, lr=lr)
        steps = epochs * -(-len(X) // batch_size)
        scheduler = SCHEDULES[schedule](stepper, lr, steps)
        history, interrupted = _run(
            lambda rows: loss_of(X, Y, rows), parameters, stepper, scheduler, len(X), epochs, batch_size,
            clip, Plateau(patience, tolerance), progress,
        )  # fmt: skip
    return Posterior(model, guide, pd.DataFrame(history), interrupted)


def _run(
    loss_of: Callable[[Tensor], Tensor],
    parameters: Iterable[nn.Parameter],
    stepper: torch.optim.Optimizer,
    scheduler: Any,
    rows: int,
    epochs: int,
    batch_size: int,
    clip: float | None,
    plateau: Plateau,
    progress: bool,
) -> tuple[list[dict[str, float]], bool]:
    parameters = list(parameters)
    history: list[dict[str, float]] = []
    begun = time.perf_counter()
    bar = tqdm(range(1, epochs + 1), disable=not progress, desc="fit", unit="epoch")
    try:
        for epoch in bar:
            started, total, batches = time.perf_counter(), 0.0, torch.randperm(rows).split(batch_size)
            for batch in batches:
                stepper.zero_grad()
                loss = loss_of(batch)
                if not torch.isfinite(loss):
                    raise FloatingPointError(
                        f"the ELBO is {-loss.item()} in epoch {epoch}; expected a finite number (try a smaller lr)"
                    )
                # gradients of the ELBO per row: their size, and so clip and lr, do not depend on N
                (loss / rows).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(parameters, clip)
                stepper.step()
                scheduler.step()
                total += loss.item()
            now = time.perf_counter()
            elbo = -total / len(batches)
            speed = rows / (now - started)
            history.append(
                {
                    "epoch": epoch,
                    "elbo": elbo,
                    "lr": scheduler.get_last_lr()[0],
                    "seconds": now - begun,
                    "rows_per_second": speed,
                }
            )
            bar.set_postfix(elbo=f"{elbo:.4g}", rows_per_s=f"{speed:.0f}")
            if plateau.reached(elbo):
                break
    except KeyboardInterrupt:
        return history, True
    return history, False
