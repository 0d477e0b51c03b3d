"""MEKA files: an ARFF table whose relation name says, after `-C`, how many attributes are labels."""

from __future__ import annotations

import re
from os import PathLike

from esmc_pyro.data.arff_file import read_arff
from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.pair import dataset_of_pair

_COUNT = re.compile(r"-C\s+(-?\d{1,9})(?!\d)")


def read_meka(
    path: str | PathLike[str], test_path: str | PathLike[str] | None = None, *, name: str | None = None
) -> Dataset:
    """Read a MEKA file, or a training and a test file: `-C 6` makes the first 6 attributes labels, `-C -6` the last."""

    def parts(file: str | PathLike[str]) -> dict[str, object]:
        table = read_arff(file)
        found = _COUNT.search(table.relation)
        if found is None:
            raise data_error(file, f"the relation is {table.relation[:40]!r}, expected -C and the number of labels.")
        count, columns = int(found[1]), len(table.attributes)
        if not 0 < abs(count) < columns:
            raise data_error(
                file, f"the relation says -C {count}, expected 1 to {columns - 1} of {columns} attributes."
            )
        return table.parts(set(range(count) if count > 0 else range(columns + count, columns)))

    return dataset_of_pair(parts, path, test_path, name)
