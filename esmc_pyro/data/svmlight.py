"""svmlight (libsvm) multi-label files: `label,label index:value index:value ...` a row."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.preprocessing import MultiLabelBinarizer

from esmc_pyro.data.dataset import Dataset, dataset_from
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.lines import Lines
from esmc_pyro.data.pair import stem
from esmc_pyro.data.sparse_text import SparseRows, read_sparse_rows


def read_svmlight(
    path: str | PathLike[str],
    test_path: str | PathLike[str] | None = None,
    *,
    zero_based: bool | Literal["auto"] = "auto",
    name: str | None = None,
) -> Dataset:
    """Read one file, or a training and a test file; both matrices are sparse.

    The labels are those that occur in either file, named by their numbers. Features count from 0 or 1;
    "auto" takes 1 when index 0 never occurs.
    """
    files = [path] if test_path is None else [path, test_path]
    tables = [_read(file) for file in files]
    lowest = min((int(table.X.indices.min()) for table in tables if table.X.nnz), default=0)
    if zero_based is False and lowest == 0:
        raise data_error(path, "feature 0 came, expected features from 1 up because zero_based is False.")
    offset = 1 if zero_based is False or (zero_based == "auto" and lowest > 0) else 0
    n_features = max(table.X.shape[1] for table in tables) - offset
    labels = MultiLabelBinarizer(sparse_output=True).fit([row for table in tables for row in table.labels])
    if not len(labels.classes_):
        raise data_error(path, "holds no label, expected a number before the features of at least one row.")
    parts: dict[str, Any] = {}
    for part, table in zip(("train", "test"), tables, strict=False):
        X, rows = table.X, table.X.shape[0]
        parts[f"X_{part}"] = sparse.csr_array((X.data, X.indices - offset, X.indptr), shape=(rows, n_features))
        parts[f"Y_{part}"] = sparse.csr_array(labels.transform(table.labels), dtype=np.float32)
    names = [f"{int(label)}" for label in labels.classes_]
    return dataset_from(path, name or stem(path), label_names=names, **parts)


def _read(path: str | PathLike[str]) -> SparseRows:
    with Lines(path) as lines:
        rows = read_sparse_rows(lines)
    rows.check_labels()
    return rows
