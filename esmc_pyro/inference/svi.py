"""Stochastic variational inference: minibatches of rows, any guide, any objective."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from esmc_pyro.guides import GUIDES, Guide, MarginalGuide
from esmc_pyro.guides.auto import is_autoguide
from esmc_pyro.inference.checkpoint import Checkpoint, Section
from esmc_pyro.inference.held_out import HeldOut, check_held_out
from esmc_pyro.inference.schedules import SCHEDULES, Plateau
from esmc_pyro.inference.svi_state import SVIState, describe
from esmc_pyro.models import ESMC
from esmc_pyro.objectives import OBJECTIVES, check_elbo
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.tensor_file import fingerprint
from esmc_pyro.validation import check_choice, check_number

HISTORY = ("epoch", "elbo", "lr", "seconds", "rows_per_second")


def make_guide(guide: str | Guide | Callable[..., Guide], model: ESMC, X: Tensor, Y: Tensor, **options: Any) -> Guide:
    """A guide by name, by class (or anything called like one), one of Pyro's autoguides, or the guide itself."""
    if not isinstance(guide, Guide):
        if isinstance(guide, str):
            check_choice(guide, GUIDES, "guide")
        make: Callable[..., Guide] = GUIDES[guide] if isinstance(guide, str) else guide
        if is_autoguide(make):
            make = partial(MarginalGuide, auto=make)
        guide = make(model, X, Y, **options)
    if guide.model is not model:
        raise ValueError("guide must be a guide of the model that is fitted; got one made for another model")
    if guide.rows not in (None, len(X)):
        raise ValueError(f"guide must be made for the data that is fitted ({len(X)} rows); got one for {guide.rows}")
    return guide


