"""The extreme-classification text format: a line `N F K`, then `label,label index:value index:value ...` a row."""

from __future__ import annotations

import re
from os import PathLike

import numpy as np
from scipy import sparse

from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import check_column_count, data_error
from esmc_pyro.data.lines import Lines
from esmc_pyro.data.pair import Parts, dataset_of_pair
from esmc_pyro.data.sparse_text import SparseRows, read_sparse_rows

HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,12})\s+(\d{1,12})\s*")


def read_extreme(
    path: str | PathLike[str], test_path: str | PathLike[str] | None = None, *, name: str | None = None
) -> Dataset:
    """Read one file, or a training and a test file; both matrices are sparse, labels and features count from 0.

    The sizes in the header are compared with what was read; nothing is allocated because of them.
    """
    return dataset_of_pair(_parts, path, test_path, name)


def _parts(path: str | PathLike[str]) -> Parts:
    with Lines(path) as lines:
        header = next(iter(lines), b"")
        found = HEADER.fullmatch(header)
        if found is None:
            shown = header[:40].decode("latin-1").strip()
            raise lines.bad(f"the first line is {shown!r}, expected three numbers: rows, features and labels.")
        n_rows, n_features, n_labels = (int(size) for size in found.groups())
        check_column_count(lines.path, "the number of features in the first line", n_features)
        check_column_count(lines.path, "the number of labels in the first line", n_labels)
        rows = read_sparse_rows(lines)
    if rows.X.shape[0] != n_rows:
        read = f"{rows.X.shape[0]} rows came (blank lines are none)"
        raise data_error(path, f"{read}, expected {n_rows}, as the first line says.")
    _check_features(rows, n_features)
    X = sparse.csr_array((rows.X.data, rows.X.indices, rows.X.indptr), shape=(n_rows, n_features))
    return {"X": X, "Y": _labels(rows, n_labels), "feature_names": (), "label_names": ()}


def _check_features(rows: SparseRows, n_features: int) -> None:
    beyond = rows.X.indices >= n_features
    if beyond.any():
        at = int(np.argmax(beyond))
        row = int(np.searchsorted(rows.X.indptr, at, side="right")) - 1
        raise rows.bad(row, f"feature {rows.X.indices[at]} came, expected 0 to {n_features - 1}.")


def _labels(rows: SparseRows, n_labels: int) -> sparse.csr_array:
    rows.check_labels()
    columns, starts = [], [0]
    for row, labels in enumerate(rows.labels):
        if labels and max(labels) >= n_labels:
            raise rows.bad(row, f"label {max(labels):g} came, expected 0 to {n_labels - 1}.")
        columns.extend(sorted({int(label) for label in labels}))
        starts.append(len(columns))
    ones = np.ones(len(columns), dtype=np.float32)
    return sparse.csr_array(
        (ones, np.array(columns, dtype=np.int32), np.array(starts)), shape=(len(rows.labels), n_labels)
    )
