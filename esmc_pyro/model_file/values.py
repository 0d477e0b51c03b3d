"""Constructor arguments, settings and tables to and from JSON."""

from __future__ import annotations

import math
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import pandas as pd
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from esmc_pyro.default import Settings
from esmc_pyro.inference import PRESETS, fit_analytic, fit_svi
from esmc_pyro.model_file import guides, kernels, likelihoods
from esmc_pyro.model_file.errors import Fields, ModelFileError, Tensors
from esmc_pyro.models import Likelihood

# functions that an argument may be; a file names them and never brings its own
FUNCTIONS: dict[str, Any] = {"fit_svi": fit_svi, "fit_analytic": fit_analytic} | {
    f"preset {name}": make for name, make in PRESETS.items()
}
COLUMNS = {"int64": int, "float64": float, "bool": bool, "text": str, "any": object}


def encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON; what JSON has no form for becomes an object with one key that says what it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list | tuple):
        items = [encode(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Kernel):
        return {"kernel": kernels.encode(value, name, tensors)}
    if isinstance(value, Likelihood):
        return {"likelihood": likelihoods.encode(value, name, tensors)}
    function = next((name for name, made in FUNCTIONS.items() if made is value), None)
    if function is not None:
        return {"function": function}
    described = guides.encode_class(value)
    if described is None:
        kind = value if isinstance(value, type) else type(value)
        raise ModelFileError(
            f"{name.removeprefix('arguments.')} must be a name, a number, a list of them, or a kernel, likelihood or "
            f"guide class of this package to be saved; got {kind.__name__}"
        )
    return {"guide": described}


def decode(value: Any, name: str, tensors: Tensors) -> Any:
    """What ``encode`` was given."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [decode(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
    fields = Fields(value, f"{name!r}")
    made: Any
    if "tuple" in fields:
        made = tuple(decode(item, f"{name}.{place}", tensors) for place, item in enumerate(fields.take("tuple", list)))
    elif "float" in fields:
        made = float(fields.choice("float", ("nan", "inf", "-inf")))
    elif "kernel" in fields:
        made = kernels.decode(fields.take("kernel", dict), name, tensors, None)
    elif "likelihood" in fields:
        made = likelihoods.decode(fields.take("likelihood", dict), name, tensors)
    elif "function" in fields:
        made = FUNCTIONS[fields.choice("function", FUNCTIONS)]
    else:
        made = guides.decode_class(fields.take("guide", dict))
    fields.done()
    return made


def encode_settings(settings: Settings | None, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """The settings that the held-out rows chose, field by field."""
    if settings is None:
        return None
    names = [field.name for field in dataclass_fields(Settings)]
    return {name: encode(getattr(settings, name), f"settings.{name}", tensors) for name in names}


def decode_settings(value: dict[str, Any] | None, tensors: Tensors) -> Settings | None:
    """What ``encode_settings`` was given; a field that the file does not know has its default."""
    if value is None:
        return None
    fields, given = Fields(value, "the settings"), {}
    for field in dataclass_fields(Settings):
        if field.name not in fields:
            continue
        plain: type = type(field.default)
        if field.name == "kernel" and isinstance(value[field.name], dict):
            plain = dict
        given[field.name] = decode(fields.take(field.name, plain), f"settings.{field.name}", tensors)
    fields.done()
    return Settings(**given)


def encode_table(table: pd.DataFrame, name: str, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The columns of a table with a plain index."""
    columns = []
    for label in table.columns:
        column = table[label]
        kind = str(column.dtype) if str(column.dtype) in COLUMNS else "any"
        if kind == "any" and all(isinstance(item, str) for item in column):
            kind = "text"
        items = [encode(item, f"{name}.{label}.{place}", tensors) for place, item in enumerate(column.tolist())]
        columns.append({"name": str(label), "kind": kind, "items": items})
    return columns


def decode_table(value: list[Any], name: str, tensors: Tensors) -> pd.DataFrame:
    """What ``encode_table`` was given."""
    columns: dict[str, Any] = {}
    for description in value:
        fields = Fields(description, f"a column of the table {name!r}")
        label, kind = fields.take("name", str), fields.choice("kind", COLUMNS)
        items = [decode(x, f"{name}.{label}.{i}", tensors) for i, x in enumerate(fields.take("items", list))]
        fields.done()
        _check_column(items, kind, f"column {label!r:.60} of the table {name!r}")
        if label in columns or any(len(items) != len(other) for other in columns.values()):
            raise ModelFileError(f"column {label!r:.60} of the table {name!r} must be there once, with as many rows")
        columns[label] = np.array(items, dtype=kind) if kind in ("int64", "float64", "bool") else items
    return pd.DataFrame(columns)


def _check_column(items: list[Any], kind: str, where: str) -> None:
    for item in items:
        whole = type(item) is int and abs(item) < 2**63
        good = isinstance(item, COLUMNS[kind]) and type(item) is not bool if kind != "bool" else type(item) is bool
        if (not good and not (kind == "float64" and whole)) or (kind == "int64" and not whole):
            raise ModelFileError(f"{where} must hold {COLUMNS[kind].__name__} only; got {item!r:.60}")
