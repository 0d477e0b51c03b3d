"""Features in single precision, unless that would round large numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 2**20  # float32 has 24 digits: of numbers from here on a sixteenth or more may be lost, of unix times a minute


def to_single(X: Any) -> Any:
    """``X`` (n x F) as float32; as float64 if it is dense and a number of ``LARGE`` or more is none of float32.

    Such numbers are times and identifiers, whose differences are small beside them: they are centred first
    (``feature_map``). The rule looks at numbers one by one, so rows that come alone are treated as all rows were.
    """
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is for the caller to refuse
        single = X.astype(np.float32, copy=False)
    if not isinstance(X, np.ndarray) or X.dtype == np.float32:
        return single
    blurred = np.abs(single) >= LARGE
    blurred &= np.isfinite(single)
    return X.astype(np.float64, copy=False) if (single[blurred] != X[blurred]).any() else single
