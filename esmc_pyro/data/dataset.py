"""One multi-label dataset: features, labels (some perhaps unknown), names, and a split or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from esmc_pyro.data.errors import data_error
from esmc_pyro.data.matrix import Matrix, first_wrong, stack, stored, to_matrix


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features X and labels Y, each dense or CSR, in float32 (features that it would round: `precision.to_single`).

    - `X_train` (N, F), `X_test` (M, F): finite numbers.
    - `Y_train` (N, K), `Y_test` (M, K): 1 for a label the row has, 0 for one it has not, NaN where that is unknown.
    - `X_test` and `Y_test` are None while the dataset is whole (see `split`).
    - `feature_names` (F) and `label_names` (K) are numbered when left empty.
    - `source_rows` (N + M) says which rows of the source these are, training rows first; None if they are in its order.
    - `numbered` says which of `feature_names` and `label_names` were left empty: such names tell no more than places.

    Lists, frames, other number types and other sparse formats are converted.
    """

    name: str
    X_train: Matrix
    Y_train: Matrix
    X_test: Matrix | None = None
    Y_test: Matrix | None = None
    feature_names: Sequence[str] = ()
    label_names: Sequence[str] = ()
    source_rows: Sequence[int] | None = None
    numbered: Collection[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name is {self.name!r}, expected a text that is not empty.")
        if (self.X_test is None) != (self.Y_test is None):
            given, missing = ("Y_test", "X_test") if self.X_test is None else ("X_test", "Y_test")
            raise ValueError(f"{given} came without {missing}, expected both or neither.")
        for part in ("train", "test") if self.X_test is not None else ("train",):
            X, Y = (
                to_matrix(f"X_{part}", getattr(self, f"X_{part}")),
                to_matrix(f"Y_{part}", getattr(self, f"Y_{part}")),
            )
            if X.shape[0] != Y.shape[0]:
                raise ValueError(f"Y_{part} has {Y.shape[0]} rows, expected {X.shape[0]}, as many as X_{part}.")
            _check_features(f"X_{part}", X, self.feature_names)
            _check_labels(f"Y_{part}", Y)
            self._set(f"X_{part}", X)
            self._set(f"Y_{part}", Y)
        for letter, what in (("X", "features"), ("Y", "labels")):
            train, test = getattr(self, f"{letter}_train"), getattr(self, f"{letter}_test")
            if test is not None and test.shape[1] != train.shape[1]:
                raise ValueError(
                    f"{letter}_test has {test.shape[1]} {what}, expected {train.shape[1]}, as many as {letter}_train."
                )
        if self.source_rows is not None and len(self.source_rows) != self.n_train + self.n_test:
            raise ValueError(
                f"source_rows has {len(self.source_rows)} rows, expected the {self.n_train + self.n_test} of X."
            )
        numbered = []
        for field, count, letter in (("feature_names", self.n_features, "x"), ("label_names", self.n_labels, "y")):
            names = _names(field, getattr(self, field), count)
            if not names or field in self.numbered:
                counted = tuple(f"{letter}{i}" for i in range(count))
                names = names or counted
                if names == counted:  # a changed copy may bring true names
                    numbered.append(field)
            self._set(field, names)
        self._set("numbered", tuple(numbered))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)  # the dataclass is frozen for everyone else

    @property
    def n_features(self) -> int:
        """F"""
        return int(self.X_train.shape[1])

    @property
    def n_labels(self) -> int:
        """K"""
        return int(self.Y_train.shape[1])

    @property
    def n_train(self) -> int:
        """Training rows, or all rows while the dataset is whole."""
        return int(self.X_train.shape[0])

    @property
    def n_test(self) -> int:
        """Test rows, 0 while the dataset is whole."""
        return 0 if self.X_test is None else int(self.X_test.shape[0])

    def split(self, test_fraction: float | None = None, *, n_test: int | None = None, seed: int = 0) -> Dataset:
        """The same rows in a random order, the first `n_test` of that order as test rows and the rest as training rows.

        The order is `numpy.random.default_rng(seed).permutation(N)`, so a seed always means the same split.
        """
        if self.X_test is not None:
            raise ValueError(f"{self.name} already has {self.n_test} test rows, expected a whole dataset: see whole().")
        if (test_fraction is None) == (n_test is None):
            raise ValueError(
                f"test_fraction is {test_fraction} and n_test is {n_test}, expected exactly one of them to be given."
            )
        if test_fraction is not None:
            if not 0 < test_fraction < 1:
                raise ValueError(f"test_fraction is {test_fraction}, expected a number between 0 and 1.")
            n_test = round(self.n_train * test_fraction)
            wrong = f"test_fraction is {test_fraction}, which leaves {n_test} of {self.n_train} rows for testing"
        else:
            wrong = f"n_test is {n_test}"
        if n_test is None or not 0 < n_test < self.n_train:
            raise ValueError(f"{wrong}, expected 1 to {self.n_train - 1} test rows.")
        order = np.random.default_rng(seed).permutation(self.n_train)
        test, train = order[:n_test], order[n_test:]
        return replace(
            self,
            X_train=self.X_train[train],
            Y_train=self.Y_train[train],
            X_test=self.X_train[test],
            Y_test=self.Y_train[test],
            source_rows=tuple(self.row_numbers()[np.concatenate([train, test])].tolist()),
        )

    def first(self, count: int) -> Dataset:
        """The first so many training rows, and as many of the test rows."""
        rows = None
        if self.source_rows is not None:
            rows = (*self.row_numbers()[:count].tolist(), *self.row_numbers(test=True)[:count].tolist())
        X, Y = (None if part is None else part[:count] for part in (self.X_test, self.Y_test))
        return replace(
            self,
            X_train=self.X_train[:count],
            Y_train=self.Y_train[:count],
            X_test=X,
            Y_test=Y,
            source_rows=rows,
        )

    def row_numbers(self, *, test: bool = False) -> np.ndarray:
        """Which row of the source each training row, or test row, is; rows of a split that came with it count apart."""
        if self.source_rows is None:
            return np.arange(self.n_test if test else self.n_train)
        return np.asarray(self.source_rows)[self.n_train :] if test else np.asarray(self.source_rows)[: self.n_train]

    def whole(self) -> Dataset:
        """The dataset without its split: training rows first, then test rows."""
        if self.X_test is None or self.Y_test is None:
            return self
        X, Y = stack(self.X_train, self.X_test), stack(self.Y_train, self.Y_test)
        return replace(self, X_train=X, Y_train=Y, X_test=None, Y_test=None)

    def summary(self) -> dict[str, Any]:
        """Sizes and densities over all rows, training and test together, in the order a reader wants them."""
        X = [part for part in (self.X_train, self.X_test) if part is not None]
        Y = [part for part in (self.Y_train, self.Y_test) if part is not None]
        rows = self.n_train + self.n_test
        labels = sum(int(np.count_nonzero(stored(part) == 1)) for part in Y)
        unknown = sum(int(np.count_nonzero(np.isnan(stored(part)))) for part in Y)
        filled = sum(int(np.count_nonzero(stored(part))) for part in X)
        return {
            "name": self.name,
            "rows": rows,
            "train_rows": self.n_train,
            "test_rows": self.n_test,
            "features": self.n_features,
            "labels": self.n_labels,
            "labels_per_row": labels / rows,
            "label_density": labels / (rows * self.n_labels),
            "unknown_labels": unknown / (rows * self.n_labels),
            "feature_density": filled / (rows * self.n_features),
        }


