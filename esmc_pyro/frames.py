"""Arrays, sparse matrices and frames as the estimator takes them: checked, with names kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from esmc_pyro.validation import check_labels


def to_features(estimator: BaseEstimator, X: Any, *, reset: bool, name: str = "X") -> Any:
    """``X`` as a finite float32 array or CSR matrix; ``reset`` notes its width and names, else they must be the same."""
    X = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=np.float32, estimator=estimator)
    return X


def to_labels(Y: Any, rows: int, columns: int | None = None) -> npt.NDArray[np.float32]:
    """``Y`` as float32 of 0, 1 and NaN (rows x K), with ``columns`` labels if that is given."""
    if isinstance(Y, pd.DataFrame):
        Y = Y.to_numpy(dtype=np.float32, na_value=np.nan)
    elif sparse.issparse(Y):
        Y = Y.toarray()
    labels = check_labels(Y, rows, exact=True).float().numpy()
    if columns is not None and labels.shape[1] != columns:
        raise ValueError(f"Y must have the {columns} labels of the training data; got {labels.shape[1]}")
    return labels


def label_names(Y: Any, columns: int) -> list[str]:
    """The columns of a frame, else "y0", "y1", ..."""
    return [str(name) for name in Y.columns] if isinstance(Y, pd.DataFrame) else [f"y{i}" for i in range(columns)]
