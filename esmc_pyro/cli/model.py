"""MODEL on the command line: a file that `esmc fit` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esmc_pyro.cli.completion import complete_path
from esmc_pyro.cli.failure import Failure

if TYPE_CHECKING:
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
