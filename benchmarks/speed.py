"""Speed and memory: ``ESMC_DATA=... python benchmarks/speed.py``, on a machine that does nothing else.

Training throughput beside GPyTorch's SVGP at equal M, batch, outputs and epochs; the epoch's share of this machine's
matrix-multiply speed, measured in the same run; a candidate of the search, its folds fitted together and one by one;
corel5k beside the MLP, the short fits in turn, so that what else the machine does slows down all. Every line runs in a
process of its own.
Writes benchmarks/results/speed.md.
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

RESULTS = Path(__file__).parent / "results"
N, F, K, M, EPOCHS = 4096, 100, 256, 512, 3
STEADY = 20  # epochs of a longer fit, which tells the speed of one
LARGE = N  # pseudo-instances of a second run: the default takes every row up to 20000


def matmul_speed() -> float:
    """Gigaflops of a float32 product of square matrices, the median of twenty."""
    import torch

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    marks = [time.perf_counter()]
    for _ in range(20):
        a @ b
        marks.append(time.perf_counter())
    return 2 * 2048**3 / float(np.median(np.diff(marks))) / 1e9


def made() -> tuple[Any, Any]:
    """Features and labels of the throughput runs."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, F)).astype(np.float32)
    return X, (rng.random((N, K)) < 0.05).astype(np.float32)


def esmc_throughput(M: int = M) -> dict[str, float]:
    """Rows a second of the default's training, features and spread included, and gigaflops of its median epoch alone
    and, in the same process, of matrix products: what else the machine does slows down both.
    """
    import torch

    from esmc_pyro import default

    X, Y = (torch.as_tensor(part) for part in made())
    begun = time.perf_counter()
    default.fit_settings(X, Y, default.Settings(), pseudo=M, epochs=EPOCHS)
    seconds = time.perf_counter() - begun
    before = matmul_speed()
    longer = default.fit_settings(X, Y, default.Settings(), pseudo=M, epochs=STEADY, spread=False)
    epoch = longer.history["seconds"].diff().iloc[1:].median()  # the first makes the features too
    # a step multiplies b x M by M x L and b x L by L x K, and each once more for the gradient
    flops = 2 * N * (M * K + K * K) * 2
    products = (before + matmul_speed()) / 2
    return {"rows_per_second": N * EPOCHS / seconds, "gigaflops": flops / epoch / 1e9, "products": products}


def esmc_throughput_large() -> dict[str, float]:
    """The same with ``LARGE`` pseudo-instances."""
    return esmc_throughput(LARGE)


def svgp_throughput() -> dict[str, float]:
    """The same of GPyTorch."""
    from peers import svgp

    from esmc_pyro.default import batch_size

    X, Y = made()
    begun = time.perf_counter()
    svgp(X, Y, 0, lengthscale=1.0, pseudo=M, epochs=EPOCHS, batch=batch_size(N), steps=0, independent=True)
    return {"rows_per_second": N * EPOCHS / (time.perf_counter() - begun)}


def search_speed(rows: int = 391, features: int = 72, labels: int = 6) -> dict[str, float]:
    """Seconds of a candidate of the search, its folds together, with and without features at hand, and one by one."""
    import torch

    from esmc_pyro import default, search
    from esmc_pyro.folds import Folds

    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.standard_normal((rows, features)).astype(np.float32))
    Y = torch.as_tensor((rng.random((rows, labels)) < 0.2).astype(np.float32))
    parts = [search.hold_out(rows, 0, fold) for fold in range(search.fold_count(rows))]
    x, y, held = ([part[k] for part in [(X[rest], Y[rest], X[held]) for held, rest in parts]] for k in range(3))
    settings = [default.Settings(amplitude=amplitude) for amplitude in (1.0, 2.0, 4.0, 8.0)]
    folds = Folds(torch.stack(y), pseudo=search.SEARCH_PSEUDO)
    marks = [time.perf_counter()]
    for one in settings:
        folds.predict(x, held, one)
        marks.append(time.perf_counter())
    for one in settings:
        for rest, labels_of_rest, new in zip(x, y, held, strict=True):
            default.fit_settings(rest, labels_of_rest, one, pseudo=search.SEARCH_PSEUDO, spread=False).predict(new)
        marks.append(time.perf_counter())
    seconds = np.diff(marks)
    again, alone = np.median(seconds[1:4]), np.median(seconds[5:])
    return {"folds": len(parts), "first": seconds[0], "again": float(again), "alone": float(alone)}


def search_speed_large() -> dict[str, float]:
    """The same in the sizes of corel5k."""
    return search_speed(3999, 100, 260)


def corel5k_esmc(**options: Any) -> dict[str, float]:
    """The default on corel5k, search and calibration included."""
    from esmc_pyro import ESMCClassifier, load_dataset
    from esmc_pyro.metrics import paper_auc

    data = load_dataset("corel5k")
    begun = time.perf_counter()
    classifier = ESMCClassifier(**options).fit(data.X_train, data.Y_train)
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "auc": paper_auc(data.Y_test, classifier.decision_function(data.X_test))}


def corel5k_esmc_unsearched() -> dict[str, float]:
    """The same without a search."""
    return corel5k_esmc(search=False)


def corel5k_esmc_small() -> dict[str, float]:
    """The same with M = 1000."""
    return corel5k_esmc(search=False, pseudo=1000)


def corel5k_esmc_smaller() -> dict[str, float]:
    """The same with M = 500."""
    return corel5k_esmc(search=False, pseudo=500)


