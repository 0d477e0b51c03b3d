"""Lines of a text file, plain or compressed, that know their numbers."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO

from esmc_pyro.data.errors import MAX_LINE_BYTES, DataError, data_error

COMPRESSED = (".gz", ".bz2", ".xz")


def plain_path(path: Path) -> Path:
    """The path without the ending of its compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


def plain_suffix(path: Path) -> str:
    """The ending that tells the format, compression and upper case aside."""
    return plain_path(path).suffix.lower()


class Lines:
    """Iterate over the lines (bytes, with their line end) of a file; `number` is the line last given, from 1.

    Use it in a `with` block. Iterating again goes on where the last loop stopped.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.number = 0
        self.is_utf8 = True  # as far as `text` has come

    def __enter__(self) -> Lines:
        try:
            self._file = _open(self.path)
        except OSError as error:
            raise data_error(self.path, f"cannot be opened ({error.strerror}).") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        while line := self._next():
            self.number += 1
            if len(line) > MAX_LINE_BYTES:
                raise self.bad(f"the line is longer than {MAX_LINE_BYTES} bytes.")
            yield line

    def text(self) -> Iterator[str]:
        """The lines as text: UTF-8, or Latin-1 for a line that is not (older files often are)."""
        for line in self:
            if self.number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.is_utf8 = False
                yield line.decode("latin-1")

    def bad(self, problem: str) -> DataError:
        """A `DataError` about the line last given."""
        return data_error(self.path, problem, self.number or None)

    def _next(self) -> bytes:
        try:
            return self._file.readline(MAX_LINE_BYTES + 1)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise data_error(self.path, f"cannot be read after line {self.number} ({error}).") from error


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".bz2":
            return bz2.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
    return open(path, "rb")
