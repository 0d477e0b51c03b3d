"""`esmc predict`."""

from __future__ import annotations

import io
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import WrongUsage
from esmc_pyro.cli.model import ModelArgument, load_model
from esmc_pyro.cli.output import Output
from esmc_pyro.cli.rows import Part, PartOption, named, read_for, select
from esmc_pyro.cli.source import DataArgument, Reading
from esmc_pyro.cli.target import ForceOption, TableOption, check_table_target, write_arrays, write_table

if TYPE_CHECKING:
    import pandas as pd

    from esmc_pyro import ESMCClassifier


class Kind(StrEnum):
    """What is predicted."""

    probabilities = "probabilities"
    scores = "scores"
    labels = "labels"


def predict(
    model: ModelArgument,
    data: DataArgument,
    reading: Reading,
    output: Output,
    out: TableOption = None,
    kind: Annotated[
        Kind, typer.Option(help="P(y = 1), calibrated; the scores E[z]; or labels of 0 and 1.")
    ] = Kind.probabilities,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="The k best labels of each row, a line each; with labels: k ones in each row."),
    ] = None,
    part: PartOption = Part.auto,
    force: ForceOption = False,
) -> None:
    """Predict the labels of DATA: a line for each row and a column for each label.

    A table needs the model's feature columns only, an NPZ file its `X`. NPZ that is written holds `row`, `values` and
    `label_names`. `row` counts the rows of DATA from 0; where DATA comes with test rows of its own, those of the part.

    \b
    Examples:
      esmc predict songs.esmc new.csv --out probabilities.csv
      esmc predict songs.esmc new.csv --top-k 3 | head
      esmc predict songs.esmc new.csv --kind labels --out labels.parquet
    """
    reading.check(data)
    check_table_target(out, force=force, inputs=reading.files(data, model))
    if output.json and str(out) == "-":
        raise WrongUsage("--json and --out - both want stdout, expected one of them.")
    classifier = load_model(model)
    rows = select(read_for(classifier, data, reading, output, labels=False), part)
    values = _values(classifier, named(classifier, rows.X), kind, top_k)
    names = [str(name) for name in classifier.label_names_]
    long = top_k is not None and kind is not Kind.labels
    frame = _best(values, rows.numbers, names, top_k or 0, str(kind)) if long else None
    if output.json and out is None:
        typer.echo(_as_json(values, rows.numbers, names, frame, str(kind)))
        return
    target = Path("-") if out is None else out
    if frame is None and target.suffix == ".npz":
        _write_matrix(values, rows.numbers, names, target)
    else:
        write_table(_wide(values, rows.numbers, names) if frame is None else frame, target)
    if str(target) != "-":
        output.emit(
            {"out": str(target), "rows": len(values), "labels": len(names), "kind": str(kind), "part": rows.part}
        )
        if not output.json:
            output.note(f"{target}: {kind} of {len(values)} rows ({rows.part}) and {len(names)} labels.")


def _values(classifier: ESMCClassifier, X: Any, kind: Kind, top_k: int | None) -> Any:
    import numpy as np

    if kind is Kind.scores:
        return np.asarray(classifier.decision_function(X))
    if kind is Kind.probabilities:
        return np.asarray(classifier.predict_proba(X))
    if top_k is not None:
        classifier.set_params(top_k=top_k)
    return np.asarray(classifier.predict(X))


def _wide(values: Any, numbers: Any, names: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(values, columns=names)
    row = "row" if "row" not in names else "row number"
    frame.insert(0, row, numbers)
    return frame


def _best(values: Any, numbers: Any, names: list[str], k: int, kind: str) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    k = min(k, len(names))
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return pd.DataFrame(
        {
            "row": np.repeat(numbers, k),
            "rank": np.tile(np.arange(1, k + 1), len(values)),
            "label": np.asarray(names, dtype=object)[order].ravel(),
            {"probabilities": "probability", "scores": "score"}[kind]: np.take_along_axis(values, order, 1).ravel(),
        }
    )


def _write_matrix(values: Any, numbers: Any, names: list[str], path: Path) -> None:
    import numpy as np

    from esmc_pyro.files import write_atomic

    content = io.BytesIO()
    write_arrays(content, {"row": numbers, "values": values, "label_names": np.asarray(names)})
    write_atomic(path, content.getvalue())


def _as_json(values: Any, numbers: Any, names: list[str], frame: pd.DataFrame | None, kind: str) -> str:
    if frame is not None:
        return json.dumps(frame.to_dict(orient="records"), allow_nan=False, ensure_ascii=False)
    result = {"kind": kind, "labels": names, "rows": numbers.tolist(), "values": values.tolist()}
    return json.dumps(result, allow_nan=False, ensure_ascii=False)
