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
from esmc_pyro.frames import is_sparse, to_labels
from esmc_pyro.metrics import held_out_score
from esmc_pyro.search import fold_count, hold_out
from esmc_pyro.validation import check_choice

BASELINES: dict[str, type[Baseline]] = {
    "BR": BR, "PLST": PLST, "CPLST": CPLST, "FaIE": FaIE, "LEML": LEML, "SLRM": SLRM, "FastTag": FastTag,
    "SLEEC": SLEEC, "GenEML": GenEML, "kNN": KNN,
}  # fmt: skip


def combinations(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """One setting for each way to take a value of each name."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


_CODES = combinations(latent=(None, 50), penalty=(0.1, 1.0, 10.0))
# where the best is at an end of these, the search goes on, REACH steps at most
SCALES = ("penalty", "gamma", "alpha", "beta", "lambda_u", "lambda_w", "width")
REACH = 3
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "BR": combinations(penalty=(0.03, 0.1, 1.0, 10.0)),
    "PLST": _CODES,
    "CPLST": _CODES,
    "FaIE": combinations(alpha=(0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)),  # the paper's
    "LEML": combinations(latent=(None, 50), penalty=(0.3, 1.0, 3.0, 10.0)),
    "SLRM": combinations(penalty=(0.01, 0.1, 1.0, 10.0), gamma=(0.001, 0.1, 10.0)),
    "FastTag": combinations(alpha=(0.1, 1.0, 10.0), beta=(0.1, 1.0), p=(0.1, 0.3, 0.7, 0.9)),
    "SLEEC": combinations(nearest=(10, 30), penalty=(0.1, 1.0)),
    "GenEML": combinations(lambda_u=(0.1, 1.0), lambda_w=(1.0,), a=(1.0, 100.0)),
    "kNN": combinations(neighbours=(10, 30, 100), width=(0.25, 0.4, 0.7)),
}


def tune(
    name: str, X: Any, Y: Any, seed: int = 0, *, X_unlabeled: Any = None,
    grid: Sequence[Mapping[str, Any]] | None = None, progress: bool = False,
) -> Baseline:  # fmt: skip
    """The baseline ``name``, not fitted yet, with the setting that scores best on held-out rows (``best_setting``)."""
    setting, _ = best_setting(name, X, Y, seed, X_unlabeled=X_unlabeled, grid=grid, progress=progress)
    return BASELINES[name](**setting)


def best_setting(
    name: str, X: Any, Y: Any, seed: int = 0, *, X_unlabeled: Any = None,
    grid: Sequence[Mapping[str, Any]] | None = None, progress: bool = False,
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """The setting of ``GRIDS[name]`` that scores best on held-out rows, and its score.

    Each is fitted to four fifths of at most 3000 rows of X (N x F) and Y (N x K) and judged on the last fifth by the
    mean of AUC and LRAP (``metrics.held_out_score``); of few rows the fifths are held out in turn, as ESMC's own search
    does. Where the best is at an end of a scale (``SCALES``) the search goes on beyond it. ``grid`` takes the place of
    ``GRIDS[name]`` and is not gone beyond. With one setting, or fewer than 10 rows, nothing is fitted, the first is
    taken and its score is NaN.
    """
    check_choice(name, BASELINES, "name")
    settings = [dict(setting) for setting in (GRIDS[name] if grid is None else grid)]
    if not settings:
        raise ValueError("grid must have at least one setting; got none")
    kind = BASELINES[name]
    if "random_state" in kind().get_params():
        settings = [{"random_state": seed} | setting for setting in settings]
    X = X.tocsr() if is_sparse(X) else np.asarray(X)
    labels = to_labels(Y, X.shape[0])
    folds = [hold_out(len(labels), seed, fold) for fold in range(fold_count(len(labels)))]
    if len(settings) == 1 or not folds:
        return settings[0], float("nan")
    truth = torch.as_tensor(np.concatenate([labels[held] for held, _ in folds]))
    scores: dict[tuple[Any, ...], float] = {}

    def score(setting: dict[str, Any]) -> float:
        key = tuple(setting.values())
        if key not in scores:
            parts = [
                kind(**setting).fit(X[rest], labels[rest], X_unlabeled).decision_function(X[held])
                for held, rest in folds
            ]
            scores[key] = held_out_score(truth, torch.as_tensor(np.concatenate(parts)))
        return scores[key]

    best = max(tqdm(settings, disable=not progress, desc=f"tune {name}", unit="setting"), key=score)
    for scale in SCALES if grid is None else ():
        values = sorted({setting[scale] for setting in settings if scale in setting})
        if len(values) < 2 or best[scale] not in (values[0], values[-1]):
            continue
        step = values[-1] / values[-2] if best[scale] == values[-1] else values[0] / values[1]
        for _ in range(REACH):
            further = best | {scale: best[scale] * step}
            if score(further) <= score(best):
                break
            best = further
    return best, score(best)
