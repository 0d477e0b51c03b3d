"""The application: its commands, its help, and where it starts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from esmc_pyro.cli import annotation, inspection, page
from esmc_pyro.cli.command import add_command
from esmc_pyro.cli.diagnose import diagnose
from esmc_pyro.cli.evaluate import evaluate
from esmc_pyro.cli.failure import say
from esmc_pyro.cli.fit import fit
from esmc_pyro.cli.predict import predict
from esmc_pyro.cli.reproduce import reproduce

# plain help: it keeps the lines of the examples, and the terminal's width
app = typer.Typer(
    name="esmc",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "predict": predict,
    "evaluate": evaluate,
    "complete": annotation.complete,
    "suggest": annotation.suggest,
    "inspect": inspection.inspect,
    "report": page.report,
    "diagnose": diagnose,
    "demo": page.demo,
    "reproduce": reproduce,
}
for _name, _function in COMMANDS.items():
    add_command(app, _function, _name)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"esmc-pyro {version('esmc-pyro')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Multi-label classification when labels are missing.

    \b
    Examples:
      esmc fit digits --remove-ones 0.5 --out digits.esmc
      esmc evaluate digits.esmc digits
      esmc complete digits.esmc digits --remove-ones 0.5

    \b
    Exit codes:
      0    done
      1    the work failed: data, model or file cannot be used (one sentence on stderr says why)
      2    wrong usage: an option or argument is not as it should be; nothing was read or written
      3    the answer would mean nothing, as metrics of rows without known labels
      130  interrupted (Ctrl-C); `fit` still writes what was fitted

    DATA is a file (ARFF of Mulan or MEKA, extreme-classification text, svmlight, .mat, .csv, .tsv, .parquet, .npz), a
    folder with such files, a name under the folder that ESMC_DATA names, or `digits`.
    """


def main() -> None:
    """Run `esmc`."""
    warnings.showwarning = lambda message, *_, **__: say(f"esmc: warning: {message}")
    app(prog_name="esmc")
