"""ESMC in Pyro: multi-label classification when labels are missing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esmc_pyro.data import Dataset, load_dataset
    from esmc_pyro.estimator import ESMCClassifier

__all__ = ["Dataset", "ESMCClassifier", "load_dataset"]

# PyTorch takes seconds to load: names come when they are asked for, so that `esmc --help` does not wait for it
_HOME = {"Dataset": "esmc_pyro.data", "ESMCClassifier": "esmc_pyro.estimator", "load_dataset": "esmc_pyro.data"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
