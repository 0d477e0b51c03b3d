"""`esmc evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import Meaningless, WrongUsage
from esmc_pyro.cli.model import ModelArgument, load_model
from esmc_pyro.cli.output import Output, table
from esmc_pyro.cli.rows import Part, PartOption, Rows, known_entries, named, read_for, select
from esmc_pyro.cli.source import DataArgument, Reading

if TYPE_CHECKING:
    from esmc_pyro import Dataset, ESMCClassifier

LEAST_ROWS = 3  # with known labels, for propensities


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    reading: Reading,
    output: Output,
    part: PartOption = Part.auto,
    draws: Annotated[int, typer.Option(min=2, help="Bootstrap draws over rows, for the intervals.")] = 500,
    level: Annotated[float, typer.Option(help="What the intervals hold.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare a model's rankings and probabilities with the labels of DATA; every metric with its interval.

    Unknown labels are left out. Intervals say how much other rows would move a figure, not how much another fit would.

    \b
    Examples:
      esmc evaluate corel5k.esmc corel5k
      esmc evaluate songs.esmc songs.csv --tag-column genres --test-fraction 0.2
      esmc evaluate songs.esmc new.csv --tag-column genres --json
    """
    reading.check(data)
    if not 0 < level < 1:
        raise WrongUsage(f"--level is {level:g}, expected a number between 0 and 1.")
    classifier = load_model(model)
    dataset = read_for(classifier, data, reading, output)
    rows = select(dataset, part)
    check_labels(dataset.name, rows)
    metrics = measure(classifier, dataset, rows, draws=draws, level=level, seed=seed)
    result = {"data": dataset.name, "part": rows.part, "rows": int(rows.X.shape[0]), "level": level, "metrics": metrics}
    columns = ("metric", "value", "standard error", "low", "high")
    lines = [(name, *entry.values()) for name, entry in metrics.items()]
    output.emit(result, table(columns, lines), title=f"{dataset.name}, {rows.part} rows: {result['rows']}")


def check_labels(name: str, rows: Rows) -> None:
    """Refuse to measure against labels that are all unknown, or all the same."""
    import numpy as np

    if not known_entries(rows.Y):
        raise Meaningless(f"{name} has no known label in its {rows.part} rows, so there is nothing to compare with.")
    values = rows.Y.toarray() if hasattr(rows.Y, "indptr") else rows.Y
    known = values[~np.isnan(values)]
    if (known == known[0]).all():
        raise Meaningless(
            f"{name}: every known label of its {rows.part} rows is {known[0]:g}, no ranking can be judged."
        )


def measure(
    classifier: ESMCClassifier, dataset: Dataset, rows: Rows, *, draws: int, level: float, seed: int
) -> dict[str, dict[str, Any]]:
    """``value``, ``standard_error``, ``low``, ``high`` of each metric; no interval for what is no mean over rows."""
    import numpy as np

    from esmc_pyro import metrics

    X = named(classifier, rows.X)
    scores, probabilities = (np.asarray(f(X)) for f in (classifier.decision_function, classifier.predict_proba))
    Y_train = dataset.Y_train if rows.part == "test" and _rows_known(dataset.Y_train) >= LEAST_ROWS else None
    values = metrics.evaluate(rows.Y, scores, Y_train=Y_train, probabilities=probabilities)
    spread = metrics.bootstrap_intervals(rows.Y, scores, Y_train=Y_train, draws=draws, level=level, seed=seed)
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        found[name] = {"value": value, "standard_error": None, "low": None, "high": None}
        if name in spread.index:
            found[name] |= {key: float(spread[key][name]) for key in ("standard_error", "low", "high")}
    return found


def _rows_known(Y: Any) -> int:
    import numpy as np

    values = Y.toarray() if hasattr(Y, "indptr") else Y
    return int((~np.isnan(values)).any(axis=1).sum())
