"""Seeds that stay inside: same seed, same result, and the caller's random state untouched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyro
import torch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw everything inside the block from ``seed``; None draws from the state as it is and moves it on."""
    if seed is None:
        yield
        return
    python, legacy_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - Pyro seeds it too
    with torch.random.fork_rng(devices=[]):
        pyro.set_rng_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy_numpy)  # noqa: NPY002
