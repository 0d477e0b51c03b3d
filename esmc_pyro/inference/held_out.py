"""Early stopping: rows that a fit does not see say which of its epochs was the best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esmc_pyro.guides import Guide
from esmc_pyro.metrics import held_out_score
from esmc_pyro.models import ESMC
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_features, check_labels


class HeldOut:
    """``held_out_score`` of the plug-in ``z`` after each epoch, and the parameters of the best one.

    ``best`` is the best score so far, ``kept`` a copy of what is learned as it was then, ``waited`` the epochs since.
    """

    def __init__(self, model: ESMC, guide: Guide, loss_of: nn.Module, X: Tensor, Y: Tensor) -> None:
        self.posterior, self.X, self.Y = Posterior(model, guide), X, Y
        self.parameters = {name: p for name, p in loss_of.named_parameters() if p.requires_grad}
        self.best, self.waited = -float("inf"), 0
        self.kept: dict[str, Tensor] = {}

    def add(self) -> float:
        """Score the state after one more epoch, and keep it if none was better."""
        score = held_out_score(self.Y, self.posterior.predict(self.X))
        self.waited += 1
        if score > self.best:
            self.best, self.waited = score, 0
            self.kept = {name: p.detach().clone() for name, p in self.parameters.items()}
        return score

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best state back."""
        for name, value in self.kept.items():
            self.parameters[name].copy_(value)


def check_held_out(held_out: Any, columns: int, labels: int) -> tuple[Tensor, Tensor]:
    """``held_out`` as features (rows x ``columns``) and labels (rows x ``labels``)."""
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        raise ValueError(f"held_out must be a pair (X, Y) of rows that are not fitted; got {type(held_out).__name__}")
    X = check_features(held_out[0], "the X of held_out", columns)
    Y = check_labels(held_out[1], len(X), "the Y of held_out", exact=True)
    if Y.shape[1] != labels:
        raise ValueError(f"the Y of held_out must have the {labels} labels of the model; got {Y.shape[1]}")
    for value in (0, 1):
        if not torch.eq(Y, value).any():
            raise ValueError(
                f"the Y of held_out must have a label that is {value}, or no epoch is better than another; got none"
            )
    return X, Y
