"""How the learning rate moves during a fit, and when a fit has moved enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, OneCycleLR

# a schedule is made from the optimiser, the (largest) learning rate and the number of steps
SCHEDULES: dict[str, Callable[[Optimizer, float, int], Any]] = {
    "constant": lambda optimizer, lr, steps: ConstantLR(optimizer, factor=1.0),
    "cosine": lambda optimizer, lr, steps: CosineAnnealingLR(optimizer, steps),
    # one step more than is taken: the last would have a rate of almost nothing
    "one_cycle": lambda optimizer, lr, steps: OneCycleLR(
        optimizer, max_lr=lr, total_steps=steps + 1, cycle_momentum=False
    ),
}


class Plateau:
    """Says when a smoothed score has not risen by ``tolerance`` (relative) for ``patience`` epochs; never if None.

    The smoothed score is ``smoothing`` times itself plus ``1 - smoothing`` times the newest one.
    """

    def __init__(self, patience: int | None, tolerance: float = 1e-4, smoothing: float = 0.7) -> None:
        self.patience, self.tolerance, self.smoothing = patience, tolerance, smoothing
        self.smooth: float | None = None
        self.best = -float("inf")
        self.waited = 0

    def add(self, score: float) -> None:
        """Take in the score of one more epoch."""
        self.smooth = score if self.smooth is None else self.smoothing * self.smooth + (1 - self.smoothing) * score
        if self.best == -float("inf") or self.smooth > self.best + self.tolerance * abs(self.best):
            self.best, self.waited = self.smooth, 0
        else:
            self.waited += 1

    @property
    def reached(self) -> bool:
        """Whether the last ``patience`` epochs brought nothing."""
        return self.patience is not None and self.waited >= self.patience
