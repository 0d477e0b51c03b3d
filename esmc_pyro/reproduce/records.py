"""Results in CSV files: a line is added whole or does not count, and a finished one is found again."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WHOLE = "whole"  # the last column: "yes" on every line that was written to its end


class Records:
    """Lines of a CSV file by their ``keys``; ``texts`` and ``numbers`` are the columns that follow.

    A line that was cut short, or that holds what no number can be read from, is not counted; ``damaged`` says how many
    there are. The cell it stood for is run again and added as a new line.
    """

    def __init__(self, path: Path, keys: Sequence[str], texts: Sequence[str], numbers: Sequence[str]) -> None:
        self.path, self.keys = path, tuple(keys)
        self.texts, self.numbers = tuple(texts), tuple(numbers)
        self.columns = (*self.keys, *self.texts, *self.numbers, WHOLE)
        self.lines: dict[tuple[str, ...], dict[str, Any]] = {}
        self.damaged = 0
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            # "\ufffd" for what is no text: such a line is damaged, the others are not
            text = self.path.read_bytes().decode("utf-8", errors="replace").replace("\0", "\ufffd")
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read ({error.strerror}).") from None
        head, *rest = text.split("\n")
        if not rest and not head:
            return
        if head.rstrip("\r") != ",".join(self.columns):
            raise ValueError(f"{self.path} has other columns than results of this version; name another folder.")
        for line in filter(None, (line.rstrip("\r") for line in rest)):
            record = self._parse(line)
            if record is None:
                self.damaged += 1
            else:
                self.lines[self._key(record)] = record

    def _parse(self, line: str) -> dict[str, Any] | None:
        try:
            values = next(csv.reader([line], strict=True))
            record: dict[str, Any] = dict(zip(self.columns, values, strict=True))
            return record | {name: float(record[name]) for name in self.numbers} if record[WHOLE] == "yes" else None
        except (ValueError, StopIteration, csv.Error):
            return None

    def _key(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(record[name]) for name in self.keys)

    def get(self, **key: Any) -> dict[str, Any] | None:
        """The line with these keys, if there is one."""
        return self.lines.get(self._key(key))

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a line, in one write that reaches the disk before the line counts."""
        values = [record[name] for name in self.columns[:-1]]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            begun = file.seek(0, os.SEEK_END) > 0
            if begun:
                file.seek(-1, os.SEEK_END)
            # what a power cut left without its end must not swallow the new line
            before = ("\n" if file.read(1) != b"\n" else "") if begun else ",".join(self.columns) + "\n"
            file.write((before + _line([*values, "yes"])).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        # as if it had been read: a line is the same before and after a restart
        key = self._key(record)
        numbers = {name: float(record[name]) for name in self.numbers}
        self.lines[key] = dict(record) | dict(zip(self.keys, key, strict=True)) | numbers


def _line(values: Sequence[Any]) -> str:
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerow(
        [" ".join(v.split()) if isinstance(v, str) else v for v in values]
    )
    return content.getvalue()
