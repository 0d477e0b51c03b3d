"""Files that commands write: looked at before the work starts, written whole or not at all."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.failure import WrongUsage

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet", ".npz")

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
TableOption = Annotated[
    Path | None,
    typer.Option("--out", show_default=False, help="FILE.csv, .parquet or .npz, or - for CSV on stdout."),
]


def check_target(path: Path, *, force: bool, option: str = "--out", inputs: Iterable[Path]) -> None:
    """A place where a file can be written, and none of the ``inputs``; missing folders are made when it is."""
    if path.is_dir():
        raise WrongUsage(f"{option} {path} is a folder, expected the name of a file.")
    written = os.path.realpath(path)
    if path.exists() and any(os.path.realpath(file) == written for file in inputs):
        raise WrongUsage(f"{option} {path} is a file that this command reads, expected another.")
    if path.exists() and not force:
        raise WrongUsage(f"{option} {path} exists; say --force to overwrite it.")
    folder = Path(written).parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise WrongUsage(f"{option} {path} lies under {folder}, which is a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise WrongUsage(f"{option} {path} lies in {folder}, where nothing can be written.")


def check_table_target(path: Path | None, *, force: bool, inputs: Iterable[Path]) -> None:
    """As ``check_target``, for a table: the ending says the format."""
    if path is None or str(path) == "-":
        return
    if path.suffix not in TABLES:
        raise WrongUsage(f"--out {path} ends in {path.suffix!r}, expected {', '.join(TABLES)} or - for stdout.")
    check_target(path, force=force, inputs=inputs)
    if path.suffix == ".parquet":
        try:
            import pyarrow  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise WrongUsage(f"--out {path} needs the package pyarrow, expected .csv or .npz without it.") from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """The frame as CSV, Parquet or NPZ (an array for each column), or as CSV on stdout for `-`."""
    from esmc_pyro.files import write_atomic

    if str(path) == "-":
        sys.stdout.write(frame.to_csv(index=False, lineterminator="\n"))
        return
    if path.suffix == ".csv":
        write_atomic(path, frame.to_csv(index=False, lineterminator="\n"))
        return
    content = io.BytesIO()
    if path.suffix == ".parquet":
        frame.to_parquet(content, index=False)
    else:
        write_arrays(content, {str(column): frame[column].to_numpy() for column in frame.columns})
    write_atomic(path, content.getvalue())


def write_arrays(file: Any, arrays: dict[str, Any]) -> None:
    """Arrays as NPZ without pickle: columns of text become NumPy's own."""
    import numpy as np

    made: dict[str, Any] = {}
    for name, values in arrays.items():
        made[name] = values if values.dtype.kind in "biuf" else np.asarray(values, dtype=np.str_)
    np.savez_compressed(file, **made)
