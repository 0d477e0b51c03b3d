"""Data as a fitted model needs it: its features and labels by name, and the rows that a command is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import Failure
from esmc_pyro.cli.output import Output
from esmc_pyro.cli.source import DIGITS, Reading

if TYPE_CHECKING:
    import pandas as pd

    from esmc_pyro import Dataset, ESMCClassifier


class Part(StrEnum):
    """Which rows of DATA."""

    auto = "auto"
    train = "train"
    test = "test"
    all = "all"


PartOption = Annotated[Part, typer.Option(help="Which rows; auto is the test rows where there are any, else all.")]
TrainOption = Annotated[Part, typer.Option(help="Which rows; auto is the training rows.")]


@dataclass
class Rows:
    """Some rows: ``X`` (n x F), ``Y`` (n x K, None if the source has no labels), and what they are called.

    ``numbers`` (n) are the rows of DATA that they are, or, where DATA comes with its split, of their part.
    """

    X: Any
    Y: Any
    part: str
    numbers: Any


def read_for(
    classifier: ESMCClassifier, source: str, reading: Reading, output: Output, *, labels: bool = True
) -> Dataset:
    """DATA with the model's features and labels in the model's order.

    Without ``labels`` a table needs no label columns; then every label is unknown.
    """
    reading.check(source)
    if not labels and (columns := _feature_names(classifier)) is not None and _is_bare_table(source, reading):
        X = read_features(source, columns, "the model")
        return reading.cut(_unlabelled(source, X, columns, classifier.label_names_))
    bare = None if labels else bare_npz(source, reading, classifier.label_names_)
    dataset = reading.read(source, classifier.label_names_) if bare is None else reading.cut(bare)
    sparse_labels = reading.tag_column is not None or _format(source, reading) == "svmlight"
    dataset = with_features(dataset, _feature_names(classifier), int(classifier.n_features_in_), "the model")
    return _with_labels(classifier, dataset, 0.0 if sparse_labels else math.nan, output, needed=labels)


def select(dataset: Dataset, part: Part, *, prefer_train: bool = False) -> Rows:
    """The rows of ``part``."""
    if part is Part.auto:
        part = Part.train if prefer_train else Part.test
        if not dataset.n_test:
            part = Part.all
    if part is Part.test and not dataset.n_test:
        raise Failure(f"{dataset.name} has no test rows, expected a split or --test-fraction.")
    if part is Part.all:
        dataset = dataset.whole()
    X, Y = (dataset.X_test, dataset.Y_test) if part is Part.test else (dataset.X_train, dataset.Y_train)
    return Rows(X, Y, str(part), dataset.row_numbers(test=part is Part.test))


def known_entries(Y: Any) -> int:
    """How many labels are not NaN."""
    import numpy as np

    values = Y.data if hasattr(Y, "indptr") else Y
    return int(Y.shape[0] * Y.shape[1] - np.isnan(values).sum())


def named(classifier: ESMCClassifier, X: Any) -> Any:
    """``X`` as a frame with the model's feature names, if it was fitted with names."""
    import pandas as pd

    names = _feature_names(classifier)
    return X if names is None or hasattr(X, "indptr") else pd.DataFrame(X, columns=names)


def label_frame(Y: Any, names: Any) -> pd.DataFrame:
    """``Y`` as a frame, so that the estimator keeps the label names."""
    import pandas as pd

    return pd.DataFrame(Y.toarray() if hasattr(Y, "indptr") else Y, columns=list(names))


