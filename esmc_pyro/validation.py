"""Input checks before any work is done: one clear sentence with the argument, what came and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor


def _tensor(value: Any, name: str) -> Tensor:
    """A dense floating tensor; float32 and float64 are kept as they are, everything else becomes float32."""
    if sparse.issparse(value):
        matrix: Any = value
        value = matrix.toarray()
    if not isinstance(value, Tensor):
        try:
            array = np.asarray(value)
            if value is None or np.iscomplexobj(array):
                raise TypeError(f"values of type {array.dtype}")
            if not np.issubdtype(array.dtype, np.floating):
                array = array.astype(np.float32)
            # tensors need memory that is writable and in order; frames and views of arrays may have other
            value = torch.as_tensor(np.require(array, requirements=["C", "W"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be an array of numbers; got {type(value).__name__} ({error})") from None
    return value if value.dtype in (torch.float32, torch.float64) else value.to(torch.float32)


def check_features(X: Any, name: str = "X", columns: int | None = None) -> Tensor:
    """``X`` as a finite, non-empty tensor (rows x features), with ``columns`` columns if that is given."""
    X = _tensor(X, name)
    if X.dim() != 2 or 0 in X.shape:
        raise ValueError(f"{name} must be a matrix with at least one row and one column; got shape {tuple(X.shape)}")
    if not torch.isfinite(X).all():
        bad = (~torch.isfinite(X)).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite everywhere; got {X[tuple(bad)].item()} in row {bad[0]}, column {bad[1]}"
        )
    if columns is not None and X.shape[1] != columns:
        raise ValueError(f"{name} must have the {columns} columns of the training data; got {X.shape[1]}")
    return X


def check_labels(Y: Any, rows: int, name: str = "Y", *, exact: bool = False, unknown: bool = False) -> Tensor:
    """``Y`` (N x K) of 0, 1 and NaN for at most ``rows`` instances (exactly so many if ``exact``).

    ``unknown``: whether it may be NaN everywhere.
    """
    Y = _tensor(Y, name)
    if Y.dim() != 2 or 0 in Y.shape:
        raise ValueError(
            f"{name} must be a matrix with at least one row and one label a column; got shape {tuple(Y.shape)}"
        )
    if len(Y) > rows or (exact and len(Y) != rows):
        raise ValueError(f"X and {name} must have the same number of rows; got {rows} and {len(Y)}")
    valid = (Y == 0) | (Y == 1) | torch.isnan(Y)
    if not valid.all():
        row, column = (~valid).nonzero()[0].tolist()
        value = Y[row, column].item()
        hint = " (cross_val_predict of scikit-learn makes a class of NaN)" if value == 2 else ""
        raise ValueError(
            f"{name} must hold 0, 1, or NaN for unknown; got {value:g} in row {row}, column {column}{hint}"
        )
    if not unknown and torch.isnan(Y).all():
        raise ValueError(f"{name} must have at least one known entry; got NaN everywhere")
    return Y


def check_data(X: Any, Y: Any, X_unlabeled: Any = None) -> tuple[Tensor, Tensor]:
    """Features of labelled rows followed by unlabelled ones ((N + I) x F), and the labels (N x K), in one dtype."""
    X = check_features(X)
    Y = check_labels(Y, len(X), exact=True)
    if X_unlabeled is not None:
        X = torch.cat([X, check_features(X_unlabeled, "X_unlabeled", X.shape[1]).to(X.dtype)])
    return X, Y.to(X.dtype)


def check_choice(value: Any, choices: Any, name: str) -> None:
    """``value`` is one of ``choices``."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {sorted(choices)}; got {value!r}")


def check_number(value: Any, name: str, *, low: float = -np.inf, above: bool = False, whole: bool = False) -> None:
    """``value`` is a number of at least ``low`` (above it if ``above``), whole if asked."""
    numbers = int | np.integer if whole else int | float | np.number
    good = isinstance(value, numbers) and not isinstance(value, bool) and np.isfinite(value)
    if not good or not (value > low if above else value >= low):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} {'above' if above else 'of at least'} {low:g}; got {value!r}")
