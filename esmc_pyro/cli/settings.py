"""The estimator's settings from `--set key=value` and a TOML file, checked before anything is read.

The table of keys repeats the signature of ``ESMCClassifier`` (a test compares them), so that a misspelt key is found,
and completed in the shell, without waiting for PyTorch.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from esmc_pyro.cli.failure import WrongUsage

# what each setting may be, in the order in which a text is tried
KEYS: dict[str, tuple[str, ...]] = {
    "likelihood": ("text",),
    "B": ("whole number", "none"),
    "kernel": ("text",),
    "inference": ("text",),
    "guide": ("none", "text"),
    "preset": ("none", "text"),
    "widths": ("list of whole numbers", "none"),
    "pseudo": ("whole number", "none"),
    "search": ("true or false",),
    "features": ("text",),
    "epochs": ("whole number", "none"),
    "lr": ("number", "none"),
    "top_k": ("whole number", "none"),
    "random_state": ("whole number",),
    "verbose": ("true or false",),
}


def nearest(name: str, names: Collection[str]) -> str:
    """ "; did you mean 'x'?" if one of ``names`` is much like ``name``, else ""."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def collect(config: Path | None, pairs: Iterable[str], seed: int | None) -> dict[str, Any]:
    """Settings of the TOML file, overruled by ``key=value`` pairs, overruled by ``seed``."""
    settings = {} if config is None else read_config(config)
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise WrongUsage(f"--set {pair!r} has no '=', expected key=value.")
        key = key.strip()
        settings[key] = parse(check_key(key, "--set"), text.strip())
    if seed is not None:
        settings["random_state"] = seed
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a TOML file: keys at its top, as `epochs = 20`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUsage(f"--config {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUsage(f"--config {path} is not TOML ({error}).") from None
    settings = {}
    for key, value in content.items():
        check_key(key, f"--config {path}:")
        if value == "none":  # TOML has no word for it
            settings[key] = parse(key, value)
        else:
            settings[key] = _checked(key, value)
    return settings


def check_key(key: str, where: str) -> str:
    """``key`` if it is a setting; else the error names the nearest one."""
    if key not in KEYS:
        hint = nearest(key, KEYS) or f", expected one of {', '.join(KEYS)}."
        raise WrongUsage(f"{where} {key!r} is no setting{hint}")
    return key


def parse(key: str, text: str) -> Any:
    """The value that ``text`` means for ``key``."""
    for kind in KEYS[key]:
        try:
            return _PARSERS[kind](text)
        except ValueError:
            continue
    raise WrongUsage(f"{key} is {text!r}, expected {_expected(key)}.")


def _expected(key: str) -> str:
    return " or ".join(f"a {kind}" if kind[0] in "lwn" and kind != "none" else kind for kind in KEYS[key])


def _none(text: str) -> None:
    if text.lower() not in ("none", "null"):
        raise ValueError(text)


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _list(text: str) -> list[int]:
    inner = text.strip("[]() ")
    return [int(part) for part in inner.split(",")] if inner else []


def _text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


_PARSERS: Mapping[str, Any] = {
    "text": _text,
    "whole number": int,
    "number": float,
    "none": _none,
    "true or false": _truth,
    "list of whole numbers": _list,
}


def _is(kind: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "text": isinstance(value, str) and bool(value),
        "whole number": number and isinstance(value, int),
        "number": number,
        "none": value is None,
        "true or false": isinstance(value, bool),
        "list of whole numbers": isinstance(value, list) and all(_is("whole number", entry) for entry in value),
    }[kind]


def _checked(key: str, value: Any) -> Any:
    if not any(_is(kind, value) for kind in KEYS[key]):
        raise WrongUsage(f"{key} is {value!r}, expected {_expected(key)}.")
    return value


def check_values(settings: Mapping[str, Any]) -> None:
    """Names are those of something that exists, numbers in range; loads PyTorch."""
    from esmc_pyro import ESMCClassifier
    from esmc_pyro.feature_map import KINDS
    from esmc_pyro.guides import GUIDES
    from esmc_pyro.inference import PRESETS
    from esmc_pyro.models import KERNELS, LIKELIHOODS

    choices: dict[str, tuple[str, ...]] = {
        "likelihood": ("auto", *LIKELIHOODS),
        "guide": tuple(GUIDES),
        "preset": tuple(PRESETS),
        "features": ("auto", *KINDS),
        "inference": ("auto", "svi", "analytic"),
    }
    for key, names in choices.items():
        value = settings.get(key)
        if value is not None:
            _check_name(key, value, names)
    kernel = settings.get("kernel", "auto")
    for part in () if kernel == "auto" else kernel.split("+"):
        _check_name("kernel", part, ("auto", *KERNELS))
    if any(width < 1 for width in settings.get("widths") or ()):
        raise WrongUsage(f"widths is {settings['widths']}, expected numbers of at least 1.")
    try:
        ESMCClassifier(**settings)._check_arguments()
    except ValueError as error:
        raise WrongUsage(f"{error}.") from None


def _check_name(key: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise WrongUsage(f"{key} is {value!r}, expected one of {', '.join(names)}{nearest(value, names)}")
