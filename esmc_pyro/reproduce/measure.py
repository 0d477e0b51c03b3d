"""One cell: data as its setting says, a fit, and what test rows say of it. Processor seconds of one thread."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from esmc_pyro.data import KNOWN_SETS, Dataset, hide_rows, load_dataset, load_digit_pictures, remove_ones
from esmc_pyro.frames import to_labels
from esmc_pyro.metrics import bootstrap_intervals, evaluate, macro_auc
from esmc_pyro.reproduce.experiments import BUILT_IN, Cell, Setting, Tuning
from esmc_pyro.reproduce.methods import METHODS, Rows

METRICS = ("auc", "coverage", "p@1", "p@3", "p@5", "psp@1", "psp@3", "psp@5", "macro_auc", "rare_auc", "lrap")
# standard errors over test rows, of cells that have one partition
ERRORS = ("p@1_error", "p@3_error", "psp@1_error", "psp@3_error", "psp@5_error")
SECONDS = ("fit_seconds", "predict_seconds")
BUILT_IN_ROWS, BUILT_IN_TEST = 400, 300
BOOTSTRAP = 200

Labels = npt.NDArray[np.float32]


@lru_cache(maxsize=1)
def _load(name: str) -> Dataset:
    return load_dataset(name)


def partition(name: str, setting: Setting, seed: int, rows: int = 0) -> Dataset:
    """Training and test rows by ``seed``, in the published numbers; an official split is as published."""
    if name == BUILT_IN:
        return load_digit_pictures(rows or BUILT_IN_ROWS, BUILT_IN_TEST, seed)
    dataset = _load(name)
    if setting.kind != "official":
        dataset = dataset.whole().split(n_test=KNOWN_SETS[name].n_test, seed=seed)
    if rows and rows < dataset.n_train:
        return Dataset(name, dataset.X_train[:rows], dataset.Y_train[:rows], dataset.X_test, dataset.Y_test)
    return dataset


def training_rows(dataset: Dataset, setting: Setting, seed: int) -> Rows:
    """What a method is given."""
    X, Y = dataset.X_train, to_labels(dataset.Y_train, dataset.n_train)
    if setting.kind in ("kept", "alone"):
        known: Any = ~np.isnan(hide_rows(Y, 1 - setting.share, seed)).all(axis=1)
        return Rows(X[known], Y[known], X[~known] if setting.kind == "kept" else None)
    return Rows(X, remove_ones(Y, setting.share, seed))


def rare_labels(Y: Labels) -> npt.NDArray[np.intp]:
    """The rarer half of the labels (columns) by their number of ones in the training rows."""
    return np.argsort(Y.sum(axis=0), kind="stable")[: max(1, Y.shape[1] // 2)]


def choose(tuning: Tuning) -> dict[str, Any]:
    """Settings by the training rows alone, as a record."""
    dataset = partition(tuning.dataset, tuning.setting, tuning.seed, tuning.rows)
    rows = training_rows(dataset, tuning.setting, tuning.seed)
    begun = time.process_time()
    chosen = METHODS[tuning.method].choose(rows, tuning.seed)
    return {"chosen": json.dumps(chosen), "seconds": time.process_time() - begun}


def measure(cell: Cell, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Fit with the settings ``chosen``, and judge by the full labels of the test rows, as a record."""
    dataset = partition(cell.dataset, cell.setting, cell.seed, cell.rows)
    rows = training_rows(dataset, cell.setting, cell.seed)
    Y_train, Y_test = to_labels(dataset.Y_train, dataset.n_train), to_labels(dataset.Y_test, dataset.n_test)
    begun = time.process_time()
    scorer = METHODS[cell.method].fit(chosen, rows, cell.seed)
    fitted = time.process_time()
    scores = scorer(dataset.X_test)
    done = time.process_time()
    values = evaluate(Y_test, scores, Y_train=Y_train)
    rare = rare_labels(Y_train)
    values["rare_auc"] = macro_auc(Y_test[:, rare], scores[:, rare])
    errors = dict.fromkeys(ERRORS, float("nan"))
    if cell.setting.kind == "official":
        spread = bootstrap_intervals(Y_test, scores, Y_train=Y_train, draws=BOOTSTRAP)["standard_error"]
        errors = {name: float(spread[name.removesuffix("_error")]) for name in ERRORS}
    seconds = dict(zip(SECONDS, (fitted - begun, done - fitted), strict=True))
    return {name: values[name] for name in METRICS} | errors | seconds
