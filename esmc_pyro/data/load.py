"""`load_dataset`: a known set by name, or any file or folder in a format that is read here."""

from __future__ import annotations

import inspect
import os
from os import PathLike
from pathlib import Path
from typing import Any

from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import DataError, data_error
from esmc_pyro.data.formats import READERS, find_format, find_label_list, find_pair
from esmc_pyro.data.known import KNOWN_SETS, KnownSet
from esmc_pyro.data.lines import plain_suffix

DATA_VARIABLE = "ESMC_DATA"


def load_dataset(
    source: str | PathLike[str],
    *,
    test: str | PathLike[str] | None = None,
    format: str | None = None,
    test_fraction: float | None = None,
    n_test: int | None = None,
    seed: int = 0,
    whole: bool = False,
    **options: Any,
) -> Dataset:
    """Load a dataset.

    - `source`: a name of `KNOWN_SETS`, looked for in the folder the environment variable ESMC_DATA names; or a
      file; or a folder with one data file or a training and a test file.
    - `test`: the test file that goes with the file `source`.
    - `format`: "mulan", "meka", "extreme", "svmlight", "matlab", "table" or "npz"; found from the file when left out.
    - `test_fraction` or `n_test`, and `seed`: how to split a source that comes without a split, see `Dataset.split`.
      Without them a known set gets its usual test rows, and any other source stays whole.
    - `whole`: leave out, or take away, the split.
    - `options`: what the format's reader takes, such as `xml` (Mulan) or `tag_column` (tables).
    """
    if whole and (test_fraction is not None or n_test is not None):
        raise ValueError("whole is True and a number of test rows is given, expected one of the two.")
    known = KNOWN_SETS.get(source) if isinstance(source, str) else None
    if known is not None and test is None:
        dataset = _read_known(known, options)
        if test_fraction is None and n_test is None and not dataset.n_test:
            n_test = known.n_test
    else:
        dataset = _read(Path(source), None if test is None else Path(test), format, options)
    if whole:
        return dataset.whole()
    if test_fraction is None and n_test is None:
        return dataset
    return dataset.split(test_fraction, n_test=n_test, seed=seed)


def find_files(source: str | PathLike[str]) -> list[Path]:
    """The files that `load_dataset` reads for `source`, the label list of a Mulan file among them."""
    known = KNOWN_SETS.get(source) if isinstance(source, str) else None
    if known is not None:
        pair = _known_pair(known)
    else:
        pair = find_pair(Path(source)) if Path(source).is_dir() else (Path(source), None)
    files = [file for file in pair if file is not None]
    lists = [find_label_list(file) for file in files if plain_suffix(file) == ".arff"]
    return [*files, *(file for file in lists if file is not None)]


def _read_known(known: KnownSet, options: dict[str, Any]) -> Dataset:
    train, test = _known_pair(known)
    dataset = _read(train, test, known.format, {"name": known.name, **options})
    known.check(dataset)
    return dataset


def _known_pair(known: KnownSet) -> tuple[Path, Path | None]:
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        problem = f"{DATA_VARIABLE} is not set, expected the folder that holds {known.name}"
        raise DataError(f"{problem} (for a file or folder of that name write ./{known.name}).")
    folder = Path(root) / known.name
    if not folder.is_dir():
        raise data_error(folder, f"is no folder, expected the files of {known.name} there, as {DATA_VARIABLE} says.")
    return _only(folder, known.train), None if known.test is None else _only(folder, known.test)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise data_error(folder, f"holds {len(found)} files called {pattern}, expected one.")
    return found[0]


def _read(path: Path, test: Path | None, format: str | None, options: dict[str, Any]) -> Dataset:
    if not path.exists():
        names = ", ".join(KNOWN_SETS)
        raise data_error(path, f"does not exist, expected a file, a folder or one of {names}.")
    if path.is_dir():
        if test is not None:
            raise ValueError(f"test is {test} while {path} is a folder, expected test only with a training file.")
        folder = path
        path, test = find_pair(folder)
        options = {"name": folder.resolve().name, **options}
    if format is None:
        format = find_format(path)
    if format not in READERS:
        raise ValueError(f"format is {format!r}, expected one of {', '.join(READERS)}.")
    reader = READERS[format]
    takes = inspect.signature(reader).parameters
    for option in options:
        if option not in takes or option in ("path", "test_path"):
            raise ValueError(f"{option} is no option of the {format} reader, expected one of {_options(takes)}.")
    if format == "mulan" and "xml" not in options:
        xml = find_label_list(path)
        if xml is None:
            raise data_error(path, "has no .xml of the same name beside it, expected one or the option xml.")
        options = {**options, "xml": xml}
    if test is None:
        return reader(path, **options)
    if "test_path" not in takes:
        raise ValueError(f"test is {test}, expected none: a {format} file holds its own test rows.")
    return reader(path, test, **options)


def _options(takes: Any) -> str:
    return ", ".join(name for name in takes if name not in ("path", "test_path"))
