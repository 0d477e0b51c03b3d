"""MODEL on the command line: a file that `esmc fit` wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.completion import complete_path
from esmc_pyro.cli.failure import Failure
from esmc_pyro.cli.output import table, write

if TYPE_CHECKING:
    from rich.table import Table

    from esmc_pyro import ESMCClassifier

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", show_default=False, help="A model that `esmc fit` wrote.", autocompletion=complete_path
    ),
]


def load_model(path: Path) -> ESMCClassifier:
    """The fitted classifier of the file."""
    if not path.exists():
        raise Failure(f"{path} does not exist, expected a model that `esmc fit` wrote.")
    from esmc_pyro import ESMCClassifier

    return ESMCClassifier.load(path)


def is_model_file(path: Path) -> bool:
    """Whether the file starts as a file of tensors does: the length of a JSON header, then that header."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and start[6:8] == b"\0\0"


def describe_members(classifier: ESMCClassifier) -> tuple[dict[str, Any], list[Table]]:
    """The settings of each member with its weight, the heaviest first, and whether held-out rows chose them.

    As they are, and for a terminal, a column for each member; a named inference has no settings and no table.
    """
    members = classifier.stack_.members
    chosen = [{"weight": member.weight} | asdict(member.settings) for member in members if member.settings is not None]
    searched = classifier.search_ is not None and not classifier.search_.empty
    described = {"chosen": chosen, "searched": searched}
    if not chosen:
        return described, []
    columns = [[write(value) for value in member.values()] for member in chosen]
    heading = "chosen on held-out rows" if searched else "not searched"
    return described, [table((heading, *[""] * len(columns)), zip(chosen[0], *columns, strict=True))]
