"""Which format a file has, and which files of a folder belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.extreme import HEADER, read_extreme
from esmc_pyro.data.lines import Lines, plain_path, plain_suffix
from esmc_pyro.data.matlab import read_matlab
from esmc_pyro.data.meka import read_meka
from esmc_pyro.data.mulan import read_mulan
from esmc_pyro.data.npz import read_npz
from esmc_pyro.data.svmlight import read_svmlight
from esmc_pyro.data.table import read_table

READERS: dict[str, Callable[..., Dataset]] = {
    "mulan": read_mulan,
    "meka": read_meka,
    "extreme": read_extreme,
    "svmlight": read_svmlight,
    "matlab": read_matlab,
    "table": read_table,
    "npz": read_npz,
}

_BY_SUFFIX = {
    ".mat": "matlab",
    ".npz": "npz",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "table",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
}
_SUFFIXES = (*_BY_SUFFIX, ".arff", ".txt", ".data")


def find_format(path: Path) -> str:
    """A key of `READERS`: by ending; ARFF by whether a label list lies beside it, text by its first line."""
    suffix = plain_suffix(path)
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if suffix == ".arff":
        return "mulan" if find_label_list(path) else "meka"
    if suffix in (".txt", ".data"):
        with Lines(path) as lines:
            return "extreme" if HEADER.fullmatch(next(iter(lines), b"")) else "svmlight"
    raise data_error(path, f"has the ending {suffix!r}, expected one of {', '.join(_SUFFIXES)}, or say format=.")


def find_label_list(path: Path) -> Path | None:
    """The Mulan .xml that goes with an ARFF file: the same name, with or without `-train` or `-test`."""
    base = plain_path(path).stem
    for ending in ("", "-train", "-test", "_train", "_test"):
        candidate = path.with_name(f"{base.removesuffix(ending)}.xml")
        if candidate.is_file():
            return candidate
    return None


def find_pair(folder: Path) -> tuple[Path, Path | None]:
    """The data of a folder: its training and test file, or its only data file."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and plain_suffix(file) in _SUFFIXES)
    train = [file for file in files if "train" in file.name.lower()]
    test = [file for file in files if "test" in file.name.lower()]
    if len(train) == 1 and len(test) == 1:
        return train[0], test[0]
    if len(files) == 1:
        return files[0], None
    found = ", ".join(file.name for file in files[:5]) or "no data file"
    raise data_error(
        folder, f"holds {found}, expected one data file, or one with 'train' and one with 'test' in its name."
    )