def _feature_names(classifier: ESMCClassifier) -> list[str] | None:
    names = getattr(classifier, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _by_name(dataset: Dataset, field: str, wanted: Sequence[str]) -> bool:
    """Whether the names in this field of the data can be compared with those of a model, or of other data.

    A file without names has only places. Of `wanted` names that are x0, x1, ... (y0, y1, ...) nobody knows whether they
    were in a file: they are places too, unless the data has one of them.
    """
    strangers = set(wanted).isdisjoint(getattr(dataset, field))
    return field not in dataset.numbered and not (
        _counts(wanted, {"feature_names": "x", "label_names": "y"}[field]) and strangers
    )


def _counts(names: Sequence[str], letter: str) -> bool:
    return all(name == f"{letter}{place}" for place, name in enumerate(names))


def _format(source: str, reading: Reading) -> str | None:
    from esmc_pyro.data import KNOWN_SETS
    from esmc_pyro.data.formats import find_format, find_pair

    if reading.format is not None or source == DIGITS or source in KNOWN_SETS:
        return reading.format
    path = Path(source)
    return find_format(find_pair(path)[0] if path.is_dir() else path)


def is_file(source: str, reading: Reading, form: str) -> bool:
    """Whether ``source`` is a file of this format."""
    from esmc_pyro.data import KNOWN_SETS

    named = source == DIGITS or source in KNOWN_SETS
    return not named and Path(source).is_file() and _format(source, reading) == form


def _is_plain(reading: Reading) -> bool:
    """Whether no option is about labels, or about rows that are split."""
    return not (reading.reader_options() or reading.test or reading.test_fraction or reading.remove_ones)


def _is_bare_table(source: str, reading: Reading) -> bool:
    return is_file(source, reading, "table") and _is_plain(reading)


def bare_npz(source: str, reading: Reading, labels: Sequence[str]) -> Dataset | None:
    """The features of an NPZ file that has no labels, as rows whose ``labels`` are all unknown; None of other files."""
    from esmc_pyro.data.npz import read_npz_features

    found = read_npz_features(source) if is_file(source, reading, "npz") and _is_plain(reading) else None
    return None if found is None else _unlabelled(source, *found, labels)


def read_features(source: str, columns: list[str], of: str) -> Any:
    """These columns of a table, the features of ``of``: rows x F."""
    from esmc_pyro.data import DataError
    from esmc_pyro.data.frames import numbers, read_frame

    frame = read_frame(source)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise DataError(f"{source}: has no column {missing[0]!r}, expected the {len(columns)} features of {of}.")
    return numbers(source, frame, columns, "a number")


def _unlabelled(source: str, X: Any, features: Sequence[str], labels: Sequence[str]) -> Dataset:
    """Rows ``X`` (n x F) whose labels are all unknown."""
    import numpy as np

    from esmc_pyro.data.dataset import dataset_from

    Y = np.full((X.shape[0], len(labels)), np.nan, dtype=np.float32)
    return dataset_from(
        source, Path(source).stem, X_train=X, Y_train=Y, feature_names=features, label_names=list(labels)
    )


def with_features(dataset: Dataset, wanted: list[str] | None, width: int, of: str) -> Dataset:
    """``dataset`` with the ``width`` features of ``of``: by their ``wanted`` names where both have some."""
    names = list(dataset.feature_names)
    if wanted is not None and names != wanted and _by_name(dataset, "feature_names", wanted):
        missing = sorted(set(wanted) - set(names))
        if missing:
            raise Failure(f"{dataset.name} has no feature {missing[0]!r}, expected the {width} features of {of}.")
        places = {name: place for place, name in enumerate(names)}
        order = [places[name] for name in wanted]
        parts: dict[str, Any] = {"X_train": dataset.X_train[:, order]}
        if dataset.X_test is not None:
            parts["X_test"] = dataset.X_test[:, order]
        return replace(dataset, feature_names=wanted, **parts)
    if dataset.n_features < width and hasattr(dataset.X_train, "indptr"):
        return _widened(dataset, width)
    if dataset.n_features != width:
        raise Failure(f"{dataset.name} has {dataset.n_features} features, expected the {width} of {of}.")
    return dataset


def _widened(dataset: Dataset, width: int) -> Dataset:
    """Sparse rows of a file whose last features are zero everywhere: such a file does not say how wide it is."""
    parts: dict[str, Any] = {}
    for part in ("X_train", "X_test"):
        X = getattr(dataset, part)
        if X is not None:
            parts[part] = X.copy()
            parts[part].resize(X.shape[0], width)
    return replace(dataset, feature_names=(), **parts)


def _with_labels(
    classifier: ESMCClassifier, dataset: Dataset, absent: float, output: Output, *, needed: bool
) -> Dataset:
    """Labels in the model's order; ``absent`` is the value of those that the data does not speak of.

    If they are ``needed``, data whose labels cannot be those of the model is refused.
    """
    import numpy as np

    wanted, names = list(classifier.label_names_), list(dataset.label_names)
    if names == wanted:
        return dataset
    by_name = _by_name(dataset, "label_names", wanted)
    if not by_name and len(names) == len(wanted):
        return replace(dataset, label_names=wanted)
    if needed and not by_name:
        raise Failure(f"{dataset.name} has {len(names)} labels, expected the {len(wanted)} of the model.")
    if needed and not set(names) & set(wanted):
        raise Failure(f"{dataset.name} has none of the model's labels, expected some of them ({wanted[0]!r}, ...).")
    strange = [name for name in names if name not in set(wanted)]
    if needed and strange and by_name and _counts(wanted, "y"):
        raise Failure(
            f"{dataset.name} has a label {strange[0]!r} beside some of the model's, expected {wanted[0]!r} to "
            f"{wanted[-1]!r}: labels that may have been counted from another number are not guessed at."
        )
    if strange:
        output.note(f"{len(strange)} labels that the model does not know are left out, the first is {strange[0]!r}.")
    places = {name: place for place, name in enumerate(names)}
    parts: dict[str, Any] = {}
    for part in ("Y_train", "Y_test"):
        Y = getattr(dataset, part)
        if Y is not None:
            given = Y.toarray() if hasattr(Y, "indptr") else Y
            parts[part] = np.full((len(given), len(wanted)), absent, dtype=np.float32)
            for column, name in enumerate(wanted):
                if name in places:
                    parts[part][:, column] = given[:, places[name]]
    return replace(dataset, label_names=wanted, **parts)
