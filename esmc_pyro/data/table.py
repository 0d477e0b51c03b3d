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
_LISTS = (list, tuple, set, frozenset, np.ndarray)


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
    known_tags: Sequence[str] = (),
    name: str | None = None,
) -> Dataset:
    """Read one table, or a training and a test table with the same columns; the first line names the columns.

    Labels are the `label_columns`, or the columns that start with `label_prefix` ("label_" when nothing is said; the
    prefix is no part of the label's name), holding 0, 1 or nothing (unknown). Or they are the tags in `tag_column`,
    `tag_separator` between them, or lists of tags in Parquet; an empty cell means no tag. `known_tags` are the
    labels where no row has any. `drop` names columns to leave out, labels too; all others are features and must hold
    numbers.
    """
    given = [value for value in (label_columns, label_prefix, tag_column) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{len(given)} of label_columns, label_prefix and tag_column are given, expected one at most.")
    if isinstance(label_columns, str) or isinstance(drop, str):
        raise ValueError("label_columns or drop is one text, expected a list of column names.")
    if not tag_separator:
        raise ValueError("tag_separator is empty, expected at least one character.")
    if tag_column is not None and tag_column in drop:
        raise ValueError(f"drop names {tag_column!r}, expected the tag_column to stay.")
    where = LabelColumns(label_columns, label_prefix or (None if given else DEFAULT_PREFIX), tag_column, tag_separator)
    frames = {"train": (path, read_frame(path, tag_column))}
    if test_path is not None:
        frames["test"] = (test_path, read_frame(test_path, tag_column))
    labels = _label_names(path, frames["train"][1], where, drop)
    features = [column for column in frames["train"][1].columns if column not in {*labels, *drop}]
    binarizer = None
    if where.tags is not None:
        rows = [tags for file, frame in frames.values() for tags in _tags(file, frame, where)]
        binarizer = MultiLabelBinarizer(sparse_output=True).fit(rows if any(rows) else [set(known_tags)])
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


def _label_names(path: str | PathLike[str], frame: pd.DataFrame, where: LabelColumns, drop: Sequence[str]) -> list[str]:
    """The columns that are no features: the labels, or the one column of tags."""
    if where.tags is not None:
        return [where.tags]
    labels = list(where.names or ())
    if where.prefix is not None:
        labels = [column for column in frame.columns if column.startswith(where.prefix)]
        if not labels:
            among, ways = _some(list(frame.columns)), "say label_columns, label_prefix or tag_column"
            raise data_error(path, f"no column starts with {where.prefix!r}, expected labels among {among}: {ways}.")
    kept = [column for column in labels if column not in drop]
    if labels and not kept:
        raise data_error(path, f"drop names every label ({_some(labels)}), expected at least one to stay.")
    return kept


def _tags(path: str | PathLike[str], frame: pd.DataFrame, where: LabelColumns) -> list[set[str]]:
    if where.tags not in frame.columns:
        raise data_error(path, f"has no column {where.tags!r}, expected it among {_some(list(frame.columns))}.")
    found = []
    for row, cell in enumerate(frame[where.tags].astype(object)):
        tags = [cell]  # as Parquet may have them, one by one
        if isinstance(cell, _LISTS):
            tags = list(cell)
        elif isinstance(cell, str):
            tags = cell.split(where.separator)
        if any(isinstance(tag, (*_LISTS, dict)) for tag in tags):
            raise data_error(path, f"column {where.tags!r} holds nested values at row {row}, expected a list of tags.")
        found.append({str(tag).strip() for tag in tags if not pd.isna(tag)} - {""})
    return found


def _some(columns: list[str]) -> str:
    shown = ", ".join(repr(column) for column in columns[:6])
    return shown if len(columns) <= 6 else f"{shown} and {len(columns) - 6} more"
