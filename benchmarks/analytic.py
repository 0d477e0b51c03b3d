"""The analytic-bound solver on corel5k: accuracy of its presets, speed of a sweep, and the race against SVI.

    ESMC_DATA=<folder> python benchmarks/analytic.py --only accuracy --seeds 5
    ESMC_DATA=<folder> python benchmarks/analytic.py --only race
    python benchmarks/analytic.py --only speed          (on a quiet machine)

Each section writes a CSV file and a Markdown table (the race: a plot) into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from esmc_pyro.data import load_dataset
from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference import PRESETS, fit_analytic, fit_svi
from esmc_pyro.inference.analytic import Options, Solver
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC, Bernoulli

RESULTS = Path(__file__).parent / "results"
METRICS = ["auc", "coverage", "p@1", "p@3"]
# preset, square-root features, dtype: the authors' settings need float64 (gamma = 1e-4) and use the raw counts
RUNS: list[tuple[str, bool, type]] = [
    ("authors_b0", False, np.float64),
    ("authors_experts", False, np.float64),
    ("paper", False, np.float64),
    ("default", False, np.float32),
    ("default", True, np.float32),
]
SIZES = [  # N, M, K, L
    (7500, 400, 101, 25),
    (15000, 400, 101, 25),
    (30000, 400, 101, 25),
    (30000, 100, 101, 25),
    (30000, 200, 101, 25),
    (30000, 400, 25, 25),
    (30000, 400, 400, 25),
]


def hellinger(X: np.ndarray) -> np.ndarray:
    """The square root of each row's shares: Euclidean distances of these are Hellinger distances of histograms."""
    return np.sqrt(X / np.maximum(X.sum(1, keepdims=True), 1))


def markdown(frame: pd.DataFrame, title: str, command: str) -> str:
    """A titled Markdown table with the command that made it."""
    head = "| " + " | ".join(map(str, frame.columns)) + " |\n|" + "---|" * frame.shape[1]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in frame.itertuples(index=False)]
    return f"# {title}\n\nMade by `{command}`.\n\n{head}\n" + "\n".join(lines) + "\n"


def write(name: str, frame: pd.DataFrame, table: str) -> None:
    """``results/<name>.csv`` and ``results/<name>.md``."""
    RESULTS.mkdir(exist_ok=True)
    frame.to_csv(RESULTS / f"{name}.csv", index=False)
    (RESULTS / f"{name}.md").write_text(table)
    print(table)


def accuracy(args: argparse.Namespace, command: str) -> None:
    """Every preset on the authors' split, several seeds."""
    data = load_dataset("corel5k")
    records = []
    for preset, roots, dtype in RUNS:
        transform = hellinger if roots else lambda X: X
        X, X_test = (transform(np.asarray(part, dtype=dtype)) for part in (data.X_train, data.X_test))
        for seed in range(args.seeds):
            begun = time.perf_counter()
            posterior = PRESETS[preset](X, data.Y_train, seed=seed).fit(X, data.Y_train, progress=False)
            seconds = time.perf_counter() - begun
            scores = evaluate(data.Y_test, posterior.predict(X_test).numpy())
            record: dict[str, Any] = {"preset": preset, "features": "square root" if roots else "raw", "seed": seed}
            record |= {name: float(scores[name]) for name in METRICS}
            record |= {"seconds": seconds, "sweeps": int(posterior.history["sweep"].max())}
            records.append(record)
            print(record, flush=True)
    frame = pd.DataFrame(records)
    rows = []
    for (preset, features), group in frame.groupby(["preset", "features"], sort=False):
        row = {"preset": preset, "features": features}
        for name, digits in zip(METRICS, (4, 1, 3, 3), strict=True):
            error = group[name].std() / len(group) ** 0.5
            row[name] = f"{group[name].mean():.{digits}f} ± {error:.{digits}f}"
        row["seconds"] = f"{group['seconds'].median():.0f}"
        rows.append(row)
    title = f"corel5k, the authors' split: mean ± standard error of {args.seeds} seeds"
    write("analytic_accuracy", frame, markdown(pd.DataFrame(rows), title, command))


def matmul_speed(dtype: torch.dtype, n: int = 2000) -> float:
    """This machine's matrix product, in 1e9 operations a second: the best of several."""
    a = torch.randn(n, n, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        begun = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begun)
    return 2 * n**3 / best / 1e9