def dataset_from(path: str | PathLike[str], name: str, **parts: Any) -> Dataset:
    """A `Dataset` of what a file held; what it refuses becomes a `DataError` that names the file."""
    try:
        return Dataset(name, **parts)
    except ValueError as error:
        raise data_error(path, str(error)) from error


def _check_features(argument: str, X: Matrix, names: Sequence[str]) -> None:
    wrong = ~np.isfinite(stored(X))
    if wrong.any():
        row, column, value = first_wrong(X, wrong)
        called = f" ({names[column]})" if column < len(names) else ""
        raise ValueError(f"{argument} holds {value:g} at row {row}, column {column}{called}, expected finite numbers.")


def _check_labels(argument: str, Y: Matrix) -> None:
    values = stored(Y)
    wrong = (values != 0) & (values != 1) & ~np.isnan(values)
    if wrong.any():
        row, column, value = first_wrong(Y, wrong)
        raise ValueError(f"{argument} holds {value:g} at row {row}, column {column}, expected 0, 1 or NaN (unknown).")


def _names(argument: str, names: Sequence[str], count: int) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ValueError(f"{argument} is the text {names!r}, expected a list of {count} names.")
    given = tuple(str(name) for name in names)
    if given and len(given) != count:
        raise ValueError(f"{argument} has {len(given)} names, expected {count}.")
    if len(set(given)) != len(given):
        twice = Counter(given).most_common(1)[0][0]
        raise ValueError(f"{argument} has {twice!r} more than once, expected names that differ.")
    return given
