"""Settings of the baselines, chosen on held-out training rows as ESMC's own are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from esmc_pyro.baselines.base import Baseline
from esmc_pyro.baselines.binary_relevance import BR
from esmc_pyro.baselines.faie import FaIE
from esmc_pyro.baselines.fasttag import FastTag
from esmc_pyro.baselines.geneml import GenEML
from esmc_pyro.baselines.leml import LEML
from esmc_pyro.baselines.neighbours import KNN
from esmc_pyro.baselines.plst import CPLST, PLST
from esmc_pyro.baselines.sleec import SLEEC
from esmc_pyro.baselines.slrm import SLRM
from esmc_pyro.default import held_out_score, hold_out
from esmc_pyro.frames import is_sparse, to_labels
from esmc_pyro.validation import check_choice

BASELINES: dict[str, type[Baseline]] = {
    "BR": BR, "PLST": PLST, "CPLST": CPLST, "FaIE": FaIE, "LEML": LEML, "SLRM": SLRM, "FastTag": FastTag,
    "SLEEC": SLEEC, "GenEML": GenEML, "kNN": KNN,
}  # fmt: skip


def combinations(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """One setting for each way to take a value of each name."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


_CODES = combinations(latent=(50, 200, 1000), penalty=(0.1, 1.0, 10.0))
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "BR": combinations(penalty=(0.03, 0.1, 1.0, 10.0)),
    "PLST": _CODES,
    "CPLST": _CODES,
    "FaIE": combinations(alpha=(0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)),  # the paper's
    "LEML": combinations(latent=(50, 200), penalty=(0.3, 1.0, 3.0, 10.0)),
    "SLRM": combinations(penalty=(0.01, 0.1, 1.0, 10.0), gamma=(0.001, 0.1, 10.0)),  # the paper's range, coarser
    "FastTag": combinations(alpha=(0.1, 1.0, 10.0), beta=(0.1, 1.0), p=(0.3, 0.7)),
    "SLEEC": combinations(nearest=(10, 30), penalty=(0.1, 1.0)),
    "GenEML": combinations(lambda_u=(1.0, 10.0), a=(1.0, 100.0)),
    "kNN": combinations(neighbours=(10, 30, 100), width=(0.25, 0.4, 0.7)),
}


def tune(
    name: str, X: Any, Y: Any, seed: int = 0, *, X_unlabeled: Any = None,
    grid: Sequence[Mapping[str, Any]] | None = None, progress: bool = False,
) -> Baseline:  # fmt: skip
    """The baseline ``name``, not fitted yet, with the setting of its grid that scores best on held-out rows.

    Each setting is fitted to four fifths of at most 3000 rows of X (N x F) and Y (N x K) and judged on the last fifth
    by the mean of AUC and LRAP (``default.held_out_score``). ``grid`` takes the place of ``GRIDS[name]``. With one
    setting, or fewer than 10 rows, nothing is fitted and the first is taken.
    """
    check_choice(name, BASELINES, "name")
    settings = [dict(setting) for setting in (GRIDS[name] if grid is None else grid)]
    if not settings:
        raise ValueError("grid must have at least one setting; got none")
    kind = BASELINES[name]
    seeded = {"random_state": seed} if "random_state" in kind().get_params() else {}
    made = [kind(**(seeded | setting)) for setting in settings]
    X = X.tocsr() if is_sparse(X) else np.asarray(X)
    labels = to_labels(Y, X.shape[0])
    held, rest = hold_out(len(labels), seed)
    if len(made) == 1 or not len(held):
        return made[0]
    truth, scores = torch.as_tensor(labels[held]), []
    for method in tqdm(made, disable=not progress, desc=f"tune {name}", unit="setting"):
        z = kind(**method.get_params()).fit(X[rest], labels[rest], X_unlabeled).decision_function(X[held])
        scores.append(held_out_score(truth, torch.as_tensor(z)))
    return made[int(np.argmax(scores))]
