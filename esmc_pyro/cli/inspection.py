"""`esmc inspect`: what a data source or a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from esmc_pyro.cli.completion import complete_data
from esmc_pyro.cli.model import describe_members, is_model_file, load_model
from esmc_pyro.cli.output import Output, table
from esmc_pyro.cli.source import DIGITS, Reading

SHOWN = 10


def inspect(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA|MODEL",
            show_default=False,
            help="A data source or a model file.",
            autocompletion=complete_data,
        ),
    ],
    reading: Reading,
    output: Output,
) -> None:
    """Say what a data source or a model holds: sizes, densities, the most frequent labels; or settings and history.

    \b
    Examples:
      esmc inspect corel5k
      esmc inspect songs.csv --tag-column genres --json
      esmc inspect songs.esmc
    """
    reading.check(source)
    if source != DIGITS and is_model_file(Path(source)):
        _show_model(Path(source), output)
    else:
        _show_data(source, reading, output)


def _show_data(source: str, reading: Reading, output: Output) -> None:
    import numpy as np

    dataset = reading.read(source)
    summary = dataset.summary()
    Y: Any = dataset.whole().Y_train
    dense = Y.toarray() if hasattr(Y, "indptr") else Y
    counts = (dense == 1).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    frequent = {dataset.label_names[i]: int(counts[i]) for i in order[:SHOWN]}
    summary["never_seen_labels"] = int((counts == 0).sum())
    summary["rows_without_labels"] = int(((dense != 1).all(axis=1)).sum())
    output.emit(
        {"kind": "data", **summary, "frequent_labels": frequent},
        table(("data", ""), [(key.replace("_", " "), value) for key, value in summary.items()]),
        table(("most frequent label", "rows"), frequent.items()),
    )


def _show_model(path: Path, output: Output) -> None:
    classifier = load_model(path)
    posterior, model = classifier.posterior_, classifier.model_
    settings = getattr(classifier, "settings_", None)
    content: dict[str, Any] = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "features": int(classifier.n_features_in_),
        "labels": int(classifier.n_labels_),
        "likelihood": type(model.likelihood).__name__,
        "members": len(classifier.stack_.members),  # what follows is of the heaviest
        "guide": type(posterior.guide).__name__,
        "layers": [f"{layer.outputs} outputs, {layer.pseudo_count} pseudo-instances" for layer in model.layers],
        "feature_map": str(classifier.feature_map_),
        "threshold": float(classifier.threshold_),
        "epochs": len(posterior.history),
        "interrupted": bool(posterior.interrupted),
    }
    if settings is not None:
        content["second_layer"] = settings.second_layer
    if len(posterior.history):
        content["elbo"] = float(posterior.history["elbo"].iloc[-1])
    members, chosen = describe_members(classifier)
    asked = {key: value for key, value in classifier.get_params().items() if key != "verbose"}
    names = [str(name) for name in classifier.label_names_]
    rows = [
        (key.replace("_", " "), "; ".join(value) if isinstance(value, list) else value)
        for key, value in content.items()
    ]
    settings_asked = table(("setting", ""), [(key, str(value)) for key, value in asked.items()])
    tables = [table(("model", ""), rows), settings_asked, *chosen]
    output.emit({"kind": "model", **content, "settings": asked, **members, "label_names": names}, *tables)
