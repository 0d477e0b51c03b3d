"""What every baseline shares: checked input, ``fit`` and ``decision_function``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from esmc_pyro.frames import is_sparse, to_labels
from esmc_pyro.validation import check_choice, check_number

Array = npt.NDArray[Any]


class Baseline(BaseEstimator, ABC):
    """A method that ESMC is compared with.

    ``fit`` takes features X (N x F, dense or sparse), labels Y (N x K of 0 and 1) and perhaps unlabelled rows, and
    ``decision_function`` gives scores (rows x K) that rank the labels of a row. Computed in double precision, but
    for the large products of methods that say ``single``, if X is float32.
    """

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings that are numbers: arguments of check_number
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # settings that are names
    takes_unknown: ClassVar[bool] = False  # whether Y may hold NaN
    uses_unlabeled: ClassVar[bool] = False  # whether X_unlabeled changes anything
    single: ClassVar[bool] = False  # whether float32 features stay float32

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None) -> Self:
        """Fit to features X (N x F) and labels Y (N x K); ``X_unlabeled`` (I x F) are rows without labels."""
        self._check_settings()
        X = self._features(X, reset=True)
        labels = to_labels(Y, X.shape[0]).astype(X.dtype)
        if not self.takes_unknown and np.isnan(labels).any():
            row, column = np.argwhere(np.isnan(labels))[0]
            raise ValueError(
                f"Y must hold 0 and 1 for {type(self).__name__}, which has no place for unknown labels; "
                f"got NaN in row {row}, column {column}"
            )
        more = None if X_unlabeled is None else self._features(X_unlabeled, reset=False, name="X_unlabeled")
        self.n_labels_ = labels.shape[1]
        self._fit(X, labels, more)
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores (rows x K), larger for labels that suit a row better."""
        check_is_fitted(self, "n_labels_")
        return np.asarray(self._scores(self._features(X, reset=False)), dtype=np.float64)

    @abstractmethod
    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        """Fit to checked input."""

    @abstractmethod
    def _scores(self, X: Any) -> Any:
        """Scores for checked rows."""

    def _check_settings(self) -> None:
        for name, options in self.choices.items():
            check_choice(getattr(self, name), options, name)
        for name, limit in self.limits.items():
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name, **limit)

    def _features(self, X: Any, *, reset: bool, name: str = "X") -> Any:
        try:
            dtype = (np.float64, np.float32) if self.single else np.float64
            X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=dtype)
        except (TypeError, ValueError) as error:
            raise error if name == "X" else type(error)(f"{name}: {error}") from None
        return sparse.csr_array(X) if is_sparse(X) else X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = tags.target_tags.multi_output = True
        return tags


POSITIVE: Mapping[str, Any] = {"low": 0, "above": True}
NOT_NEGATIVE: Mapping[str, Any] = {"low": 0}
COUNT: Mapping[str, Any] = {"low": 1, "whole": True}
SEED: Mapping[str, Any] = {"low": 0, "whole": True}


def latent_width(latent: int | None, K: int) -> int:
    """``L``: as asked for, at most K; None is the paper's quarter of the labels, 5 at least."""
    return min(K, max(5, K // 4) if latent is None else latent)
