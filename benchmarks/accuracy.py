"""ESMC's default beside its peers on the datasets of ESMC_DATA: ``python benchmarks/accuracy.py [--dataset D]``.

Full labels and half of the ones removed, three seeds, each cell in a process of its own (so that its peak memory is
its own); judged by full test labels. Every method sees the same mapped features and is tuned on held-out training rows.
A finished cell is not run again. Writes benchmarks/results/accuracy.csv and accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results"
DATASETS = ("emotions", "yeast", "cal500", "mediamill-sample", "corel5k", "espgame", "delicious")
TEST_ROWS = {"cal500": 102, "espgame": 4154}  # sets without a split: the seed draws the test rows
METHODS = (
    "ESMC", "label frequency", "kNN", "logistic regression", "Nystroem ridge", "extra trees", "MLP", "GPyTorch SVGP",
)  # fmt: skip
SHOWN = ("auc", "coverage", "p@1", "p@3", "p@5", "psp@1", "psp@3", "psp@5", "macro_auc", "lrap", "ece")
KEY = ["dataset", "removed", "seed", "method"]


def load(dataset: str, removed: float, seed: int) -> tuple[Any, Any, Any, Any]:
    """Training features and given labels, test features and full labels, dense."""
    from esmc_pyro.data import load_dataset, remove_ones

    options: dict[str, Any] = {"n_test": TEST_ROWS[dataset], "seed": seed} if dataset in TEST_ROWS else {}
    data = load_dataset(dataset, **options)
    dense = [
        part.toarray() if hasattr(part, "toarray") else part
        for part in (data.X_train, data.Y_train, data.X_test, data.Y_test)
    ]
    X, Y, X_test, Y_test = (np.asarray(part, dtype=np.float32) for part in dense)
    return X, remove_ones(Y, removed, seed) if removed else Y, X_test, Y_test


def run_cell(dataset: str, removed: float, seed: int, method: str) -> dict[str, Any]:
    """Fit, predict and measure one method."""
    warnings.filterwarnings("ignore")
    from peers import PEERS, choose_setting

    from esmc_pyro import ESMCClassifier
    from esmc_pyro.feature_map import FeatureMap
    from esmc_pyro.metrics import evaluate

    X, Y, X_test, Y_test = load(dataset, removed, seed)
    begun = time.perf_counter()
    if method == "ESMC":
        classifier = ESMCClassifier(random_state=seed).fit(X, Y)
        setting = str(classifier.settings_)
        trained = time.perf_counter()
        scores, p = classifier.decision_function(X_test), classifier.predict_proba(X_test)
    else:
        feature_map = FeatureMap.from_data(X)
        x, x_test = feature_map(X).numpy(), feature_map(X_test).numpy()
        fit, settings = PEERS[method]
        chosen = choose_setting(fit, settings, x, Y, seed)
        predict = fit(x, Y, seed, **chosen)
        setting = str(chosen)
        trained = time.perf_counter()
        scores, p = predict(x_test)
    done = time.perf_counter()
    values = evaluate(Y_test, scores, Y_train=Y, probabilities=p)
    return {key: float(values[key]) for key in SHOWN} | {
        "train_seconds": trained - begun,
        "predict_seconds": done - trained,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "setting": setting,
    }


def table(results: pd.DataFrame) -> str:
    """Markdown: a table for each dataset and removal, mean ± standard error over the seeds."""
    parts = [
        f"Command: `ESMC_DATA=... python benchmarks/accuracy.py` on {os.cpu_count()} cores. "
        "Mean ± standard error over seeds."
    ]
    numbers = [*SHOWN, "train_seconds", "predict_seconds", "peak_mib"]
    for (dataset, removed), group in results.groupby(["dataset", "removed"], sort=False):
        by = group.groupby("method", sort=False)[numbers]
        mean, error, seeds = by.mean(), by.sem(), group.groupby("method").seed.nunique()
        parts.append(f"\n## {dataset}, {removed:.0%} of the ones removed\n")
        parts.append("| method | seeds | " + " | ".join(numbers) + " |\n|" + "---|" * (len(numbers) + 2))
        for method in mean.index:
            cells = [f"{mean.loc[method, n]:.4g} ± {error.loc[method, n]:.2g}" for n in numbers]
            parts.append(f"| {method} | {seeds[method]} | " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--removed", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(run_cell(**json.loads(options.cell))))
        return
    path = RESULTS / "accuracy.csv"
    results = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=KEY)
    cells = [
        {"dataset": d, "removed": r, "seed": s, "method": m}
        for d in options.dataset
        for r in options.removed
        for s in range(options.seeds)
        for m in options.method
    ]
    for number, cell in enumerate(cells, 1):
        if len(results) and (results[KEY] == pd.Series(cell)[KEY]).all(axis=1).any():
            continue
        print(f"{number}/{len(cells)}", *cell.values(), end=" ", flush=True)
        ran = subprocess.run(
            [sys.executable, __file__, "--cell", json.dumps(cell)], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            print("failed:", ran.stderr.strip().splitlines()[-1:])
            continue
        values = json.loads(ran.stdout.splitlines()[-1])
        print(*(f"{values[key]:.4g}" for key in ("auc", "coverage", "p@1", "p@3", "train_seconds")))
        results = pd.concat([results, pd.DataFrame([cell | values])], ignore_index=True)
        results.to_csv(path, index=False)
        (RESULTS / "accuracy.md").write_text(table(results))


if __name__ == "__main__":
    main()