def memory(what: str) -> float:
    """This process's ``VmRSS`` (memory now) or ``VmHWM`` (the most so far), in MB; Linux only."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def _sweeps(size: tuple[int, int, int, int], threads: int, queue: Any) -> None:
    """One size in a process of its own, so that peak memory is its own."""
    torch.set_num_threads(threads)
    N, M, K, L = size
    torch.manual_seed(0)
    X = torch.randn(N, 50, dtype=torch.float64)
    Y = (torch.rand(N, K) < 0.05).double()
    model = ESMC.from_data(X, Y, [L], likelihood=Bernoulli(), pseudo=M)
    guide = PaperGuide(model, X, Y, covariance="full")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew here
    base = memory("VmRSS")
    solver = Solver(model, X, Y, guide, Options())
    solver.sweep()
    times = []
    for _ in range(4):
        solver.resting = [0]  # every block is updated in every sweep that counts
        begun = time.perf_counter()
        solver.sweep()
        times.append(time.perf_counter() - begun)
    solver.resting = [0]
    with FlopCounterMode(display=False) as counter:
        solver.sweep()
    seconds, work = min(times), counter.get_total_flops() / 1e9
    queue.put((seconds, work, memory("VmHWM") - base))


def speed(args: argparse.Namespace, command: str) -> None:
    """Seconds and memory of a sweep against N, M and K, and its share of the machine's matrix-product speed."""
    torch.set_num_threads(args.threads)
    context = multiprocessing.get_context("spawn")
    records = []
    for size in SIZES:
        machine = matmul_speed(torch.float64)
        queue = context.Queue()
        worker = context.Process(target=_sweeps, args=(size, args.threads, queue))
        worker.start()
        seconds, work, added = queue.get()
        worker.join()
        record = dict(zip(("N", "M", "K", "L"), size, strict=True))
        record |= {
            "seconds a sweep": round(seconds, 3), "1e9 operations": round(work, 1),
            "1e9 operations/s": round(work / seconds, 1), "machine's product": round(machine, 1),
            "share": round(work / seconds / machine, 2), "MB on top of data and guide": round(added),
        }  # fmt: skip
        records.append(record)
        print(record, flush=True)
    frame = pd.DataFrame(records)
    title = f"A sweep of the analytic solver, float64, {args.threads} threads (operations of matrix products only)"
    write("analytic_speed", frame, markdown(frame, title, command))


def race(args: argparse.Namespace, command: str) -> None:
    """SVI and the analytic solver on one problem, from one start, towards one bound."""
    torch.set_num_threads(args.threads)
    data = load_dataset("corel5k")
    Y = np.asarray(data.Y_train.todense() if hasattr(data.Y_train, "todense") else data.Y_train)
    labels = np.argsort(-Y.sum(0))[:30]
    X, Y = torch.as_tensor(hellinger(np.asarray(data.X_train))[:1000]), torch.as_tensor(Y[:1000][:, labels])

    def fresh() -> ESMC:
        return ESMC.from_data(X, Y, [8], likelihood=Bernoulli(), pseudo=50, gamma=0.5)

    analytic = fit_analytic(
        fresh(), X, Y, covariance="diagonal", c_variance="rows", sigmoid="quadrature", sweeps=120, tolerance=0.0,
        progress=False,
    ).history  # fmt: skip
    svi = fit_svi(fresh(), X, Y, guide="paper", objective="trace", epochs=args.epochs, progress=False).history
    frame = pd.concat(
        [h[["seconds", "elbo"]].assign(algorithm=name) for name, h in (("analytic", analytic), ("SVI", svi))]
    )
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, group in frame.groupby("algorithm"):
        axes.plot(group["seconds"], group["elbo"], label=name)
    axes.set_ylim(frame["elbo"].quantile(0.1), frame["elbo"].max() + 0.02 * np.ptp(frame["elbo"].to_numpy()[-50:]))
    axes.set(xlabel="seconds", ylabel="bound", xscale="log", title="The paper's guide by SVI and by coordinate ascent")
    axes.legend()
    axes.grid(alpha=0.3)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "analytic_race.png", dpi=90, metadata={"Description": command})
    last = frame.groupby("algorithm").last().round(2).reset_index()
    title = "SVI and analytic, 1000 rows and 30 labels of corel5k: where they end (see analytic_race.png)"
    write("analytic_race", frame.round(3), markdown(last, title, command))


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["accuracy", "speed", "race"], help="one section (all of them if left out)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the accuracy section")
    parser.add_argument("--epochs", type=int, default=600, help="epochs of SVI in the race")
    parser.add_argument("--threads", type=int, default=1, help="threads of every section")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sections = {"accuracy": accuracy, "race": race, "speed": speed}
    for name, section in sections.items():
        if args.only in (None, name):
            rest = sys.argv[1:] if args.only else [*sys.argv[1:], "--only", name]
            section(args, " ".join(["python benchmarks/analytic.py", *rest]))


if __name__ == "__main__":
    main()
