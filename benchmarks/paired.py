"""ESMC's default less each peer on the same test rows: ``ESMC_DATA=... python benchmarks/paired.py [--dataset D]``.

Small test sets decide little: how much of a lead is the choice of rows? Methods are fitted as in ``accuracy.py``, with
the same seeds, and rows are drawn again from the test rows, the same for both methods. Of "folds" every row is scored
once, by the fit that did not see it; sets whose test rows a seed draws are compared that way only. Labels are full.
Writes benchmarks/results/paired.csv and paired.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import accuracy
import numpy as np
import pandas as pd

from esmc_pyro.metrics import bootstrap_difference

METHODS = ("ESMC", "kNN", "logistic regression", "Nystroem ridge", "extra trees", "MLP")
DATASETS = ("mediamill-sample", "yeast", "emotions", "cal500, folds")
FIXED = [name for name in accuracy.DATASETS if name not in accuracy.TEST_ROWS]
SEEDS = 3
DRAWS = 2000


def keep_scores(dataset: str, seed: int, method: str, path: str) -> None:
    """Fit a method, and write what it says of the test rows."""
    made = accuracy.score(dataset, 0.0, seed, method)
    np.savez(path, Y=made.Y_test, scores=np.asarray(made.scores))


def scores_of(dataset: str, seed: int, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Test labels and scores, from a process of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "scores.npz")
        command = [sys.executable, __file__, "--keep", dataset, str(seed), method, path]
        subprocess.run(command, check=True, env=os.environ | accuracy.ONE_THREAD)
        with np.load(path) as made:
            return made["Y"], made["scores"]


def compare(dataset: str, pool: ThreadPoolExecutor) -> pd.DataFrame:
    """A line for each peer and metric."""
    folds = dataset.endswith(", folds")
    seeds = range(accuracy.FOLDS if folds else SEEDS)
    jobs = [(method, seed) for method in METHODS for seed in seeds]
    made = dict(zip(jobs, pool.map(lambda job: scores_of(dataset, job[1], job[0]), jobs), strict=True))
    truth = [made["ESMC", seed][0] for seed in seeds]
    fits = {method: [made[method, seed][1] for seed in seeds] for method in METHODS}
    if folds:
        fits = {method: [np.concatenate(parts)] for method, parts in fits.items()}
    Y = np.concatenate(truth) if folds else truth[0]
    less = partial(bootstrap_difference, Y, fits["ESMC"], draws=DRAWS)
    parts = []
    for peer in METHODS[1:]:
        lines = less(fits[peer]).loc[list(accuracy.SUMMARY)].reset_index(names="metric")
        parts.append(lines.assign(dataset=dataset, peer=peer, rows=len(Y), fits=len(seeds)))
    return pd.concat(parts)[["dataset", "rows", "fits", "peer", "metric", "value", "standard_error", "low", "high"]]


def table(results: pd.DataFrame) -> str:
    """Markdown: a line for each dataset and peer, bold where the difference is more than two standard errors."""
    lines = [
        "Command: `ESMC_DATA=... python benchmarks/paired.py`. ESMC less the peer, ± standard error over test rows "
        f"({DRAWS} draws, the same rows for both; mean over {SEEDS} seeds, or one fit a fifth). Precision in percent. "
        "Bold: more than two standard errors. Coverage is better where it is negative.\n",
        "| | test rows | peer | AUC | coverage | P@1 | P@3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, rows, peer), group in results.groupby(["dataset", "rows", "peer"], sort=False):
        cells = []
        for metric, (scale, digits, _) in accuracy.SUMMARY.items():
            line = group.set_index("metric").loc[metric]
            value, error = scale * line["value"], scale * line["standard_error"]
            text = f"{value:+.{digits + 1}f} ± {error:.{digits + 1}f}"
            cells.append(f"**{text}**" if abs(value) > 2 * error else text)
        lines.append(f"| {dataset} | {rows} | {peer} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=list(DATASETS),
        choices=FIXED,
    )
    parser.add_argument("--keep", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep:
        dataset, seed, method, path = options.keep
        keep_scores(dataset, int(seed), method, path)
        return
    path = accuracy.RESULTS / "paired.csv"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for dataset in options.dataset:
            lines = compare(dataset, pool)
            if path.exists():
                kept = pd.read_csv(path)
                lines = pd.concat([kept[kept["dataset"] != dataset], lines])
            lines.to_csv(path, index=False)
            path.with_suffix(".md").write_text(table(lines))
            print(table(lines[lines["dataset"] == dataset]), flush=True)


if __name__ == "__main__":
    main()
