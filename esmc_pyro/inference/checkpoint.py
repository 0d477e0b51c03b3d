"""Checkpoints: what a fit has reached, in one file, so that a killed fit goes on to the result it would have had."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from esmc_pyro import tensor_file
from esmc_pyro.validation import check_number


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from; the sentence names the file and says why."""


FORMAT = tensor_file.Format("esmc-pyro checkpoint", 2, "checkpoint", CheckpointError)
Saved = tuple[dict[str, Any], dict[str, Tensor]]


class Checkpoint:
    """The file ``path``, written at most every ``every_seconds`` while a fit runs, and read when one begins.

    A fit of several stages keeps a section for each. A section holds what its stage was given (``origin``: data by
    checksum, settings by value), and is read only by a stage that was given the same. The file stays when the fit ends;
    whoever keeps the result removes it.
    """

    def __init__(self, path: str | PathLike[str], every_seconds: float = 30.0) -> None:
        check_number(every_seconds, "every_seconds", low=0)
        self.path, self.every_seconds = Path(path), every_seconds
        self._written = time.monotonic()
        self._sections: dict[str, tuple[dict[str, Any], Saved]] = {}
        self._remove_leftovers()
        if self.path.exists():
            self._sections = _read(self.path)

    def section(self, name: str) -> Section:
        """The part of the file for one stage of a fit."""
        return Section(self, name)

    @property
    def is_due(self) -> bool:
        """Whether ``every_seconds`` have passed since the file was written."""
        return time.monotonic() - self._written >= self.every_seconds

    def get(self, name: str, origin: Mapping[str, Any]) -> Saved | None:
        """What is kept of the stage ``name``, None if nothing is; it must have been given the same as now."""
        if name not in self._sections:
            return None
        before, saved = self._sections[name]
        different = sorted(key for key in before.keys() | origin.keys() if before.get(key) != origin.get(key))
        if different:
            raise CheckpointError(
                f"{self.path}: this checkpoint is of another fit, with other {', '.join(different)}; expected one of "
                "the same data and settings (remove it, or name another file)"
            )
        return saved

    def put(self, name: str, origin: Mapping[str, Any], config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Keep this of the stage ``name`` and write the file."""
        self._sections[name] = (dict(origin), (config, {key: value.detach().clone() for key, value in tensors.items()}))
        content = {key: {"origin": was, "config": saved[0]} for key, (was, saved) in self._sections.items()}
        flat = {f"{key}/{n}": tensor for key, (_, saved) in self._sections.items() for n, tensor in saved[1].items()}
        tensor_file.write(self.path, FORMAT, content, flat)
        self._written = time.monotonic()

    def _remove_leftovers(self) -> None:
        """Temporary files of ``write_atomic`` that a kill left behind."""
        pattern = re.compile(re.escape(f".{self.path.name}.") + "[0-9a-f]{8}")
        if self.path.parent.is_dir():
            for file in self.path.parent.iterdir():
                if pattern.fullmatch(file.name):
                    file.unlink(missing_ok=True)


class Section:
    """One stage's part of a ``Checkpoint``."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint, self.name = checkpoint, name

    def get(self, origin: Mapping[str, Any]) -> Saved | None:
        """``Checkpoint.get`` of this stage."""
        return self.checkpoint.get(self.name, origin)

    def put(self, origin: Mapping[str, Any], config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """``Checkpoint.put`` of this stage."""
        self.checkpoint.put(self.name, origin, config, tensors)

    @property
    def is_due(self) -> bool:
        """``Checkpoint.is_due``."""
        return self.checkpoint.is_due

    @property
    def path(self) -> Path:
        """The file."""
        return self.checkpoint.path


def _read(path: Path) -> dict[str, tuple[dict[str, Any], Saved]]:
    content, flat = tensor_file.read(path, FORMAT)
    sections: dict[str, tuple[dict[str, Any], Saved]] = {}
    for name, section in content.items():
        good = isinstance(section, dict) and set(section) == {"origin", "config"}
        if not good or not all(isinstance(part, dict) for part in section.values()):
            raise CheckpointError(f"{path}: section {name!r:.60} must hold the objects 'origin' and 'config'")
        tensors = {key[len(name) + 1 :]: value for key, value in flat.items() if key.startswith(f"{name}/")}
        sections[name] = (section["origin"], (section["config"], tensors))
    return sections
