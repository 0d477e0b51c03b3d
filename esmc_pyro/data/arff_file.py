"""ARFF tables, dense or sparse, for the Mulan and MEKA readers.

liac-arff takes the rows apart, streaming. The header is read here, because liac-arff's pattern for nominal lists takes
time exponential in the length of a malformed list, it passes over header lines it does not know, and it wants a space
where other programs write a tab. It is given a plain header with as many columns instead. Lines are counted here
too: its row generators do not tell which line they were at.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import nan
from os import PathLike
from pathlib import Path
from typing import Any

import arff
import numpy as np
from scipy import sparse

from esmc_pyro.data.arff_header import Attribute, read_header
from esmc_pyro.data.errors import DataError, data_error
from esmc_pyro.data.lines import Lines
from esmc_pyro.data.matrix import Matrix


@dataclass(frozen=True)
class ArffTable:
    """`values` (N, columns): numbers, the position of a nominal value in its declared list, NaN for `?`."""

    path: Path
    relation: str
    attributes: list[Attribute]
    values: Matrix

    def parts(self, labels: set[int]) -> dict[str, Any]:
        """X, Y and their names, `labels` being the columns of Y. Text attributes identify rows and are left out."""
        attributes = list(enumerate(self.attributes))
        Y_columns = [i for i, _ in attributes if i in labels]
        X_columns = [i for i, attribute in attributes if i not in labels and not attribute.is_text]
        if not X_columns or not Y_columns:
            found = f"{len(X_columns)} features and {len(Y_columns)} labels"
            raise data_error(self.path, f"the attributes give {found}, expected at least one of each.")
        Y = self.values[:, Y_columns]
        for place, i in enumerate(Y_columns):
            attribute = self.attributes[i]
            if attribute.is_text:
                raise data_error(self.path, f"label {attribute.name!r} is declared as text, expected {{0,1}}.")
            if attribute.values == ("1", "0"):
                # here the position in the list is the opposite of what the values say
                if not isinstance(Y, np.ndarray):
                    problem = f"label {attribute.name!r} is declared {{1,0}} in a sparse file, expected {{0,1}}."
                    raise data_error(self.path, problem)
                Y[:, place] = 1 - Y[:, place]
        return {
            "X": self.values[:, X_columns],
            "Y": Y,
            "feature_names": [self.attributes[i].name for i in X_columns],
            "label_names": [self.attributes[i].name for i in Y_columns],
        }


def read_arff(path: str | PathLike[str]) -> ArffTable:
    """Read an ARFF file, plain or compressed (.gz, .bz2, .xz)."""
    with Lines(path) as lines:
        text = lines.text()
        relation, attributes = read_header(text, lines)
        rows = (row for line in text if (row := line.strip()) and not row.startswith("%"))
        first = next(rows, None)
        if first is None:
            raise lines.bad("the file ends without a row, expected rows after @data.")
        read = _read_sparse if first.startswith("{") else _read_dense
        values = read(chain([first], rows), attributes, lines)
    return ArffTable(lines.path, relation, attributes, values)


class _Text(dict[str, float]):
    """The codes of a text attribute: it will be left out, so every value is as good as 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


def _codes(attribute: Attribute) -> dict[str, float] | None:
    """What each value of a column stands for, None where it is a number already."""
    if attribute.is_text:
        return _Text()
    if attribute.values is None:
        return None
    return {value: float(i) for i, value in enumerate(attribute.values)}


def _stand_in(attributes: list[Attribute]) -> Iterator[str]:
    """A header with the same columns that liac-arff reads without risk; nominal values come back as text."""
    yield "@relation rows"
    for i, attribute in enumerate(attributes):
        yield f"@attribute a{i} {'NUMERIC' if attribute.is_number else 'STRING'}"
    yield "@data"


def _rows(rows: Iterable[str], attributes: list[Attribute], lines: Lines, kind: int) -> Iterator[Any]:
    """Each row as liac-arff reads it (a list, or a dict of column and value), checked to be what it seems."""
    columns = len(attributes)
    row = ""

    def remembered() -> Iterator[str]:
        nonlocal row
        for row in rows:
            if row.startswith("{") != (kind == arff.LOD_GEN):
                raise lines.bad("the row is dense and rows above are sparse, or the reverse; expected one kind.")
            yield row

    try:
        for parsed in arff.load(chain(_stand_in(attributes), remembered()), return_type=kind)["data"]:
            if kind == arff.LOD_GEN and parsed and "'" not in row and '"' not in row and len(parsed) <= row.count(","):
                raise lines.bad("the row names a column more than once, expected each at most once.")
            yield parsed
    except DataError:
        raise
    except arff.BadDataFormat as error:
        if kind == arff.LOD_GEN:
            problem = f"the row names a column beyond the last, expected columns 0 to {columns - 1}."
        else:
            problem = f"the row has {row.count(',') + 1} values, expected {columns}, one for each @attribute."
        raise lines.bad(problem) from error
    except arff.BadNumericalValue as error:
        raise lines.bad("the row holds text in a numeric column, expected a number or ?.") from error
    except (arff.ArffException, csv.Error, ValueError) as error:
        raise lines.bad("the row cannot be taken apart, expected values between commas.") from error


def _undeclared(lines: Lines, attribute: Attribute, value: object) -> DataError:
    return lines.bad(f"{attribute.name!r} is {str(value)[:40]!r}, expected one of its declared values.")


def _read_dense(rows: Iterable[str], attributes: list[Attribute], lines: Lines) -> np.ndarray:
    codes = [_codes(attribute) for attribute in attributes]
    values = array("d")
    for row in _rows(rows, attributes, lines, arff.DENSE_GEN):
        try:
            values.extend(
                [nan if v is None else v if code is None else code[v] for v, code in zip(row, codes, strict=True)]
            )
        except KeyError as error:
            wrong = next(i for i, code in enumerate(codes) if code is not None and error.args[0] == row[i] not in code)
            raise _undeclared(lines, attributes[wrong], row[wrong]) from error
    return np.frombuffer(values, dtype=np.float64).reshape(-1, len(attributes))


def _read_sparse(rows: Iterable[str], attributes: list[Attribute], lines: Lines) -> sparse.csr_array:
    codes = [_codes(attribute) for attribute in attributes]
    values, columns, starts = array("f"), array("i"), array("q", [0])
    for row in _rows(rows, attributes, lines, arff.LOD_GEN):
        for column, value in row.items():
            code = codes[column]
            try:
                values.append(nan if value is None else value if code is None else code[value])
            except KeyError as error:
                raise _undeclared(lines, attributes[column], value) from error
            columns.append(column)
        starts.append(len(values))
    shape = (len(starts) - 1, len(attributes))
    return sparse.csr_array((np.frombuffer(values, "f4"), np.frombuffer(columns, "i4"), np.array(starts)), shape=shape)
