"""A dataset from one file, or from a training file and a test file that must agree."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from esmc_pyro.data.dataset import Dataset, dataset_from
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.lines import plain_path

Parts = dict[str, Any]
"""`X` (N, F), `Y` (N, K), `feature_names` (F) and `label_names` (K) of one file."""


def dataset_of_pair(
    read: Callable[[str | PathLike[str]], Parts],
    path: str | PathLike[str],
    test_path: str | PathLike[str] | None,
    name: str | None,
) -> Dataset:
    """`read` each file and put them together; the test file must have the same columns in the same order."""
    train = read(path)
    parts = {"X_train": train["X"], "Y_train": train["Y"]}
    names = {key: train[key] for key in ("feature_names", "label_names")}
    if test_path is not None:
        test = read(test_path)
        for key, expected in names.items():
            if len(test[key]) != len(expected):
                what = key.removesuffix("_names")
                problem = f"has {len(test[key])} {what}s, expected {len(expected)}, as many as {Path(path).name}."
                raise data_error(test_path, problem)
            for i, (ours, theirs) in enumerate(zip(test[key], expected, strict=True)):
                if ours != theirs:
                    what = key.removesuffix("_names")
                    problem = f"{what} {i} is {ours!r}, expected {theirs!r}, as in {Path(path).name}."
                    raise data_error(test_path, problem)
        parts |= {"X_test": test["X"], "Y_test": test["Y"]}
    return dataset_from(path, name or stem(path), **parts, **names)


def stem(path: str | PathLike[str]) -> str:
    """A name for what a file holds: without folder, endings, and a final `-train` or `_train`."""
    base = plain_path(Path(path))
    return base.stem.removesuffix("-train").removesuffix("_train") or base.name
