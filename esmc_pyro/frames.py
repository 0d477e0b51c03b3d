"""Arrays, sparse matrices and frames as the estimator takes them: checked, with names kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from esmc_pyro.precision import to_single
from esmc_pyro.validation import check_labels


def is_sparse(X: Any) -> bool:
    """Whether ``X`` is a SciPy sparse array or matrix."""
    return bool(sparse.issparse(X))


def to_features(estimator: BaseEstimator, X: Any, *, reset: bool, name: str = "X", double: bool = False) -> Any:
    """``X`` as a finite array or CSR matrix without repeated entries, in float32 unless that rounds (``to_single``).

    ``reset`` notes its width and names, else they must be the same. ``name`` is what an error calls it. What is dense
    stays in ``double`` where the training rows did, so that a row alone is the same row as among others.
    """
    _refuse_what_is_no_number(X, name)
    try:
        short = getattr(getattr(X, "dtype", None), "itemsize", 8) <= 2  # numbers that float32 has all of
        kinds = np.float32 if short else [np.float64, np.float32]
        made = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=kinds)
        made = made.astype(np.float64, copy=False) if double and not is_sparse(made) else to_single(made)
        if not np.isfinite(made.data if is_sparse(made) else made).all():
            raise ValueError("Input X contains a value too large for dtype('float32').")
    except (TypeError, ValueError) as error:
        raise error if name == "X" else type(error)(f"{name}: {error}") from None
    if is_sparse(made) and not made.has_canonical_format:
        made = made.copy()  # it may be the caller's
        made.sum_duplicates()
    return made


def _refuse_what_is_no_number(X: Any, name: str) -> None:
    """Raise ``ValueError`` for what is masked, and for columns of a frame that are no numbers, text that reads as such
    apart.
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
        raise ValueError(f"{name} must have a number for each feature; got {np.ma.count_masked(X)} that are masked")
    if not isinstance(X, pd.DataFrame):
        return
    for place, (column, kind) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
            continue
        values = X.iloc[:, place]
        is_time = pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind)
        is_time |= isinstance(kind, pd.PeriodDtype)
        if is_time or pd.to_numeric(values, errors="coerce").isna().gt(values.isna()).any():
            raise ValueError(
                f"{name} must have columns of numbers; got {kind} in column {column!r} (pandas.get_dummies makes "
                "numbers of categories, and a time less another, over a unit, is one)"
            )


def to_labels(
    Y: Any, rows: int, names: Sequence[str] | None = None, *, unknown: bool = False
) -> npt.NDArray[np.float32]:
    """``Y`` as float32 of 0, 1 and NaN (rows x K); with ``names``, those labels in that order.

    What a masked array masks is unknown. All of it may be, if ``unknown`` says so.
    """
    if Y is None:
        raise ValueError("Y must be a matrix of labels; ESMC requires y to be passed, but the target y is None")
    if isinstance(Y, pd.DataFrame):
        _check_names(Y, names)
        try:
            Y = Y.to_numpy(dtype=np.float32, na_value=np.nan)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Y must hold 0, 1, or a missing value for unknown; got a frame with {error}") from None
    elif is_sparse(Y):
        Y = Y.toarray()
    elif isinstance(Y, np.ma.MaskedArray):
        Y = np.where(np.ma.getmaskarray(Y), np.nan, Y.data)
    elif isinstance(Y, np.ndarray) and Y.dtype == object:
        Y = np.where(pd.isna(Y), np.nan, Y)  # pandas.NA is no number
    _refuse_one_dimension(Y)
    labels = check_labels(Y, rows, exact=True, unknown=unknown).float().numpy()
    if names is not None and labels.shape[1] != len(names):
        raise ValueError(f"Y must have the {len(names)} labels of the training data; got {labels.shape[1]}")
    return labels


def _check_names(Y: pd.DataFrame, names: Sequence[str] | None) -> None:
    came = [str(name) for name in Y.columns]
    if len(set(came)) < len(came):
        twice = sorted({name for name in came if came.count(name) > 1})
        raise ValueError(f"Y must have a different name for each label; got {twice} more than once")
    if names is not None and came != list(names):
        extra, missing = sorted(set(came) - set(names)), sorted(set(names) - set(came))
        found = f"unknown {extra[:5]} and no {missing[:5]}" if extra or missing else "them in another order"
        raise ValueError(f"Y must have the labels of the training data in the same order; got {found}")


def _refuse_one_dimension(Y: Any) -> None:
    """A vector is not guessed at: it may be one label, or the classes of a problem that is not multi-label."""
    is_mixed = getattr(getattr(Y, "dtype", None), "kind", "") == "O"
    rows = Y if isinstance(Y, list | tuple) else Y.tolist() if is_mixed else ()
    if any(_holds_names(row) for row in rows):
        raise ValueError(
            "Y must be a matrix with a column for each label; got names of labels "
            "(scikit-learn's MultiLabelBinarizer makes such a matrix of them)"
        )
    if isinstance(Y, list | tuple) and any(isinstance(row, list | tuple) for row in Y):
        return
    array = np.asarray(Y)
    if array.ndim == 1 and array.size:
        kind = array.dtype.name
        if array.dtype.kind == "f" and (np.isfinite(array) & (array != np.round(array))).any():
            kind = "continuous"
        raise ValueError(
            f"Y must be a matrix with a column for each label; got {kind} values of shape {array.shape}. "
            "Only binary classification is supported: for one label pass Y.reshape(-1, 1)"
        )


def _holds_names(row: Any) -> bool:
    """Whether a row is a name of a label, or some of them."""
    return isinstance(row, str | set | frozenset) or (isinstance(row, list | tuple) and any(map(_is_name, row)))


def _is_name(item: Any) -> bool:
    return isinstance(item, str) and not item.strip().lstrip("-").replace(".", "").isdigit()


def label_names(Y: Any, columns: int) -> list[str]:
    """The columns of a frame, else "y0", "y1", ..."""
    return [str(name) for name in Y.columns] if isinstance(Y, pd.DataFrame) else [f"y{i}" for i in range(columns)]


def stack(X: Any, more: Any) -> Any:
    """Rows of ``more`` under those of ``X``; sparse if either is."""
    if is_sparse(X) or is_sparse(more):
        return sparse.vstack([sparse.csr_array(X), sparse.csr_array(more)], format="csr")
    return np.concatenate([X, more])


def labelled_first(Y: npt.NDArray[np.float32], rows: int) -> tuple[npt.NDArray[np.intp], int]:
    """An order of ``rows`` rows, those of ``Y`` with a known entry first, and how many of these there are.

    Rows of NaN and rows beyond the end of ``Y`` then mean the same: an instance without labels.
    """
    known = np.zeros(rows, dtype=bool)
    known[: len(Y)] = ~np.isnan(Y).all(axis=1)
    return np.argsort(~known, kind="stable"), int(known.sum())
