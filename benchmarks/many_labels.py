"""Many labels: what a step costs that looks at some of them (``esmc_pyro.label_sample``), and what becomes of the fit.

``ESMC_DATA=... python benchmarks/many_labels.py``. Cost: a step of 512 rows on made data of up to 100000 labels, with
all of them and with those of its rows and 2048 others. Fit: the words of rcv1-sub1 as labels. Of the words in 20
or fewer of its 6000 texts, 16000 are labels, and all other words are features; settings are the default's without a
search. Every line runs in a process of its own, with two threads. Writes benchmarks/results/many_labels.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
LABELS = (1_000, 10_000, 100_000)
ABSENT = (None, 256, 2048)
N, F, M, ONES, STEPS = 2048, 100, 1000, 5, 5  # of made data; ones a row
WORDS, TEST, SEEDS = 16_000, 2000, 3
SHOWN = ("auc", "coverage", "p@1", "p@3", "psp@1", "seconds", "peak_mib")


def cost(labels: int, absent: int | None) -> dict[str, float]:
    """Median seconds of a step of the default's fit."""
    import torch

    from esmc_pyro import default
    from esmc_pyro.objectives import MAP

    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.standard_normal((N, F)).astype(np.float32))
    Y = torch.zeros(N, labels)
    Y.scatter_(1, torch.as_tensor(rng.integers(labels, size=(N, ONES))), 1.0)
    model = default.build(X, Y, default.Settings(), default.Bernoulli(), M, 0)
    guide = default.start(model, X, Y)
    guide.z_v_loc.requires_grad_(False)
    loss_of = MAP(absent=absent)(model, guide)
    stepper = torch.optim.Adam([p for p in loss_of.parameters() if p.requires_grad], lr=default.LR, fused=True)
    marks = []
    for rows in torch.randperm(N * (STEPS + 1)).remainder(N).split(512)[: STEPS + 1]:
        stepper.zero_grad()
        loss_of(X, Y, rows).backward()
        stepper.step()
        marks.append(time.perf_counter())
    return {"seconds": float(np.median(np.diff(marks)))}


def words(seed: int) -> tuple[Any, Any, Any, Any]:
    """rcv1-sub1 with ``WORDS`` of its rare words as labels: features and labels to fit, and those that judge."""
    from esmc_pyro.data import load_dataset

    X = load_dataset("rcv1-sub1").whole().X_train
    texts = np.asarray((X != 0).sum(axis=0)).ravel()
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero((texts > 0) & (texts <= 20)))[:WORDS]
    others = np.setdiff1d(np.flatnonzero(texts), chosen)
    order = rng.permutation(X.shape[0])
    features, labels = X[:, others], (X[:, chosen].toarray() != 0).astype(np.float32)
    rest, test = order[TEST:], order[:TEST]
    return features[rest], labels[rest], features[test], labels[test]


def fit(seed: int, absent: int | None, method: str = "ESMC") -> dict[str, float]:
    """Metrics of one fit."""
    import torch
    from peers import label_frequency, nearest_neighbours

    from esmc_pyro import default
    from esmc_pyro.feature_map import FeatureMap
    from esmc_pyro.metrics import evaluate

    X, Y, X_test, Y_test = words(seed)
    begun = time.perf_counter()
    if method == "ESMC":
        default.MANY_LABELS, default.ABSENT = (0, absent) if absent else (10**9, 0)
        settings = default.Settings(features="unit")
        stack = default.fit_stack(X, torch.as_tensor(Y), [(settings, 1.0)], seed=seed, spread=False)
        seconds, scores = time.perf_counter() - begun, stack.predict(X_test).numpy()
    else:
        made = FeatureMap.from_data(X, "unit", seed)
        x, x_test = made(X).numpy(), made(X_test).numpy()
        peer = nearest_neighbours(x, Y, seed, k=30, sharpness=5.0) if method == "kNN" else label_frequency(x, Y, seed)
        seconds, scores = time.perf_counter() - begun, peer(x_test)[0]
    return evaluate(Y_test, scores, Y_train=Y) | {"seconds": seconds}


def run(call: dict[str, Any]) -> dict[str, float]:
    """One line, in a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--call", json.dumps(call)], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    return json.loads(ran.stdout.splitlines()[-1])


def named(absent: int | None) -> str:
    return "all labels" if absent is None else f"those of its rows and {absent} others"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        warnings.filterwarnings("ignore")
        call = json.loads(options.call)
        values = globals()[call.pop("what")](**call)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({key: float(value) for key, value in values.items()} | {"peak_mib": peak}))
        return
    lines = [
        "Command: `ESMC_DATA=... python benchmarks/many_labels.py` on 2 cores.\n",
        f"A step of 512 rows, M = {M}, {ONES} ones a row:\n",
        "| labels | a step looks at | seconds a step | peak MiB |\n|---|---|---|---|",
    ]
    for labels in LABELS:
        for absent in (None, 2048):
            values = run({"what": "cost", "labels": labels, "absent": absent})
            lines.append(f"| {labels} | {named(absent)} | {values['seconds']:.3f} | {values['peak_mib']:.0f} |")
            print(lines[-1], flush=True)
    lines += [
        f"\nrcv1-sub1, {WORDS} of its rare words as labels, 4000 texts to fit and {TEST} to judge, without a search; "
        f"means ± standard errors over {SEEDS} seeds:\n",
        "| method | " + " | ".join(SHOWN) + " |\n|" + "---|" * (len(SHOWN) + 1),
    ]
    methods = [(f"ESMC, {named(absent)}", {"absent": absent}) for absent in ABSENT]
    methods += [(method, {"absent": None, "method": method}) for method in ("kNN", "label frequency")]
    for method, how in methods:
        values = [run({"what": "fit", "seed": seed} | how) for seed in range(SEEDS)]
        columns = [np.array([one[key] for one in values]) for key in SHOWN]
        cells = [f"{c.mean():.4g} ± {c.std(ddof=1) / SEEDS**0.5:.2g}" for c in columns]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    from esmc_pyro.files import write_atomic

    write_atomic(RESULTS / "many_labels.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