def corel5k_mlp(tuned: bool = False) -> dict[str, float]:
    """scikit-learn's MLP on corel5k with alpha = 1, or with what held-out rows choose, as in ``accuracy.py``."""
    from peers import PEERS, choose_setting

    from esmc_pyro import load_dataset
    from esmc_pyro.feature_map import FeatureMap
    from esmc_pyro.metrics import paper_auc

    data = load_dataset("corel5k")
    feature_map = FeatureMap.from_data(data.X_train)
    Y = data.Y_train.toarray() if hasattr(data.Y_train, "toarray") else data.Y_train
    fit, settings = PEERS["MLP"]
    begun = time.perf_counter()
    X = feature_map(data.X_train).numpy()
    setting = choose_setting(fit, settings, X, Y, 0)[0] if tuned else {"alpha": 1.0, "scaled": True}
    predict = fit(X, Y, 0, **setting)
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "auc": paper_auc(data.Y_test, predict(feature_map(data.X_test).numpy())[0])}


def corel5k_mlp_tuned() -> dict[str, float]:
    """The same, tuned."""
    return corel5k_mlp(tuned=True)


COREL5K = {
    "corel5k_esmc_smaller": "ESMC, no search, M = 500",
    "corel5k_esmc_small": "ESMC, no search, M = 1000",
    "corel5k_esmc_unsearched": "ESMC, no search",
    "corel5k_esmc": "ESMC default",
    "corel5k_mlp": "MLP, alpha = 1",
    "corel5k_mlp_tuned": "MLP, tuned on held-out rows",
}
TURNS = 3  # of those that take seconds
SHORT = ("corel5k_esmc_smaller", "corel5k_esmc_small", "corel5k_esmc_unsearched", "corel5k_mlp")
PARTS = {
    f.__name__: f
    for f in (
        esmc_throughput,
        esmc_throughput_large,
        svgp_throughput,
        search_speed,
        search_speed_large,
        corel5k_esmc,
        corel5k_esmc_unsearched,
        corel5k_esmc_small,
        corel5k_esmc_smaller,
        corel5k_mlp,
        corel5k_mlp_tuned,
    )
}


def _import_all() -> None:
    """No import is timed; PyTorch makes some when it makes its first optimiser."""
    import torch

    torch.optim.Adam([torch.zeros(1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        warnings.filterwarnings("ignore")
        _import_all()
        values = PARTS[options.part]()
        print(json.dumps(values | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    runs: dict[str, list[dict[str, float]]] = {part: [] for part in PARTS}
    for part in (*(part for part in PARTS if part not in SHORT), *SHORT * TURNS):
        ran = subprocess.run([sys.executable, __file__, "--part", part], capture_output=True, text=True, check=True)
        runs[part].append(json.loads(ran.stdout.splitlines()[-1]))
        print(part, runs[part][-1], flush=True)
    found = {part: {key: float(np.median([run[key] for run in ran])) for key in ran[0]} for part, ran in runs.items()}
    small, mlp = (np.array([run["seconds"] for run in runs[part]]) for part in ("corel5k_esmc_small", "corel5k_mlp"))
    ours, theirs, large = found["esmc_throughput"], found["svgp_throughput"], found["esmc_throughput_large"]
    from esmc_pyro.default import batch_size

    lines = [
        f"Command: `ESMC_DATA=... python benchmarks/speed.py` on {os.cpu_count()} cores.\n",
        f"Training throughput, N = {N}, F = {F}, K = {K}, M = {M}, batch {batch_size(N)}, {EPOCHS} epochs:\n",
        "| | rows a second | peak MiB |\n|---|---|---|",
        f"| ESMC default (no search) | {ours['rows_per_second']:.0f} | {ours['peak_mib']:.0f} |",
        f"| GPyTorch SVGP | {theirs['rows_per_second']:.0f} | {theirs['peak_mib']:.0f} |",
        f"| ratio | {ours['rows_per_second'] / theirs['rows_per_second']:.1f} | |\n",
        "GPyTorch learns the scales of its kernel as well; the default's are chosen before the fit.\n",
        f"The median epoch beside matrix products in the same process: {large['gigaflops']:.0f} of "
        f"{large['products']:.0f} gigaflops ({large['gigaflops'] / large['products']:.0%}) with M = N = {LARGE}, as "
        f"the default does ({large['peak_mib']:.0f} MiB), {ours['gigaflops']:.0f} of {ours['products']:.0f} "
        f"({ours['gigaflops'] / ours['products']:.0%}) with M = {M}.\n",
        "A candidate of the search, seconds:\n",
        "| in the sizes of | folds | together | together, features at hand | one by one | ratio |",
        "|---|---|---|---|---|---|",
        *(
            f"| {title} | {part['folds']:.0f} | {part['first']:.2f} | {part['again']:.2f} | {part['alone']:.2f} | "
            f"{part['alone'] / part['again']:.1f} |"
            for title, part in (("emotions", found["search_speed"]), ("corel5k", found["search_speed_large"]))
        ),
        "",
        f"corel5k, medians of {TURNS} runs in turn but for the default and the tuned MLP, which had one:\n",
        "| | seconds | AUC | peak MiB |\n|---|---|---|---|",
        *(
            f"| {title} | {found[part]['seconds']:.1f} | {found[part]['auc']:.4f} | {found[part]['peak_mib']:.0f} |"
            for part, title in COREL5K.items()
        ),
        "",
        f"Without a search and with M = 1000, ESMC took {', '.join(f'{ratio:.2f}' for ratio in small / mlp)} of the "
        "time of the MLP with alpha = 1 that ran in the same turn.",
    ]
    (RESULTS / "speed.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
