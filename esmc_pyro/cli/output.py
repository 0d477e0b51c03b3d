"""What a command says: JSON for machines or tables for people on stdout, notes and progress on stderr."""

from __future__ import annotations

import json as json_text
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import printable, say

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Output:
    """Where results and notes go; options of every command."""

    json: Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False

    @property
    def progress(self) -> bool:
        """Whether a progress bar would be seen by someone."""
        return not self.quiet and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        if not self.quiet:
            say(text)

    def status(self, text: str) -> None:
        """A line about what goes on, for people who watch."""
        if self.progress:
            say(text)

    def emit(self, value: Any, *tables: Table, title: str | None = None) -> None:
        """The result: ``value`` as JSON, or ``tables`` below their title."""
        if self.json:
            typer.echo(json_text.dumps(plain(value), allow_nan=False, ensure_ascii=False))
        elif tables:
            from rich.console import Console

            console = Console(highlight=False)
            if title is not None:
                console.print(printable(title), markup=False)
            for table in tables:
                console.print()
                console.print(table)


def plain(value: Any) -> Any:
    """``value`` in JSON's types; what is not a finite number is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays, tensors
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table for a terminal; numbers stand on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, column in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[place]) or row[place] is None for row in rows)
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(write(value)) for value in row))  # Text: a label called "[bold]" is a label
    return made


def write(value: Any) -> str:
    """A cell of a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if 1e-3 <= abs(value) < 1e4 or abs(value) < 1e-9 else f"{value:.3g}"
    return printable(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
