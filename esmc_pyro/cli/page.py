"""`esmc report` and `esmc demo`: pages to look at."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from esmc_pyro.cli.evaluate import check_labels
from esmc_pyro.cli.model import ModelArgument, load_model
from esmc_pyro.cli.output import Output
from esmc_pyro.cli.rows import Part, read_for, select
from esmc_pyro.cli.source import DataArgument, Reading
from esmc_pyro.cli.target import ForceOption, check_target


def report(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", show_default=False)],
    reading: Reading,
    output: Output,
    force: ForceOption = False,
) -> None:
    """Write one self-contained HTML page about a model on DATA: metrics, calibration, latent space, completions.

    The model should have been fitted to the training rows of DATA. Without test rows, metrics are of the training rows.

    \b
    Examples:
      esmc report corel5k.esmc corel5k --out corel5k.html
      esmc report songs.esmc songs.csv --tag-column genres --test-fraction 0.2 --out songs.html
    """
    reading.check(data)
    check_target(out, force=force, inputs=reading.files(data, model))
    classifier = load_model(model)
    dataset = read_for(classifier, data, reading, output)
    check_labels(dataset.name, select(dataset, Part.auto))

    from esmc_pyro.report import write_report

    with warnings.catch_warnings():
        # names were compared when the data was read; the arrays of a Dataset do not carry them on
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        write_report(classifier, dataset, out)
    output.emit({"out": str(out), "bytes": out.stat().st_size})
    if not output.json:
        output.note(f"{out} written.")


def demo(
    output: Output,
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("report"),
    train: Annotated[int, typer.Option(min=20, help="Training pictures.")] = 2000,
    test: Annotated[int, typer.Option(min=10, help="Test pictures.")] = 1000,
    pseudo: Annotated[int, typer.Option(min=1, help="Pseudo-instances of each layer.")] = 500,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training pictures.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
) -> None:
    """Fit the model to pictures that lost half of their labels, beside plain methods: a table and a page.

    \b
    Example:
      esmc demo --train 500 --epochs 20
    """
    import torch
    from rich.console import Console
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from esmc_pyro.demo import run

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as `make demo`: sums in a fixed order, the same table on any machine
    console = Console(stderr=output.json, quiet=output.quiet)
    try:
        with threadpool_limits(1):
            scores = run(out, train=train, test=test, pseudo=pseudo, epochs=epochs, seed=seed, console=console)
    finally:
        torch.set_num_threads(before)
    if output.json:
        methods = [
            {"method": s.method, "setting": s.setting, "seconds": s.seconds, "metrics": dict(s.values)} for s in scores
        ]
        output.emit({"out": str(out / "index.html"), "methods": methods})