def fit_svi(
    model: ESMC,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    guide: str | Guide | Callable[..., Guide] = "paper",
    objective: str | Callable[[Any, Guide], nn.Module] = "trace",
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 0.02,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    schedule: str = "one_cycle",
    clip: float | None = 1e3,
    patience: int | None = None,
    tolerance: float = 1e-4,
    held_out: tuple[Any, Any] | None = None,
    kl_warm_up: int = 0,
    seed: int | None = 0,
    progress: bool = True,
    checkpoint: Checkpoint | Section | None = None,
) -> Posterior:
    """Maximise the ELBO of ``model`` under ``guide`` by stochastic gradients; returns a ``Posterior``.

    ``X`` is N x F, ``Y`` N x K of 0, 1 and NaN for unknown, ``X_unlabeled`` I x F. An epoch passes once over all rows,
    labelled and not, in random batches of at most ``batch_size``, as equal as can be. The history has a row an epoch
    (``HISTORY``): the mean of the ELBO estimates of its batches, the learning rate, seconds since the start and rows a
    second. ``patience`` stops the fit when the smoothed ELBO has not risen by ``tolerance`` (relative) for so many
    epochs; ``clip`` bounds the norm of the gradient of the ELBO per row.

    ``held_out`` are further rows ``(X, Y)`` that are not fitted: they score every epoch (``metrics.held_out_score``, a
    column of the history), the fit ends at its best epoch, and ``patience`` counts the epochs since. ``kl_warm_up`` is
    over how many epochs the weight of the prior rises to its own, for objectives that have one (``kl_weight``).

    Ctrl-C ends the fit and returns what was fitted so far. With a ``checkpoint`` the state after an epoch is kept in a
    file; the same call, with model and guide made anew, goes on from there to the same result.
    """
    X, Y = model.check_data(X, Y, X_unlabeled)
    if model.has_priors:
        raise ValueError(
            "model must have plain parameters for SVI, whose guides do not draw those with a prior; got a model with "
            "priors (use fit_nuts with start='prior')"
        )
    check_number(epochs, "epochs", low=1, whole=True)
    check_number(batch_size, "batch_size", low=1, whole=True)
    check_number(lr, "lr", low=0, above=True)
    check_choice(schedule, SCHEDULES, "schedule")
    if clip is not None:
        check_number(clip, "clip", low=0, above=True)
    if patience is not None:
        check_number(patience, "patience", low=1, whole=True)
    check_number(kl_warm_up, "kl_warm_up", low=0, whole=True)
    judges = None if held_out is None else check_held_out(held_out, X.shape[1], Y.shape[1])
    if isinstance(objective, str):
        check_choice(objective, OBJECTIVES, "objective")
        objective = OBJECTIVES[objective]()
    with seeded(seed):
        guide = make_guide(guide, model, X, Y)
        if guide.needs_all_rows and batch_size < len(X):
            raise ValueError(
                f"batch_size must be at least {len(X)}, the number of rows: {type(guide).__name__} draws all rows at "
                f"once; got {batch_size}"
            )
        check_elbo(objective)
        loss_of = objective(guide.joint, guide)
        # guides that make their parameters at the first call have them from here on; some ELBOs want a gradient then
        loss_of(X, Y, None if guide.needs_all_rows else torch.arange(min(2, len(X)), device=X.device))
        if not any(p.requires_grad for p in loss_of.parameters()):
            raise ValueError(
                "model and guide must have something to learn; got neither with a parameter that is learned"
            )
        if kl_warm_up and not hasattr(loss_of, "kl_weight"):
            raise ValueError(
                "kl_warm_up needs an objective with a weight on its prior, 'collapsed' or 'map'; "
                f"got {describe(objective)}"
            )
        batches = -(-len(X) // batch_size)
        whole = guide.needs_all_rows or (batches == 1 and isinstance(guide, MarginalGuide))
        run = _Run(loss_of, X, Y, batches, clip, whole, kl_warm_up)
        stepper = optimizer(run.parameters, lr=lr)
        scheduler = SCHEDULES[schedule](stepper, lr, epochs * run.batches)
        history: list[dict[str, float]] = []
        plateau = Plateau(patience, tolerance)
        judge = None if judges is None else HeldOut(model, guide, loss_of, judges[0].to(X), judges[1].to(Y))
        interrupted = False
        state = None
        if checkpoint is not None:
            state = SVIState(checkpoint, loss_of, stepper, scheduler, plateau, judge)
            state.made_from(
                X, Y, objective=describe(objective), epochs=epochs, batch_size=batch_size, lr=lr, seed=seed,
                optimizer=describe(optimizer), schedule=schedule, clip=clip, patience=patience, tolerance=tolerance,
                kl_warm_up=kl_warm_up, held_out=None if judge is None else fingerprint(judge.X, judge.Y),
            )  # fmt: skip
            history += state.restore()
            run.begun -= history[-1]["seconds"] if history else 0.0
        with tqdm(total=epochs, initial=len(history), disable=not progress, desc="fit", unit="epoch") as bar:
            try:
                while len(history) < epochs and not plateau.reached:
                    history.append(run.epoch(len(history) + 1, stepper, scheduler))
                    if judge is None:
                        if len(history) > kl_warm_up:  # with less of its prior an epoch looks better than it is
                            plateau.add(history[-1]["elbo"])
                    else:
                        history[-1]["held_out"] = judge.add()
                        plateau.best, plateau.waited = judge.best, judge.waited
                    speed = f"{history[-1]['rows_per_second']:.0f}"
                    bar.set_postfix(elbo=f"{history[-1]['elbo']:.4g}", rows_per_s=speed, refresh=False)
                    bar.update()
                    last = len(history) == epochs or plateau.reached
                    if state is not None and (last or state.section.is_due):
                        state.save(history)
            except KeyboardInterrupt:
                interrupted = True
        if judge is not None:
            judge.restore()
        if not interrupted:
            guide.finish(X, Y)
    columns = [*HISTORY, *([] if judge is None else ["held_out"])]
    return Posterior(model, guide, pd.DataFrame(history, columns=columns), interrupted)


class _Run:
    """One fit: the loss, its data and what is learned."""

    def __init__(
        self, loss_of: nn.Module, X: Tensor, Y: Tensor, batches: int, clip: float | None, whole: bool, warm_up: int
    ) -> None:
        self.loss_of, self.X, self.Y, self.batches, self.clip, self.whole = loss_of, X, Y, batches, clip, whole
        self.warm_up, self.kl_weight = warm_up * batches, getattr(loss_of, "kl_weight", 1.0)
        self.parameters = [p for p in loss_of.parameters() if p.requires_grad]
        self.begun = time.perf_counter()

    def epoch(self, epoch: int, stepper: torch.optim.Optimizer, scheduler: Any) -> dict[str, float]:
        """One pass over the rows; returns its line of the history."""
        started, total, rows = time.perf_counter(), 0.0, len(self.X)
        for place, batch in enumerate(torch.randperm(rows).to(self.X.device).tensor_split(self.batches)):
            if self.warm_up:
                step = (epoch - 1) * self.batches + place + 1
                self.loss_of.kl_weight = self.kl_weight * min(1.0, step / self.warm_up)  # type: ignore[assignment]
            stepper.zero_grad()
            loss = self.loss_of(self.X, self.Y, None if self.whole else batch)
            if not torch.isfinite(loss):
                raise FloatingPointError(
                    f"the ELBO is {-loss.item()} in epoch {epoch}; expected a finite number (try a smaller lr)"
                )
            # gradients of the ELBO per row: their size, and so clip and lr, do not depend on N
            (loss / rows).backward()
            if self.clip is not None:
                norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
                if not torch.isfinite(norm):  # clipping would make every parameter NaN
                    raise FloatingPointError(
                        f"the gradient has the norm {norm.item()} in epoch {epoch}; expected a finite number (try a "
                        "smaller lr)"
                    )
            stepper.step()
            scheduler.step()
            total += loss.item()
        now = time.perf_counter()
        values = (epoch, -total / self.batches, scheduler.get_last_lr()[0], now - self.begun, rows / (now - started))
        return dict(zip(HISTORY, values, strict=True))
