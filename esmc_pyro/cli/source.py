"""DATA on the command line: a known name, a file, a folder or `digits`, and the options that say how to read it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esmc_pyro.cli.completion import complete_data
from esmc_pyro.cli.failure import WrongUsage
from esmc_pyro.cli.settings import nearest

if TYPE_CHECKING:
    from esmc_pyro.data import Dataset

DIGITS = "digits"
FORMATS = ("mulan", "meka", "extreme", "svmlight", "matlab", "table", "npz")  # the keys of data.formats.READERS

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="A file, a folder, a name under the folder ESMC_DATA, or 'digits' (built-in pictures).",
        autocompletion=complete_data,
    ),
]


@dataclass
class Reading:
    """How DATA is read and split; options of every command that takes DATA."""

    format: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(FORMATS)}; found from the file when left out.", autocompletion=lambda: FORMATS),
    ] = None
    label_columns: Annotated[
        list[str] | None, typer.Option(help="Tables: the label columns, commas between them.", show_default=False)
    ] = None
    label_prefix: Annotated[str | None, typer.Option(help="Tables: label columns start so (label_).")] = None
    tag_column: Annotated[str | None, typer.Option(help="Tables: one column holds all labels of a row.")] = None
    tag_separator: Annotated[str | None, typer.Option(help="Tables: what stands between tags (;).")] = None
    drop: Annotated[
        list[str] | None, typer.Option(help="Tables: columns to leave out, commas between them.", show_default=False)
    ] = None
    xml: Annotated[Path | None, typer.Option(help="Mulan: the label list, if it is not beside the file.")] = None
    test: Annotated[Path | None, typer.Option(help="The file of test rows that goes with the file DATA.")] = None
    test_fraction: Annotated[
        float | None, typer.Option(help="Keep this share of the rows for testing, if DATA has no split.")
    ] = None
    split_seed: Annotated[int, typer.Option(min=0, help="Which random split; the same in every command.")] = 0
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows of each part.")] = None
    remove_ones: Annotated[
        float | None, typer.Option(help="Turn this share of the training ones into zeros, as if never written down.")
    ] = None

    def check(self, source: str) -> None:
        """What can be seen to be wrong without reading anything."""
        if self.format is not None and self.format not in FORMATS:
            raise WrongUsage(
                f"--format is {self.format!r}, expected one of {', '.join(FORMATS)}{nearest(self.format, FORMATS)}"
            )
        for name in ("test_fraction", "remove_ones"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise WrongUsage(f"--{name.replace('_', '-')} is {value:g}, expected a number between 0 and 1.")
        given = [name for name in ("label_columns", "label_prefix", "tag_column") if getattr(self, name)]
        if len(given) > 1:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise WrongUsage(f"{options} are given, expected one way to find the labels.")
        if self.tag_separator is not None and not (self.tag_separator and self.tag_column):
            raise WrongUsage("--tag-separator needs a separator and --tag-column.")
        if source == DIGITS and (self.format or self.test or self.test_fraction or self.reader_options()):
            raise WrongUsage(
                "'digits' is built in and has its test rows, expected no options about reading or splitting."
            )

    def reader_options(self) -> dict[str, Any]:
        """What goes to the format's reader."""
        options: dict[str, Any] = {
            "label_columns": _names(self.label_columns),
            "label_prefix": self.label_prefix,
            "tag_column": self.tag_column,
            "tag_separator": self.tag_separator,
            "drop": _names(self.drop),
            "xml": self.xml,
        }
        return {name: value for name, value in options.items() if value is not None}

    def files(self, *sources: str | Path | None) -> Iterator[Path]:
        """The files that are read, as far as they can be found before: a command must not write to one of them."""
        from esmc_pyro.data import DataError
        from esmc_pyro.data.load import find_files

        for source in (self.test, self.xml, *sources):
            if source is not None and source != DIGITS:
                with suppress(DataError, OSError):  # reading says what is wrong
                    yield from find_files(source)

    def read(self, source: str, known_tags: Sequence[str] = ()) -> Dataset:
        """The dataset, split, cut and with labels removed as the options say.

        ``known_tags`` are the labels of a column of tags in which no row has any.
        """
        self.check(source)
        return self.cut(self._load(source, {"known_tags": known_tags} if known_tags and self.tag_column else {}))

    def _load(self, source: str, more: dict[str, Any]) -> Dataset:
        from esmc_pyro.data import DataError, load_dataset, load_digit_pictures

        if source == DIGITS:
            return load_digit_pictures()
        try:
            return load_dataset(
                source,
                test=self.test,
                format=self.format,
                test_fraction=self.test_fraction,
                seed=self.split_seed,
                **self.reader_options(),
                **more,
            )
        except DataError:
            raise
        except ValueError as error:  # an option that this source cannot take
            raise WrongUsage(str(error)) from None

    def cut(self, dataset: Dataset) -> Dataset:
        """The first rows of each part, with ones of the training part removed."""
        from esmc_pyro.data import remove_ones

        if self.limit is not None:
            dataset = dataset.first(self.limit)
        if self.remove_ones is not None:
            given: Any = dataset.Y_train
            dataset = replace(dataset, Y_train=remove_ones(given, self.remove_ones, self.split_seed))
        return dataset


def _names(values: list[str] | None) -> list[str] | None:
    """Column names from texts with commas; a name that holds one is written in quotes."""
    if not values:
        return None
    return [name.strip() for row in csv.reader(values, skipinitialspace=True) for name in row]
