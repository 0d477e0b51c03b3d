"""All that a stochastic fit has in hand between two epochs, to and from a checkpoint."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError, Section
from esmc_pyro.inference.held_out import HeldOut
from esmc_pyro.inference.schedules import Plateau
from esmc_pyro.tensor_file import fingerprint

POSITION = ("last_epoch", "_step_count", "_last_lr")  # where a scheduler is; the rest follows from the settings
CLOSE = 1e-3  # relative: starts on another number of threads differ by rounding, other starts by more


def describe(value: Any) -> str:
    """The name of a callable and its options, or of an object's class and its plain attributes; of a module the parts
    too.
    """
    if isinstance(value, partial):
        return f"{describe(value.func)} {sorted(value.keywords.items())}"
    if isinstance(value, str):
        return value
    if isinstance(value, nn.Module):
        return ", ".join(f"{type(part).__name__} {_plain(part)}" for part in value.modules())
    return getattr(value, "__name__", None) or f"{type(value).__name__} {_plain(value)}"


def _plain(value: Any) -> list[tuple[str, Any]]:
    kept = {key: item for key, item in vars(value).items() if not key.startswith("_") and key != "training"}
    return sorted((key, item) for key, item in kept.items() if _is_plain(item))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)


class SVIState:
    """The moving parts of one fit: what ``save`` writes after an epoch, ``restore`` puts back, to the last bit."""

    def __init__(
        self,
        checkpoint: Checkpoint | Section,
        loss_of: nn.Module,
        stepper: Optimizer,
        scheduler: Any,
        plateau: Plateau,
        judge: HeldOut | None = None,
    ) -> None:
        self.section = checkpoint.section("fit") if isinstance(checkpoint, Checkpoint) else checkpoint
        self.stepper, self.scheduler, self.plateau, self.judge = stepper, scheduler, plateau, judge
        self.parameters = {name: p for name, p in loss_of.named_parameters() if p.requires_grad}
        self.start = {name: _size(p) for name, p in loss_of.named_parameters()}
        self.model = describe(loss_of)
        self.origin: dict[str, Any] = {}

    def made_from(self, X: Tensor, Y: Tensor, **settings: Any) -> None:
        """What the fit was given: a checkpoint of anything else is refused."""
        shapes = [[name, list(p.shape), str(p.dtype)] for name, p in self.parameters.items()]
        self.origin = {"X": fingerprint(X), "Y": fingerprint(Y), "model": self.model, "parameters": shapes, **settings}

    def restore(self) -> list[dict[str, float]]:
        """The history so far, with everything else put back to where it was; empty if there is no checkpoint yet."""
        saved = self.section.get(self.origin)
        if saved is None:
            return []
        config, tensors = saved
        try:
            self._check_start(config["start"])
            self._load(config, tensors)
            return [dict(line) for line in config["history"]]
        except CheckpointError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"{self.section.path}: this checkpoint does not fit the model ({error})") from None

    def _check_start(self, start: dict[str, float]) -> None:
        moved = sorted(
            name for name, size in self.start.items() if not abs(start[name] - size) <= CLOSE * max(1e-6, abs(size))
        )
        if moved:
            raise CheckpointError(
                f"{self.section.path}: this checkpoint is of a fit that began with other {', '.join(moved)}; expected "
                "a model and a guide made as they were then (remove it, or name another file)"
            )

    @torch.no_grad()
    def _load(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"parameter/{name}"])
        state: dict[int, dict[str, Any]] = {}
        for place, values in enumerate(config["optimizer"]):
            state[place] = dict(values) | {
                key.removeprefix(f"optimizer/{place}/"): value
                for key, value in tensors.items()
                if key.startswith(f"optimizer/{place}/")
            }
        groups = self.stepper.state_dict()["param_groups"]
        for group, values in zip(groups, config["groups"], strict=True):
            group.update(values)
        self.stepper.load_state_dict({"state": state, "param_groups": groups})
        self.scheduler.load_state_dict(
            self.scheduler.state_dict() | {key: config["scheduler"][key] for key in POSITION}
        )
        for key in ("smooth", "best", "waited"):
            setattr(self.plateau, key, config["plateau"][key])
        if self.plateau.best is None:
            self.plateau.best = -math.inf
        if self.judge is not None:
            self.judge.best, self.judge.waited = config["held_out"]
            self.judge.kept = {name: tensors[f"best/{name}"] for name in self.parameters}
        torch.set_rng_state(tensors["random"])

    def save(self, history: list[dict[str, float]]) -> None:
        """Write the state after the last epoch of ``history``."""
        tensors: dict[str, Tensor] = {f"parameter/{name}": p for name, p in self.parameters.items()}
        tensors["random"] = torch.get_rng_state()
        state = self.stepper.state_dict()
        plain: list[dict[str, Any]] = []
        for place in range(len(self.parameters)):
            values = state["state"].get(place, {})
            plain.append({key: value for key, value in values.items() if not isinstance(value, Tensor)})
            tensors |= {f"optimizer/{place}/{key}": v for key, v in values.items() if isinstance(v, Tensor)}
        numbers = [{k: v for k, v in group.items() if type(v) in (int, float)} for group in state["param_groups"]]
        position = self.scheduler.state_dict()
        config: dict[str, Any] = {
            "history": history,
            "optimizer": plain,
            "groups": numbers,
            "scheduler": {key: position[key] for key in POSITION},
            "plateau": {
                "smooth": self.plateau.smooth,
                # minus infinity, before there is a best, has no word in JSON
                "best": self.plateau.best if math.isfinite(self.plateau.best) else None,
                "waited": self.plateau.waited,
            },
            "start": self.start,
        }
        if self.judge is not None:
            config["held_out"] = [self.judge.best, self.judge.waited]
            tensors |= {f"best/{name}": value for name, value in self.judge.kept.items()}
        self.section.put(self.origin, config, tensors)


def _size(parameter: Tensor) -> float:
    """The root of the mean square of the numbers in the parameter that are finite."""
    values = parameter.detach().double()
    return float(values[values.isfinite()].square().mean().sqrt()) if values.isfinite().any() else 0.0
