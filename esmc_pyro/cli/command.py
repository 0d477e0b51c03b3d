"""Commands whose shared options are dataclasses: each field becomes an option of every command that takes the class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer

from esmc_pyro.cli.failure import exit_codes


def add_command(app: typer.Typer, function: Callable[..., None], name: str) -> None:
    """Add ``function`` to ``app`` under ``name``, its errors turned into exit codes."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {key: hint for key, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _fields(groups[parameter.name])
        else:
            changed = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            parameters.append(changed)

    def call(**values: Any) -> None:
        with exit_codes(name):
            for key, group in groups.items():
                values[key] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            function(**values)

    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name)(call)


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
