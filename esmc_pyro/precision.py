"""Features in single precision, unless that would round large numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 2**10  # float32 has 24 digits: of numbers from here on 1e-4 or more may be lost, of unix times a minute
BLOCK = 256  # rows looked at together


def to_single(X: Any) -> Any:
    """``X`` (n x F) as float32; as float64 if it is dense and a number of ``LARGE`` or more is none of float32.

    Such numbers are times and identifiers, whose differences are small beside them: they are centred first
    (``feature_map``). The rule asks how large numbers are, not how they spread, so that it holds for one row too.
    """
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is for the caller to refuse
        single = X.astype(np.float32, copy=False)
    if not isinstance(X, np.ndarray) or X.dtype == np.float32:
        return single
    for start in range(0, len(X), BLOCK):
        here, wide = single[start : start + BLOCK], X[start : start + BLOCK]
        if ((np.abs(here) >= LARGE) & np.isfinite(here) & (here != wide)).any():
            return X.astype(np.float64, copy=False)
    return single
