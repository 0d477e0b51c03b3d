"""`esmc diagnose`: is the posterior of a model to be believed?"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from esmc_pyro.cli.evaluate import check_labels
from esmc_pyro.cli.model import ModelArgument, load_model
from esmc_pyro.cli.output import Output
from esmc_pyro.cli.rows import Part, TrainOption, label_frame, named, read_for, select
from esmc_pyro.cli.source import DataArgument, Reading
from esmc_pyro.cli.target import ForceOption, check_target

PAGE = "diagnose.html"


def diagnose(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help=f"The page, or a folder for {PAGE}.", show_default=False)],
    reading: Reading,
    output: Output,
    part: TrainOption = Part.auto,
    draws: Annotated[int, typer.Option(min=100, help="Posterior draws.")] = 400,
    by_row: Annotated[bool, typer.Option("--by-row", help="LOO leaves out whole rows, not single labels.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same page.")] = 0,
    force: ForceOption = False,
) -> None:
    """Write a page on whether the posterior can be believed: k-hat, PSIS-LOO, WAIC, replicas, trace and forest plots.

    DATA must be what the model was fitted to: the same rows, with labels removed in the same way. Of a model of several
    members the page is about the heaviest.

    \b
    Examples:
      esmc diagnose songs.esmc songs.csv --tag-column genres --out report/
      esmc diagnose digits.esmc digits --remove-ones 0.5 --out digits.html --by-row
    """
    reading.check(data)
    page = out if out.suffix in (".html", ".htm") else out / PAGE
    check_target(page, force=force, inputs=reading.files(data, model))
    classifier = load_model(model)
    dataset = read_for(classifier, data, reading, output)
    rows = select(dataset, part, prefer_train=True)
    check_labels(dataset.name, rows)

    from esmc_pyro.diagnose import write_diagnosis

    with warnings.catch_warnings():
        # names were compared when the data was read; the arrays of a Dataset do not carry them on
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        X = classifier._rows(named(classifier, rows.X))
    members = classifier.stack_.members
    alone = "" if len(members) == 1 else f", the heaviest of {len(members)} members (weight {members[0].weight:.2f})"
    write_diagnosis(
        classifier.posterior_,
        classifier.feature_map_(X).to(classifier.model_.layers[0].pseudo_instances.dtype),
        label_frame(rows.Y, classifier.label_names_).to_numpy(),
        page,
        name=f"{dataset.name}{alone}",
        label_names=classifier.label_names_,
        draws=draws,
        unit="instances" if by_row else "entries",
        seed=seed,
    )
    output.emit({"out": str(page), "bytes": page.stat().st_size})
    if not output.json:
        output.note(f"{page} written{alone and f': {dataset.name}{alone}'}.")
