"""What the search for settings has found so far, kept in a checkpoint so that no candidate is fitted twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from scipy import sparse
from torch import Tensor

from esmc_pyro.inference.checkpoint import Checkpoint, CheckpointError
from esmc_pyro.inference.svi_state import describe
from esmc_pyro.models import Likelihood
from esmc_pyro.tensor_file import fingerprint


class SearchMemory:
    """Scores and held-out ``z`` of candidates by their settings; without a checkpoint, nothing."""

    def __init__(self, checkpoint: Checkpoint | None, section: str, X: Any, Y: Tensor, **given: Any) -> None:
        self._section = None if checkpoint is None else checkpoint.section(section)
        self._found: dict[str, tuple[float, Tensor]] = {}
        self._origin: dict[str, Any] = {}
        self._is_written = True
        if self._section is not None:
            self._origin = {"X": _fingerprint(X), "Y": fingerprint(Y)} | {
                key: _text(value) for key, value in given.items()
            }
            self._read()

    def _read(self) -> None:
        assert self._section is not None
        saved = self._section.get(self._origin)
        if saved is None:
            return
        config, tensors = saved
        try:
            self._found = {str(key): (float(value), tensors[str(key)]) for key, value in config["scores"].items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{self._section.path}: its search does not fit this one ({error!r})") from None

    def get(self, settings: Any) -> tuple[float, Tensor] | None:
        """The score of these settings and their held-out ``z``; None if they were not tried."""
        return self._found.get(key_of(settings))

    def put(self, settings: Any, score: float, z: Tensor) -> None:
        """Keep the score of these settings and their held-out ``z``; the file is written when it is due."""
        if self._section is not None:
            self._found[key_of(settings)] = score, z
            self._is_written = False
            if self._section.is_due:
                self.write()

    def write(self) -> None:
        """Write what is kept, unless it is written."""
        if self._section is None or self._is_written:
            return
        # as text, because a score may be NaN, which JSON has no word for
        scores = {key: repr(value) for key, (value, _) in self._found.items()}
        self._section.put(self._origin, {"scores": scores}, {key: z for key, (_, z) in self._found.items()})
        self._is_written = True


def key_of(settings: Any) -> str:
    """These settings as text, with kernels and likelihoods by checksum."""
    return "; ".join(f"{field.name}={_text(getattr(settings, field.name))}" for field in fields(settings))


def _text(value: Any) -> str:
    if isinstance(value, Kernel | Likelihood):
        return f"{describe(value)} {fingerprint(*value.state_dict().values())}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return repr(value) if isinstance(value, bool | int | float | str | tuple | list | None) else describe(value)


def _fingerprint(X: Any) -> str:
    is_sparse: bool = sparse.issparse(X)
    parts = (X.data, X.indices, X.indptr) if is_sparse else (X,)
    return fingerprint(*(torch.as_tensor(np.ascontiguousarray(part)) for part in parts))
