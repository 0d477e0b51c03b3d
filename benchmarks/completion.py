"""Who finds the labels that nobody wrote down? ``ESMC_DATA=... python benchmarks/completion.py [--dataset D]``.

Half of the ones of the training labels are removed; each method ranks all zeros of these rows, and is judged by which
of them were removed: the share of such among the first 100, among as many as were removed, and the average precision.
ESMC ranks as ``ESMCClassifier().complete`` does, the rows that it was fitted to. A peer has the feature map and the
setting that held-out rows chose for it (benchmarks/results/accuracy.csv, so run that first), and ranks the rows that it
was fitted to or, fifth by fifth, those that it was not: the better of the two is shown, which no one could choose
without the removed labels. A finished cell is not run again. Writes completion.csv and completion.md to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import ast
import warnings
from typing import Any

import numpy as np
import pandas as pd
from accuracy import KEY, RESULTS, SEEDS, SHORT, TOLD, load, with_error
from accuracy import read as read_accuracy
from peers import PEERS
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold

from esmc_pyro import ESMCClassifier
from esmc_pyro.feature_map import FeatureMap, candidate_kinds
from esmc_pyro.files import write_atomic
from esmc_pyro.models import MPU

DATASETS = ("corel5k", "rcv1-sub1", "mediamill-sample", "yeast", "emotions", "cal500", "espgame")
METHODS = ("ESMC", TOLD, *(name for name in PEERS if name != "GPyTorch SVGP"))
REMOVED, FIRST = 0.5, 100
MEASURES = {
    "first": f"removed labels among the first {FIRST}",
    "as_many": "among as many as were removed",
    "ap": "average precision",
}


def rank(dataset: str, seed: int, method: str, X: Any, Y: Any) -> list[Any]:
    """The scores of all entries (rows x K), in one way for ESMC and in two for a peer."""
    if method in ("ESMC", TOLD):
        likelihood: dict[str, Any] = {"likelihood": MPU(REMOVED)} if method == TOLD else {}
        return [ESMCClassifier(random_state=seed, **likelihood).fit(X, Y).suitability(X, draws=None)]
    tuned = read_accuracy().set_index(KEY)["setting"]
    setting = ast.literal_eval(tuned[dataset, REMOVED, seed, method])
    kind, _, is_whole = setting.pop("features", candidate_kinds(X)[0]).partition(", ")
    x = FeatureMap.from_data(X, kind, seed, **({"project": False} if is_whole else {}))(X).numpy()
    fit = PEERS[method][0]
    apart = np.zeros(Y.shape)
    for rest, held in KFold(5, shuffle=True, random_state=seed).split(x):
        apart[held] = fit(x[rest], Y[rest], seed, **setting)(x[held])[0]
    return [fit(x, Y, seed, **setting)(x)[0], apart]


def run_cell(dataset: str, seed: int, method: str) -> dict[str, float]:
    """The measures of one method, the largest of its ways."""
    X, Y, _, _ = load(dataset, REMOVED, seed)
    zero = Y == 0
    removed = load(dataset, 0.0, seed)[1][zero] == 1

    def measure(scores: Any) -> tuple[float, ...]:
        hits = removed[np.argsort(-scores[zero], kind="stable")]
        return (
            float(hits[:FIRST].mean()),
            float(hits[: hits.sum()].mean()),
            average_precision_score(removed, scores[zero]),
        )

    best = np.max([measure(scores) for scores in rank(dataset, seed, method, X, Y)], axis=0)
    return dict(zip(MEASURES, best.tolist(), strict=True))


def summary(results: pd.DataFrame) -> str:
    """Markdown, a line a dataset, in percent: ESMC, in bold where first, and the best peer; finished datasets only."""
    lines = ["| | " + " | ".join(f"{title} (best peer)" for title in MEASURES.values()) + " |", "|" + "---|" * 4]
    peers = [name for name in METHODS if name in PEERS]
    for dataset in DATASETS:
        here = results[results["dataset"] == dataset].groupby("method")[list(MEASURES)]
        if not {"ESMC", *peers} <= set(here.count().query("ap == @SEEDS").index):
            continue
        mean, cells = 100 * here.mean(), []
        for measure in MEASURES:
            ours, best = mean.loc["ESMC", measure], mean.loc[peers, measure].idxmax()
            text = f"{ours:.1f}"
            first = f"**{text}**" if ours > mean.loc[best, measure] else text
            cells.append(f"{first} ({mean.loc[best, measure]:.1f} {SHORT.get(best, best)})")
        lines.append(f"| {dataset} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(results: pd.DataFrame) -> str:
    """Markdown: a table for each measure, methods by datasets, mean ± standard error over the seeds."""
    parts = [
        "Command: `ESMC_DATA=... python benchmarks/completion.py`. Half of the ones are removed from the training "
        "labels; which of the zeros of these rows were removed? Mean ± standard error over seeds, in percent. "
        "A peer ranks rows that it was fitted to, or others, fifth by fifth: the better of the two, for each measure."
        "\n\n" + summary(results)
    ]
    for measure, title in MEASURES.items():
        by = results.groupby(["method", "dataset"])[measure]
        cells = pd.DataFrame({"mean": by.mean(), "error": by.sem()})
        text = cells.apply(lambda row: with_error(100 * row["mean"], 100 * row["error"]), axis=1).unstack()
        order = [name for name in DATASETS if name in text.columns]
        text = text.loc[[name for name in METHODS if name in text.index], order].fillna("")
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        seeds = results.groupby("dataset")["seed"].nunique()
        parts.append(
            "| method | "
            + " | ".join(f"{name}, {seeds[name]} seeds" for name in order)
            + " |\n|"
            + "---|" * (len(order) + 1)
        )
        parts += [
            f"| {method} | " + " | ".join(row) + " |" for method, row in zip(text.index, text.values, strict=True)
        ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--tables", action="store_true", help="run nothing, write the tables anew")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    path, key = RESULTS / "completion.csv", ["dataset", "seed", "method"]
    results = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=[*key, *MEASURES])
    if options.tables:
        write_atomic(RESULTS / "completion.md", table(results))
        return
    cells = [(d, s, m) for d in options.dataset for s in range(SEEDS) for m in options.method]
    for cell in cells:
        if (results[key] == cell).all(axis=1).any():
            continue
        values = run_cell(*cell)
        print(*cell, values, flush=True)
        line = pd.DataFrame([dict(zip(key, cell, strict=True)) | values])
        results = line if results.empty else pd.concat([results, line], ignore_index=True)
        write_atomic(path, results.to_csv(index=False))
        write_atomic(RESULTS / "completion.md", table(results))


if __name__ == "__main__":
    main()
