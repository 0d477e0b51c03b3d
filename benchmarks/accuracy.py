"""ESMC's default beside its peers on the datasets of ESMC_DATA: ``python benchmarks/accuracy.py [--dataset D]``.

Full labels and half of the ones removed, three seeds, each cell in a process of its own (so that its peak memory is
its own); judged by full test labels. Four small sets have ten seeds, since what a seed chooses by few held-out rows
varies, and each fifth of all rows is judged by the other four too. With labels removed, ESMC is also told how many
(``MPU``); its probabilities are then those that a label fits. Every method chooses among the same feature maps
(two peers also have all words of wide texts, ``peers.ON_ALL_WORDS``) and is tuned on the same held-out training rows.
A finished cell is not run again, and several runs may work side by side. Each cell has one thread and seconds are
processor seconds, so that they hardly depend on what else the machine does. Writes benchmarks/results/accuracy.csv and
accuracy.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results"
DATASETS = (
    "emotions", "yeast", "cal500", "mediamill-sample", "corel5k", "espgame", "delicious", "rcv1-sub1", "imdb",
    "emotions, folds", "yeast, folds", "cal500, folds", "mediamill-sample, folds",
)  # fmt: skip
SMALL = ("mediamill-sample", "yeast", "emotions", "cal500")
SEEDS, SMALL_SEEDS = 3, 10
FOLDS = 5  # of "folds" the seed says which fifth of all rows is the test: small test sets decide little
# sets without a split of their own: the seed draws so many test rows
TEST_ROWS = {"cal500": 102, "espgame": 4154, "rcv1-sub1": 3000, "imdb": 24184}
TOLD = "ESMC, told the rate"  # of labels that are missing: what no other method can be told, so not in the summary
METHODS = (
    "ESMC", TOLD, "label frequency", "kNN", "logistic regression", "Nystroem ridge", "extra trees", "MLP",
    "GPyTorch SVGP",
)  # fmt: skip
SHOWN = ("auc", "coverage", "p@1", "p@3", "p@5", "psp@1", "psp@3", "psp@5", "macro_auc", "lrap", "ece")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
KEY = ["dataset", "removed", "seed", "method"]
SHORT = {
    "extra trees": "trees",
    "logistic regression": "logistic",
    "Nystroem ridge": "Nystroem",
    "GPyTorch SVGP": "SVGP",
}
# how the summary writes a metric: times what, with how many digits, and which is better
SUMMARY = {"auc": (1, 3, max), "coverage": (1, 1, min), "p@1": (100, 1, max), "p@3": (100, 1, max)}


def load(dataset: str, removed: float, seed: int) -> tuple[Any, Any, Any, Any]:
    """Training features and given labels, test features and full labels, dense."""
    from esmc_pyro.data import load_dataset, remove_ones

    name, _, folds = dataset.partition(", ")
    if folds:
        whole = load_dataset(name).whole()
        order = np.random.default_rng(0).permutation(whole.n_train)
        test = np.array_split(order, FOLDS)[seed]
        rest = np.setdiff1d(order, test)
        X, Y = whole.X_train, whole.Y_train
        data = replace(whole, X_train=X[rest], Y_train=Y[rest], X_test=X[test], Y_test=Y[test])
    else:
        options: dict[str, Any] = {"n_test": TEST_ROWS[dataset], "seed": seed} if dataset in TEST_ROWS else {}
        data = load_dataset(dataset, **options)
    dense = [
        part.toarray() if hasattr(part, "toarray") else part
        for part in (data.X_train, data.Y_train, data.X_test, data.Y_test)
    ]
    X, Y, X_test, Y_test = (np.asarray(part, dtype=np.float32) for part in dense)
    return X, remove_ones(Y, removed, seed) if removed else Y, X_test, Y_test


class Scored(NamedTuple):
    """What one method says of the test rows, and what it took."""

    Y: Any  # the labels given, n x K
    Y_test: Any  # those that judge
    scores: Any
    probabilities: Any
    setting: str
    train_seconds: float
    predict_seconds: float


def score(dataset: str, removed: float, seed: int, method: str) -> Scored:
    """Fit and predict with one method."""
    warnings.filterwarnings("ignore")
    from peers import ON_ALL_WORDS, PEERS, choose_setting

    from esmc_pyro import ESMCClassifier
    from esmc_pyro.feature_map import FeatureMap, candidate_kinds, is_wide
    from esmc_pyro.models import MPU

    X, Y, X_test, Y_test = load(dataset, removed, seed)
    begun = time.process_time()
    if method in ("ESMC", TOLD):
        likelihood: dict[str, Any] = {"likelihood": MPU(removed)} if method == TOLD else {}
        classifier = ESMCClassifier(random_state=seed, **likelihood).fit(X, Y)
        setting = "; ".join(f"{member.weight:.2f} {member.settings}" for member in classifier.stack_.members)
        trained = time.process_time()
        scores = classifier.decision_function(X_test)
        done = time.process_time()
        p = classifier.suitability(X_test, draws=None) if likelihood else classifier.predict_proba(X_test)
    else:
        fit, settings = PEERS[method]
        kinds = candidate_kinds(X) if len(settings) > 1 else candidate_kinds(X)[:1]
        mapped = {kind: FeatureMap.from_data(X, kind, seed) for kind in kinds}
        if is_wide(X, kinds[0]) and method in ON_ALL_WORDS:
            mapped |= {f"{kind}, all": FeatureMap.from_data(X, kind, project=False) for kind in kinds}
        found = {kind: choose_setting(fit, settings, made(X).numpy(), Y, seed) for kind, made in mapped.items()}
        kind = max(found, key=lambda kind: found[kind][1])
        chosen, feature_map = found[kind][0], mapped[kind]
        predict = fit(feature_map(X).numpy(), Y, seed, **chosen)
        setting = str({"features": kind} | chosen)
        trained = time.process_time()
        scores, p = predict(feature_map(X_test).numpy())
        done = time.process_time()
    return Scored(Y, Y_test, scores, p, setting, trained - begun, done - trained)


def run_cell(dataset: str, removed: float, seed: int, method: str) -> dict[str, Any]:
    """Fit, predict and measure one method."""
    from esmc_pyro.metrics import evaluate

    made = score(dataset, removed, seed, method)
    values = evaluate(made.Y_test, made.scores, Y_train=made.Y, probabilities=made.probabilities)
    return {key: float(values[key]) for key in SHOWN} | {
        "train_seconds": made.train_seconds,
        "predict_seconds": made.predict_seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "setting": made.setting,
    }


def read() -> pd.DataFrame:
    """The finished cells."""
    path = RESULTS / "accuracy.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=KEY)


def is_done(cell: dict[str, Any]) -> bool:
    """Whether this cell is finished."""
    results = read()
    return len(results) > 0 and bool((results[KEY] == pd.Series(cell)[KEY]).all(axis=1).any())


def keep(line: dict[str, Any]) -> None:
    """Add a finished cell to the results, unless another run did; one run at a time."""
    from esmc_pyro.files import write_atomic

    with (RESULTS / ".accuracy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_done(line):
            return
        results = pd.concat([read(), pd.DataFrame([line])], ignore_index=True)
        order = {"dataset": DATASETS, "method": METHODS}
        results = results.sort_values(KEY, key=lambda c: c.map(order[c.name].index) if c.name in order else c)
        write_atomic(RESULTS / "accuracy.csv", results.to_csv(index=False))
        write_atomic(RESULTS / "accuracy.md", table(results))


def with_error(mean: float, error: float) -> str:
    """``mean ± error``; one seed has no error."""
    return f"{mean:.4g}" if np.isnan(error) else f"{mean:.4g} ± {error:.2g}"


def table(results: pd.DataFrame) -> str:
    """Markdown: a table for each dataset and removal, mean ± standard error over the seeds."""
    parts = [
        f"Command: `ESMC_DATA=... python benchmarks/accuracy.py` on {os.cpu_count()} cores. "
        "Mean ± standard error over seeds; "
        "processor seconds of one thread, tuning included."
    ]
    numbers = [*SHOWN, "train_seconds", "predict_seconds", "peak_mib"]
    for (dataset, removed), group in results.groupby(["dataset", "removed"], sort=False):
        by = group.groupby("method", sort=False)[numbers]
        mean, error, seeds = by.mean(), by.sem(), group.groupby("method").seed.nunique()
        parts.append(f"\n## {dataset}, {removed:.0%} of the ones removed\n")
        parts.append("| method | seeds | " + " | ".join(numbers) + " |\n|" + "---|" * (len(numbers) + 2))
        for method in mean.index:
            cells = [with_error(mean.loc[method, n], error.loc[method, n]) for n in numbers]
            parts.append(f"| {method} | {seeds[method]} | " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def summary(results: pd.DataFrame, removed: float) -> str:
    """Markdown, a line a dataset: ESMC, in bold where first, and the best of the peers that have all of its seeds."""
    lines = ["| | seeds | AUC (best peer) | coverage | P@1 | P@3 |", "|---|---|---|---|---|---|"]
    large = ("corel5k", "espgame", "delicious", "imdb", "rcv1-sub1")
    for dataset in (*large, *SMALL, *(f"{name}, folds" for name in SMALL)):
        here = results[(results["dataset"] == dataset) & (results["removed"] == removed)]
        seeds = set(here.loc[here["method"] == "ESMC", "seed"])
        here = here[here["method"] != TOLD]
        whole = [method for method, part in here.groupby("method") if seeds and seeds <= set(part["seed"])]
        if len(whole) < 2:
            continue
        these = here[here["method"].isin(whole) & here["seed"].isin(seeds)]
        mean = these.groupby("method")[list(SUMMARY)].mean()
        cells = [dataset, str(len(seeds))]
        for metric, (scale, digits, better) in SUMMARY.items():
            ours, peers = mean.loc["ESMC", metric], mean[metric].drop("ESMC")
            best = peers.index[list(peers).index(better(peers))]
            digits += 1 if metric == "coverage" and ours < 10 else 0
            text, peer = (f"{scale * value:.{digits}f}".removeprefix("0") for value in (ours, peers[best]))
            first = ours != peers[best] and better(ours, peers[best]) == ours
            cells.append(f"{f'**{text}**' if first else text} ({peer} {SHORT.get(best, best)})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def seed_count(dataset: str, named: int | None = None) -> int:
    """How many seeds a dataset has: of "folds" a fifth each, else as many as are ``named`` on the command line."""
    if dataset.endswith(", folds"):
        return FOLDS
    return named or (SMALL_SEEDS if dataset in SMALL else SEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--removed", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--seeds", type=int, help=f"{SEEDS} by default, {SMALL_SEEDS} of the small sets")
    parser.add_argument("--summary", action="store_true", help="run nothing, print what the README shows")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.summary:
        print("\n\n".join(summary(read(), removed) for removed in options.removed))
        return
    if options.cell:
        print(json.dumps(run_cell(**json.loads(options.cell))))
        return
    cells = [
        {"dataset": d, "removed": r, "seed": s, "method": m}
        for d in options.dataset
        for r in options.removed
        for s in range(seed_count(d, options.seeds))
        for m in options.method
        if r or m != TOLD
    ]
    for number, cell in enumerate(cells, 1):
        if is_done(cell):
            continue
        print(f"{number}/{len(cells)}", *cell.values(), end=" ", flush=True)
        ran = subprocess.run(
            [sys.executable, __file__, "--cell", json.dumps(cell)], capture_output=True, text=True, check=False,
            env=os.environ | ONE_THREAD,
        )  # fmt: skip
        if ran.returncode:
            print("failed:", ran.stderr.strip().splitlines()[-1:], flush=True)
            continue
        values = json.loads(ran.stdout.splitlines()[-1])
        print(*(f"{values[key]:.4g}" for key in ("auc", "coverage", "p@1", "p@3", "train_seconds")), flush=True)
        keep(cell | values)


if __name__ == "__main__":
    main()
