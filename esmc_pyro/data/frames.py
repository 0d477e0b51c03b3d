"""Tables as pandas frames, after a look at whether every line is as wide as the first."""

from __future__ import annotations

import csv
from io import StringIO
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from esmc_pyro.data.errors import check_column_count, data_error
from esmc_pyro.data.lines import COMPRESSED, Lines, plain_suffix

_UNKNOWN = ["", "NA", "NaN", "nan", "?"]


def read_frame(path: str | PathLike[str], text_column: str | None = None) -> pd.DataFrame:
    """Read .csv, .tsv (plain or compressed) or .parquet.

    Column names are texts that differ, without the blanks around them, rows at least one; `text_column` is kept as it
    is written. Where the first line of a text lacks the separator of its ending, a comma, semicolon or tab in it is.
    """
    file = Path(path)
    kind = plain_suffix(file)
    if kind == ".parquet":
        frame = _read_parquet(file)
    else:
        frame = _read_text(file, "\t" if kind == ".tsv" else ",", text_column)
    if frame.empty:
        raise data_error(path, "holds no row, expected at least one below the column names.")
    return frame


def numbers(path: str | PathLike[str], frame: pd.DataFrame, columns: list[str], expected: str) -> np.ndarray:
    """(N, len(columns)) float64, NaN for empty cells; text is refused with its place."""
    values = np.empty((len(frame), len(columns)))
    for i, name in enumerate(columns):
        column = frame[name]
        if column.dtype.kind not in "biufO":
            raise data_error(path, f"column {name!r} holds {column.dtype} values, expected {expected}.")
        try:
            converted = pd.to_numeric(column, errors="coerce")
        except TypeError as error:  # lists and other nested values
            raise data_error(path, f"column {name!r} holds nested values, expected {expected}.") from error
        wrong = (converted.isna() & column.notna()).to_numpy(dtype=bool)
        if wrong.any():
            row = int(np.argmax(wrong))
            cell = str(column.iloc[row])[:40]
            raise data_error(path, f"column {name!r} holds {cell!r} at row {row}, expected {expected}.")
        values[:, i] = converted.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _read_text(path: Path, delimiter: str, text_column: str | None) -> pd.DataFrame:
    delimiter = _delimiter(path, delimiter)
    names, is_utf8 = _check_widths(path, delimiter)
    content: Path | StringIO = path
    if not is_utf8:
        with Lines(path) as lines:
            content = StringIO("".join(lines.text()))
    try:
        return pd.read_csv(
            content,
            sep=delimiter,
            skipinitialspace=True,
            header=0,
            names=names,
            index_col=False,
            dtype={text_column: str} if text_column in names else None,
            keep_default_na=False,
            na_values={name: [""] if name == text_column else _UNKNOWN for name in names},
            compression="infer" if is_utf8 and path.suffix.lower() in COMPRESSED else None,
            low_memory=False,
        )
    except (ValueError, OverflowError) as error:  # what pandas raises for a bad file is a ValueError
        raise data_error(path, f"cannot be read as a table ({error}).") from error


def _delimiter(path: Path, expected: str) -> str:
    """The separator: the `expected` one, or another if the first line is one name with that in it.

    Decimal commas, which go with semicolons, are text to pandas, and `numbers` refuses them.
    """
    with Lines(path) as lines:
        try:
            header = next((row for row in csv.reader(lines.text(), delimiter=expected) if row), [])
        except csv.Error:  # `_check_widths` says what is wrong
            header = []
    if len(header) != 1:
        return expected
    return next((sign for sign in ",;\t" if sign in header[0] and sign != expected), expected)


def _check_widths(path: Path, delimiter: str) -> tuple[list[str], bool]:
    """The column names, and whether all is UTF-8, once every line has as many values as there are columns.

    Pandas would fill a short line up without a word.
    """
    with Lines(path) as lines:
        rows = csv.reader(lines.text(), delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            names = next(([name.strip() for name in row] for row in rows if row), None)
            if names is None:
                raise data_error(path, "is empty, expected a line of column names.")
            check_column_count(path, "the number of columns", len(names))
            if not all(names):
                place = names.index("") + 1
                raise lines.bad(f"column {place} has no name, expected one (pandas writes its index so: index=False).")
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise lines.bad(f"the column name {twice!r} is there more than once, expected names that differ.")
            for row in rows:
                if row and len(row) != len(names):
                    raise lines.bad(f"the line has {len(row)} values, expected {len(names)}, one for each column.")
        except csv.Error as error:
            raise lines.bad(f"the line cannot be taken apart ({error}), expected values and closed quotes.") from error
        return names, lines.is_utf8


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise data_error(path, "needs the package pyarrow to be read, expected it to be installed.") from error
    except FileNotFoundError as error:
        raise data_error(path, "cannot be opened (no such file).") from error
    except Exception as error:  # a damaged file makes Arrow fail in any way: its own errors, OSError, KeyError
        raise data_error(path, f"cannot be read as Parquet ({type(error).__name__}).") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.columns.has_duplicates:
        raise data_error(path, "has a column name twice, expected names that differ.")
    return frame
