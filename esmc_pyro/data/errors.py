"""The one error every reader raises, and the limits that keep a lying file from taking the machine."""

from __future__ import annotations

from os import PathLike

# The largest public extreme-classification sets have about 3 million labels and 2.4 million features. A short file can
# name a column in the billions; every column costs a name, so what lies beyond is refused.
MAX_COLUMNS = 2**22

# A matrix kept by columns may claim any number of rows; as CSR each row costs 8 bytes.
MAX_SPARSE_ROWS = 2**25

# A compressed file of a few kilobytes can hold one line of gigabytes.
MAX_LINE_BYTES = 2**26


class DataError(ValueError):
    """A data file that cannot be used; the sentence names the file and, where there is one, the line."""


def data_error(path: str | PathLike[str], problem: str, line: int | None = None) -> DataError:
    """A `DataError` with one sentence: file, line if any, and what is wrong."""
    place = f"{path}" if line is None else f"{path}, line {line}"
    return DataError(f"{place}: {problem}")


def check_column_count(path: str | PathLike[str], what: str, count: int) -> None:
    """Refuse a file that speaks of more columns than `MAX_COLUMNS`."""
    if count > MAX_COLUMNS:
        raise data_error(path, f"{what} is {count}, expected at most {MAX_COLUMNS}.")
