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


def chosen_settings(classifier: ESMCClassifier) -> list[dict[str, Any]]:
    """The settings of each member with its weight, the heaviest first; none of a named inference."""
    members = classifier.stack_.members
    return [{"weight": member.weight} | asdict(member.settings) for member in members if member.settings is not None]


def chosen_table(classifier: ESMCClassifier) -> list[Table]:
    """These settings for a terminal, a column for each member; no table if there are none."""
    chosen = chosen_settings(classifier)
    if not chosen:
        return []
    columns = [[write(value) for value in member.values()] for member in chosen]
    is_searched = classifier.search_ is not None and not classifier.search_.empty
    heading = "chosen on held-out rows" if is_searched else "not searched"
    return [table((heading, *[""] * len(columns)), zip(chosen[0], *columns, strict=True))]
