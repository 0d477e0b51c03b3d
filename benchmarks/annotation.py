"""Is it worth labelling what is suggested? ``ESMC_DATA=... python benchmarks/annotation.py [--dataset D]``.

A model knows the labels of a few rows; some of the others are labelled next, and it is fitted anew: rows by
``suggest_annotations``, by what is left to learn about each alone (its ``g``, the usual expected information gain), by
the entropy of its labels, or at random (twice, for a mean). All rows are of the training set, test rows judge, every
fit is ``ESMCClassifier(search=False)``. Writes annotation.csv and annotation.md to benchmarks/results.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from accuracy import RESULTS, load, with_error
from scipy.special import entr

from esmc_pyro import ESMCClassifier, annotate
from esmc_pyro.files import write_atomic
from esmc_pyro.metrics import evaluate

# dataset -> rows that are labelled at first, and next
SIZES = {"corel5k": (300, 200), "yeast": (150, 150), "mediamill-sample": (150, 150), "emotions": (60, 60)}
SEEDS, POOL, TEST, DRAWS = 6, 1500, 1500, 30
WAYS = ("none", "at random", "entropy", "information about each alone", "suggested")
MEASURES = {"auc": 1, "p@1": 100, "p@3": 100, "lrap": 100, "macro_auc": 1}


def alone(classifier: ESMCClassifier, X: Any, n: int) -> Any:
    """The ``n`` rows with the largest ``g``: suggestions of rows that have nothing in common."""
    drawn = classifier.stack_.z_draws(X, DRAWS, classifier.random_state)
    names, likelihood = classifier.label_names_, classifier.model_.likelihood
    return annotate.worth_labelling(drawn, likelihood, lambda at: torch.eye(len(at)), names, n)["row"].to_numpy()


def run(dataset: str, seed: int) -> pd.DataFrame:
    """The measures of every way, one line each; two for the random one."""
    X, Y, X_test, Y_test = load(dataset, 0.0, seed)
    first, more = SIZES[dataset]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    known, pool = order[:first], order[first : first + POOL]

    def fit(rows: Any) -> ESMCClassifier:
        return ESMCClassifier(search=False, random_state=seed).fit(X[rows], Y[rows])

    classifier = fit(known)
    p = classifier.predict_proba(X[pool])
    entropy = (entr(p) + entr(1 - p)).sum(axis=1)
    picked = [
        ("none", pool[:0]),
        ("at random", rng.choice(pool, more, replace=False)),
        ("at random", rng.choice(pool, more, replace=False)),
        ("entropy", pool[np.argsort(-entropy)[:more]]),
        ("information about each alone", pool[alone(classifier, X[pool], more)]),
        ("suggested", pool[classifier.suggest_annotations(X[pool], more, DRAWS)["row"]]),
    ]
    lines = []
    for way, rows in picked:
        fitted = fit(np.concatenate([known, rows]))
        values = evaluate(Y_test[:TEST], fitted.decision_function(X_test[:TEST]))
        lines.append({"dataset": dataset, "seed": seed, "way": way} | {key: float(values[key]) for key in MEASURES})
    return pd.DataFrame(lines)


def table(results: pd.DataFrame) -> str:
    """Markdown: a table for each dataset; what is gained over random rows, mean ± standard error over the seeds."""
    parts = [
        "Command: `ESMC_DATA=... python benchmarks/annotation.py`. First the measure with random rows, then what other "
        "ways to choose as many rows add to it (paired over the seeds, mean ± standard error)."
    ]
    for dataset, group in results.groupby("dataset", sort=False):
        means = group.groupby(["seed", "way"])[list(MEASURES)].mean() * pd.Series(MEASURES)
        base = means.xs("at random", level="way")
        first, more = SIZES[str(dataset)]
        parts.append(f"\n## {dataset}: {first} rows, {more} more, {len(base)} seeds\n")
        parts.append("| more rows | " + " | ".join(MEASURES) + " |\n|" + "---|" * (len(MEASURES) + 1))
        for way in WAYS:
            shown = base if way == "at random" else means.xs(way, level="way") - base
            cells = [with_error(shown[key].mean(), shown[key].sem()) for key in MEASURES]
            parts.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    results = pd.DataFrame()
    for dataset in options.dataset:
        for seed in range(options.seeds):
            results = pd.concat([results, run(dataset, seed)], ignore_index=True)
            print(dataset, seed, flush=True)
            write_atomic(RESULTS / "annotation.csv", results.to_csv(index=False))
            write_atomic(RESULTS / "annotation.md", table(results))


if __name__ == "__main__":
    main()
