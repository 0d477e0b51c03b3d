"""What a stack is worth beside the best settings alone: ``ESMC_DATA=... python benchmarks/stacking.py [--dataset D]``.

Each fifth of the training rows is judged by its full labels after the default has searched and fitted on the other
four: the candidate with the highest held-out score alone, the stack of ``esmc_pyro.stack``, and whichever of the two
scores more on the rows that chose. Test rows are not touched. Writes benchmarks/results/stacking.csv and stacking.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accuracy import FOLDS, load

from esmc_pyro import default, search
from esmc_pyro.data import remove_ones
from esmc_pyro.feature_map import candidate_kinds
from esmc_pyro.files import write_atomic
from esmc_pyro.metrics import evaluate, held_out_score

RESULTS = Path(__file__).parent / "results"
DATASETS = ("emotions", "yeast", "cal500", "mediamill-sample", "corel5k", "espgame", "delicious")
SHOWN = ["auc", "lrap", "coverage", "p@1", "p@3"]
BEST, STACK, HIGHER = "the best alone", "stack", "whichever scored more"


def run(dataset: str, removed: float, folds: int) -> Iterator[dict[str, Any]]:
    """A line for each of so many fifths and way to choose."""
    X, Y, _, _ = load(dataset, 0.0, 0)
    given = remove_ones(Y, removed, 0) if removed else Y
    fifths = np.array_split(np.random.default_rng(0).permutation(len(Y)), FOLDS)
    for fold, held in enumerate(fifths[:folds]):
        rest = np.setdiff1d(np.arange(len(Y)), held)
        y = torch.as_tensor(given[rest])
        found = search.choose(X[rest], y, None, {}, candidate_kinds(X[rest]))
        members = {BEST: ((found.for_all_rows(found.settings), 1.0),), STACK: found.members}
        z = {name: default.fit_stack(X[rest], y, some, spread=False).predict(X[held]) for name, some in members.items()}
        z[HIGHER] = z[STACK if held_out_score(found.Y, found.z) >= found.tried["score"].max() else BEST]
        for name, scores in z.items():
            values = evaluate(Y[held], scores.numpy())
            line = {"dataset": dataset, "removed": removed, "fold": fold, "choice": name, "members": len(found.members)}
            yield line | {key: float(values[key]) for key in SHOWN}
        print(dataset, removed, fold, len(found.members), "members", flush=True)


def table(results: pd.DataFrame) -> str:
    """Markdown: means over the fifths, and the mean difference to the best alone ± its standard error."""
    lines = [
        "Command: `ESMC_DATA=... python benchmarks/stacking.py`. Fifths of the training rows, each judged after a "
        "search and a fit on the other four; means, in brackets the difference to "
        "the best alone ± its standard error.\n",
        "| dataset | ones removed | choice | members | " + " | ".join(SHOWN) + " |\n|" + "---|" * (len(SHOWN) + 4),
    ]
    for (dataset, removed), group in results.groupby(["dataset", "removed"], sort=False):
        by = {name: part.set_index("fold") for name, part in group.groupby("choice", sort=False)}
        for name, part in by.items():
            cells = []
            for key in SHOWN:
                less = part[key] - by[BEST][key]
                beside = "" if name == BEST else f" ({less.mean():+.4f} ± {less.sem():.4f})"
                cells.append(f"{part[key].mean():.4f}{beside}")
            members = "1" if name == BEST else f"{part['members'].mean():.1f}"
            lines.append(f"| {dataset} | {removed:.0%} | {name} | {members} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--removed", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--folds", type=int, default=FOLDS, help="how many of the fifths are judged")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    path = RESULTS / "stacking.csv"
    results = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["dataset", "removed"])
    for dataset in options.dataset:
        for removed in options.removed:
            if len(results[(results["dataset"] == dataset) & (results["removed"] == removed)]):
                continue
            results = pd.concat([results, pd.DataFrame(run(dataset, removed, options.folds))], ignore_index=True)
            write_atomic(path, results.to_csv(index=False))
            write_atomic(path.with_suffix(".md"), table(results))


if __name__ == "__main__":
    main()
