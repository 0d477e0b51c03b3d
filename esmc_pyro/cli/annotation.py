"""`esmc complete` and `esmc suggest`: what a model tells those who write labels down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import Meaningless, WrongUsage
from esmc_pyro.cli.model import ModelArgument, load_model
from esmc_pyro.cli.output import Output, table
from esmc_pyro.cli.rows import Part, PartOption, TrainOption, known_entries, label_frame, named, read_for, select
from esmc_pyro.cli.source import DataArgument, Reading
from esmc_pyro.cli.target import ForceOption, TableOption, check_table_target, write_table

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

Draws = Annotated[int, typer.Option(min=2, help="Posterior draws.")]


def complete(
    model: ModelArgument,
    data: DataArgument,
    reading: Reading,
    output: Output,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 20,
    draws: Draws = 30,
    part: TrainOption = Part.auto,
    out: TableOption = None,
    force: ForceOption = False,
) -> None:
    """The zeros of DATA that are probably labels nobody wrote down, the most probable first.

    `row` counts the rows of DATA from 0; where DATA comes with test rows of its own, those of the part.
    With --remove-ones a column says which of them were removed, and so are known to be missing.

    \b
    Examples:
      esmc complete songs.esmc songs.csv --tag-column genres -n 50
      esmc complete songs.esmc songs.csv --tag-column genres -n 1000 --out look-at-these.csv
      esmc complete digits.esmc digits --remove-ones 0.5
    """
    _check(output, reading, model, data, out, force)
    classifier = load_model(model)
    dataset = read_for(classifier, data, reading, output)
    rows = select(dataset, part, prefer_train=True)
    if not known_entries(rows.Y):
        raise Meaningless(f"{dataset.name} has no known label in its {rows.part} rows, so none can be missing.")
    X = named(classifier, rows.X)
    found = classifier.complete(X, label_frame(rows.Y, classifier.label_names_), n=n, draws=draws)
    if reading.remove_ones is not None:
        found["removed"] = _were_removed(found, classifier, data, reading, part)
    found["row"] = rows.numbers[found["row"]]
    _emit(output, found, out, f"{dataset.name}, {rows.part} rows: labels that are probably missing")


def suggest(
    model: ModelArgument,
    data: DataArgument,
    reading: Reading,
    output: Output,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 10,
    draws: Draws = 30,
    part: PartOption = Part.auto,
    out: TableOption = None,
    force: ForceOption = False,
) -> None:
    """The rows of DATA whose labels would teach the model most, and the labels to ask about.

    `gain` is the information about all rows of DATA that the row's labels are expected to give beside those of the
    rows above it, in nats. `row` counts the rows of DATA from 0; where DATA comes with test rows of its own, those of
    the part.

    \b
    Examples:
      esmc suggest songs.esmc unlabelled.csv -n 20
      esmc suggest songs.esmc unlabelled.csv -n 500 --out label-next.csv
    """
    _check(output, reading, model, data, out, force)
    classifier = load_model(model)
    dataset = read_for(classifier, data, reading, output, labels=False)
    rows = select(dataset, part)
    found = classifier.suggest_annotations(named(classifier, rows.X), n=n, draws=draws)
    found["row"] = rows.numbers[found["row"]]
    _emit(output, found, out, f"{dataset.name}, {rows.part} rows: label these next")


def _check(output: Output, reading: Reading, model: Path, data: str, out: Path | None, force: bool) -> None:
    reading.check(data)
    check_table_target(out, force=force, inputs=reading.files(data, model))
    if output.json and str(out) == "-":
        raise WrongUsage("--json and --out - both want stdout, expected one of them.")


def _were_removed(found: pd.DataFrame, classifier: Any, data: str, reading: Reading, part: Part) -> list[bool]:
    """Whether each label found stands in the data as it was before ones were removed."""
    from dataclasses import replace

    full = read_for(classifier, data, replace(reading, remove_ones=None), Output(quiet=True))
    Y = label_frame(select(full, part, prefer_train=True).Y, classifier.label_names_)
    places = {name: place for place, name in enumerate(Y.columns)}
    values = Y.to_numpy()
    return [bool(values[row, places[label]] == 1) for row, label in zip(found["row"], found["label"], strict=True)]


def _emit(output: Output, found: pd.DataFrame, out: Path | None, title: str) -> None:
    records = [{str(key): value for key, value in record.items()} for record in found.to_dict(orient="records")]
    if "ask" in found:
        found["ask"] = found["ask"].map(", ".join)
    if out is not None:
        write_table(found, out)
        if str(out) == "-":
            return
        output.emit({"out": str(out), "rows": len(found)})
        if not output.json:
            output.note(f"{out}: {len(found)} lines.")
        return
    lines = [tuple(float(v) if isinstance(v, float) else v for v in line) for line in found.itertuples(index=False)]
    output.emit(records, table([str(column) for column in found.columns], lines), title=title)
