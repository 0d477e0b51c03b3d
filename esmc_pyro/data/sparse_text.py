"""Rows of `labels index:value index:value ...`, which the svmlight and extreme-classification formats share.

scikit-learn reads them; here its errors get the number of the line.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from esmc_pyro.data.errors import DataError, check_column_count, data_error
from esmc_pyro.data.lines import Lines


@dataclass(frozen=True)
class SparseRows:
    """`X` (N, largest index + 1) with indices as written, the labels of each row, and the line each row stood at."""

    lines: Lines
    X: sparse.csr_array
    labels: list[tuple[float, ...]]
    line_numbers: array[int]

    def bad(self, row: int, problem: str) -> DataError:
        """A `DataError` about row `row`."""
        return data_error(self.lines.path, problem, self.line_numbers[row])

    def check_labels(self) -> None:
        """Refuse labels that are no whole numbers from 0 up."""
        for row, labels in enumerate(self.labels):
            for label in labels:
                if not (label >= 0 and label.is_integer()):
                    raise self.bad(row, f"label {label:g} came, expected whole numbers from 0 up.")


class _RowSource:
    """What scikit-learn takes for an open file, with the line number of every row it is given."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.numbers = array("q")

    def __iter__(self) -> Iterator[bytes]:
        for line in self.lines:
            if line.partition(b"#")[0].strip():
                self.numbers.append(self.lines.number)
            yield line

    def read(self) -> bytes:
        """All rows at once; its presence is how scikit-learn knows a file."""
        return b"".join(self)


def read_sparse_rows(lines: Lines) -> SparseRows:
    """Read every row that is left in `lines`; blank lines and `#` comments are no rows."""
    source = _RowSource(lines)
    try:
        X, labels = load_svmlight_file(source, dtype=np.float32, multilabel=True, zero_based=True)
    except DataError:
        raise
    except (ValueError, OverflowError) as error:
        problem = f"the row cannot be read ({error}), expected labels, then index:value pairs with rising indices."
        raise lines.bad(problem) from error
    if not source.numbers:
        raise data_error(lines.path, "holds no row, expected at least one.")
    check_column_count(lines.path, "the largest feature index", X.shape[1] - 1)
    return SparseRows(lines, sparse.csr_array(X), labels, source.numbers)
