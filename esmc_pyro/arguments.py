"""The estimator's arguments, checked one by one and together before any work is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyro.contrib.gp.kernels import Kernel

from esmc_pyro.feature_map import KINDS
from esmc_pyro.guides import GUIDES, Guide
from esmc_pyro.inference import PRESETS
from esmc_pyro.inference.analytic import Setting
from esmc_pyro.models import KERNELS, LIKELIHOODS, Likelihood
from esmc_pyro.validation import check_choice, check_number

INFERENCES = ("auto", "svi", "analytic")


def is_default(inference: Any, guide: Any, preset: Any) -> bool:
    """Whether nothing is named, so that ``esmc_pyro.default`` does the work."""
    return preset is None and guide is None and isinstance(inference, str) and inference == "auto"


def check_arguments(given: Mapping[str, Any], init: Callable[..., None]) -> None:
    """Raise ``ValueError`` with a sentence about the first argument that cannot be; ``init`` knows the defaults."""
    _check_names(given)
    for name in ("pseudo", "epochs", "top_k", "B"):
        if given[name] is not None:
            check_number(given[name], name, low=1, whole=True)
    widths = given["widths"]
    if widths is not None:
        if isinstance(widths, str) or not isinstance(widths, Sequence):
            raise ValueError(f"widths must be a list of whole numbers; got {widths!r}")
        for width in widths:
            check_number(width, "widths", low=1, whole=True)
    if given["lr"] is not None:
        check_number(given["lr"], "lr", low=0, above=True)
    check_number(given["random_state"], "random_state", low=0, whole=True)
    if given["random_state"] >= 2**32:
        raise ValueError(f"random_state must be below 2**32; got {given['random_state']}")
    for name in ("search", "verbose"):
        if not isinstance(given[name], bool) and not (name == "verbose" and isinstance(given[name], int)):
            raise ValueError(f"{name} must be True or False; got {given[name]!r}")
    defaults = {name: p.default for name, p in inspect.signature(init).parameters.items() if name != "self"}
    _check_together(given, defaults)


def _check_names(given: Mapping[str, Any]) -> None:
    """Each is a name that is known, or an object that can stand for one."""
    _name_or("features", given, ("auto", *KINDS), False)
    _name_or("inference", given, INFERENCES, callable(given["inference"]))
    _name_or("likelihood", given, ("auto", *LIKELIHOODS), isinstance(given["likelihood"], Likelihood))
    if isinstance(given["likelihood"], str) and given["likelihood"] == "mpu":
        raise ValueError(
            "likelihood must be an object where it has a rate to know, models.MPU(c), or 'mpu_learned'; got 'mpu'"
        )
    preset, guide, kernel = given["preset"], given["guide"], given["kernel"]
    _name_or("preset", given, PRESETS, preset is None or isinstance(preset, Setting) or callable(preset))
    _name_or("guide", given, GUIDES, guide is None or callable(guide))
    if isinstance(kernel, str) and "+" in kernel:
        for part in kernel.split("+"):
            _name_or("kernel", {"kernel": part}, KERNELS, False)
    else:
        _name_or("kernel", given, ("auto", *KERNELS), isinstance(kernel, Kernel))


def _name_or(name: str, given: Mapping[str, Any], names: Any, is_object: bool) -> None:
    if not is_object:
        check_choice(given[name] if isinstance(given[name], str) else repr(given[name]), names, name)


def _check_together(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse what would be left unused: an argument that is given counts, or the user hears of it."""
    inference, guide, preset = given["inference"], given["guide"], given["preset"]

    def refuse(names: Sequence[str], when: str) -> None:
        for name in names:
            value, default = given[name], defaults[name]
            if value is not default and not (isinstance(value, str) and value == default):
                raise ValueError(f"{name} must be left at {default!r} {when}; got {value!r}")

    if preset is not None:
        refuse(("guide", "likelihood", "B", "kernel", "widths", "pseudo", "lr"), "with a preset, which brings its own")
        if callable(inference) or inference == "svi":
            raise ValueError(f"inference must be 'auto' or 'analytic' with a preset; got {inference!r}")
    elif isinstance(guide, Guide):
        refuse(("likelihood", "B", "kernel", "widths", "pseudo"), "with a guide object, which brings its model")
    if callable(inference):
        refuse(("guide",), "with a function as inference, which brings its own")
    elif inference == "analytic":
        refuse(("lr",), "with inference='analytic', which has no learning rate")
        if not (guide is None or (isinstance(guide, str) and guide == "paper")):
            raise ValueError(f"guide must be 'paper' for inference='analytic'; got {guide!r}")
    if is_default(inference, guide, preset):
        refuse(("widths",), "without a named inference ('svi' or 'analytic')")
    else:
        refuse(("search",), "with a named inference, guide or preset, whose settings are not searched")
    experts = isinstance(given["likelihood"], str) and given["likelihood"] in ("experts", "eeoe", "eeoe_learned")
    if given["B"] is not None and not experts:
        raise ValueError(
            f"B needs likelihood='experts', 'eeoe' or 'eeoe_learned'; "
            f"got B={given['B']!r} with likelihood={given['likelihood']!r}"
        )
