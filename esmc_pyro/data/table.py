"""Tables: CSV, TSV and Parquet, with a column for each label or one column of delimited tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.preprocessing import MultiLabelBinarizer

from esmc_pyro.data.dataset import Dataset, dataset_from
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.frames import numbers, read_frame
from esmc_pyro.data.pair import stem

DEFAULT_PREFIX = "label_"


@dataclass(frozen=True)
class LabelColumns:
    """Where a table keeps its labels: columns by name, columns by prefix, or one column of tags."""

    names: Sequence[str] | None = None
    prefix: str | None = None
    tags: str | None = None
    separator: str = ";"


def read_table(
    path: str | PathLike[str],
    test_path: str | PathLike[str] | None = None,
    *,
    label_columns: Sequence[str] | None = None,
    label_prefix: str | None = None,
    tag_column: str | None = None,
    tag_separator: str = ";",
    drop: Sequence[str] = (),
    name: str | None = None,
) -> Dataset:
    """Read one table, or a training and a test table with the same columns; the first line names the columns.

    Labels are the `label_columns`, or the columns that start with `label_prefix` ("label_" when nothing is said; the
    prefix is no part of the label's name), holding 0, 1 or nothing (unknown). Or they are the tags in `tag_column`,
    `tag_separator` between them; an empty cell means no tag. `drop` names columns to leave out; all others
    are features and must hold numbers.
    """
    given = [value for value in (label_columns, label_prefix, tag_column) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{len(given)} of label_columns, label_prefix and tag_column are given, expected one at most.")
    if isinstance(label_columns, str) or isinstance(drop, str):
        raise ValueError("label_columns or drop is one text, expected a list of column names.")
    if not tag_separator:
        raise ValueError("tag_separator is empty, expected at least one character.")
    where = LabelColumns(label_columns, label_prefix or (None if given else DEFAULT_PREFIX), tag_column, tag_separator)
    frames = {"train": (path, read_frame(path, tag_column))}
    if test_path is not None:
        frames["test"] = (test_path, read_frame(test_path, tag_column))
    labels = _label_names(path, frames["train"][1], where)
    features = [column for column in frames["train"][1].columns if column not in {*labels, *drop}]
    binarizer = None
    if where.tags is not None:
        rows = [tags for file, frame in frames.values() for tags in _tags(file, frame, where)]
        binarizer = MultiLabelBinarizer(sparse_output=True).fit(rows)
        if not len(binarizer.classes_):
            raise data_error(path, f"column {where.tags!r} holds no tag, expected at least one.")
    if not features:
        raise data_error(path, "has no column left for features, expected at least one.")
    parts: dict[str, Any] = {}
    for part, (file, frame) in frames.items():
        for column in (*labels, *features, *drop):
            if column not in frame.columns:
                raise data_error(file, f"has no column {column!r}, expected it among {_some(list(frame.columns))}.")
        parts[f"X_{part}"] = numbers(file, frame, features, "a number")
        if binarizer is None:
            parts[f"Y_{part}"] = numbers(file, frame, labels, "0, 1 or nothing")
        else:
            parts[f"Y_{part}"] = sparse.csr_array(binarizer.transform(_tags(file, frame, where)), dtype=np.float32)
    names = labels if binarizer is None else [str(tag) for tag in binarizer.classes_]
    if where.prefix is not None:
        names = [label.removeprefix(where.prefix) or label for label in labels]
    return dataset_from(path, name or stem(path), feature_names=features, label_names=names, **parts)


def _label_names(path: str | PathLike[str], frame: pd.DataFrame, where: LabelColumns) -> list[str]:
    """The columns that are no features: the labels, or the one column of tags."""
    if where.tags is not None:
        return [where.tags]
    if where.prefix is None:
        return list(where.names or ())
    labels = [column for column in frame.columns if column.startswith(where.prefix)]
    if not labels:
        ways = "say label_columns, label_prefix or tag_column"
        problem = f"no column starts with {where.prefix!r}, expected labels among {_some(list(frame.columns))}: {ways}."
        raise data_error(path, problem)
    return labels


def _tags(path: str | PathLike[str], frame: pd.DataFrame, where: LabelColumns) -> list[set[str]]:
    if where.tags not in frame.columns:
        raise data_error(path, f"has no column {where.tags!r}, expected it among {_some(list(frame.columns))}.")
    cells = frame[where.tags].astype(object)
    cells = cells.where(cells.notna(), "").astype(str)
    return [{tag.strip() for tag in cell.split(where.separator)} - {""} for cell in cells]


def _some(columns: list[str]) -> str:
    shown = ", ".join(repr(column) for column in columns[:6])
    return shown if len(columns) <= 6 else f"{shown} and {len(columns) - 6} more"
