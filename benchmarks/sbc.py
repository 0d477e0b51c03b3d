"""Simulation-based calibration of guides and algorithms on small models: whose posterior is as wide as it should be?

Labels of 12 instances, two of them unlabelled, are drawn from the model, each algorithm is fitted to them, and the
truth is ranked among its posterior draws (``esmc_pyro.sbc``). With one layer every label is a simulation of its own, so
all of them take one fit; with two they share ``c``, and each simulation is a data set of two labels.

    python benchmarks/sbc.py                                            (results/sbc.csv, .md, .png)
    python benchmarks/sbc.py --layers 2 --checkpoint sbc2.checkpoint    (results/sbc2.*; takes long, goes on if stopped)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from esmc_pyro import figures
from esmc_pyro.files import write_atomic
from esmc_pyro.guides import GUIDES, DoublyStochasticGuide
from esmc_pyro.inference import fit_analytic, fit_nuts, fit_svi
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.models import ESMC, Bernoulli
from esmc_pyro.posterior import Posterior
from esmc_pyro.sbc import SBC, label_quantities, simulation_based_calibration

RESULTS = Path(__file__).parent / "results"
N, I, F, M = 10, 2, 2, 4
SHOWN = {
    1: ("z[0]", "z[11]", "mean z", "|z|", "log-likelihood"),
    2: ("z[0, 0]", "z[11, 1]", "mean z of label 0", "|z|", "log-likelihood"),
}


def problem(layers: int, labels: int) -> tuple[ESMC, Tensor]:
    """A model whose z has a standard deviation near 2, and its instances."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(N + I, F, generator=generator, dtype=torch.float64)
    Y = (torch.rand(N, labels, generator=generator) < 0.5).double()
    widths, variance = ([], [4.0]) if layers == 1 else ([2], [1.0, 4.0])
    model = ESMC.from_data(
        X, Y, widths, likelihood=Bernoulli(), lengthscale=1.5, variance=variance, pseudo=M, gamma=0.3
    )
    if layers == 2:
        with torch.no_grad():
            model.layers[1].pseudo_instances.normal_(generator=generator)
    return model, X


def svi(guide: Callable[..., object], objective: str = "trace", epochs: int = 500) -> Callable[..., Posterior]:
    """``fit_svi`` with all rows at once, from a start that leaves the model alone."""
    made = partial(guide, start="zero")
    return partial(fit_svi, guide=made, objective=objective, epochs=epochs, lr=0.1, progress=False)


def algorithms(layers: int) -> dict[str, Callable[..., Posterior]]:
    """What is compared, by the name it has in the table."""
    sparse = partial(DoublyStochasticGuide, scale=0.5)
    epochs = 200 if layers == 1 else 300  # with one layer the collapsed objective is exact, with two it is an estimate
    found = {
        "analytic, paper's guide": partial(fit_analytic, start="zero", covariance="diagonal", progress=False),
        "analytic, full q(u)": partial(fit_analytic, start="zero", covariance="full", progress=False),
        "SVI, auto_normal": svi(GUIDES["auto_normal"]),
        "SVI, doubly stochastic, diagonal": svi(partial(sparse, covariance="diagonal"), "collapsed", epochs),
        "SVI, doubly stochastic, full": svi(partial(sparse, covariance="full"), "collapsed", epochs),
        "NUTS": partial(fit_nuts, start="prior", chains=4, warmup=150, draws=75, progress=False),
    }
    if layers == 2:  # one normal distribution of all labels at once would be too large with one layer
        found["SVI, auto_multivariate_normal"] = svi(GUIDES["auto_multivariate_normal"])
    return found


def lines_of(name: str, found: SBC, seconds: float) -> pd.DataFrame:
    """A line for each quantity."""
    lines = found.summary().reset_index()
    lines.insert(0, "algorithm", name)
    simulations = found.table["simulation"].nunique()
    return lines.assign(p_all=found.p_value, simulations=simulations, cpu_seconds=round(seconds, 1))


def markdown(lines: pd.DataFrame, shown: Sequence[str], command: str) -> str:
    """A row for each algorithm: one p-value for all quantities, and the factors of the spread."""
    names = " | ".join(quantity.replace("|", "\\|") for quantity in shown)
    rows = [f"| algorithm | simulations | p | spread of {names} |", "|---|---|---|" + "---|" * len(shown)]
    for name, part in lines.groupby("algorithm", sort=False):
        by = part.set_index("quantity")
        spread = [f"{by.loc[q, 'spread']:.2f} ± {by.loc[q, 'spread_error']:.2f}" for q in shown]
        p = by["p_all"].iloc[0]
        verdict = f"{p:.2g}" if p > 1e-16 else "< 1e-16"
        rows.append(f"| {name} | {by['simulations'].iloc[0]} | {verdict} | {' | '.join(spread)} |")
    return (
        "# Simulation-based calibration: is the posterior as wide as it should be?\n\n"
        f"Made by `{command}`.\n\n"
        "p: chi-square tests that the ranks of each quantity are uniform, the smallest p-value times their number; an "
        "exact posterior gives less than 0.01 at most once in a hundred. Spread: the standard deviation that the "
        "posterior claims over the one that its errors have; 1 is right, less is over-confident. In the figure beside "
        "this table a U is a posterior that is too narrow, a hill one that is too wide.\n\n" + "\n".join(rows) + "\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Calibrate every algorithm and write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--layers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--only", nargs="+", help="names of the algorithms to run, as the table has them")
    parser.add_argument("--checkpoint", type=Path, help="a file that keeps finished simulations")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    kept = None if options.checkpoint is None else Checkpoint(options.checkpoint, every_seconds=10)
    one = options.layers == 1
    model, X = problem(options.layers, options.simulations if one else 2)
    parts, found = [], {}
    for name, fit in algorithms(options.layers).items():
        if options.only and name not in options.only:
            continue
        begun = time.process_time()
        print(name, file=sys.stderr)
        result = simulation_based_calibration(
            model, X, fit, labelled=N, simulations=1 if one else options.simulations,
            quantities=label_quantities(len(X)) if one else None,
            checkpoint=None if kept is None else kept.section(name),
        )  # fmt: skip
        if result.interrupted:
            sys.exit(130)
        parts.append(lines_of(name, result, time.process_time() - begun))
        found[name.replace(", ", ",\n")] = result
        print(parts[-1].round(4).to_string(), file=sys.stderr)
    lines, shown = pd.concat(parts, ignore_index=True), SHOWN[options.layers]
    command = "python benchmarks/sbc.py " + " ".join(sys.argv[1:] if argv is None else argv)
    table, stem = markdown(lines, shown, command.strip()), "sbc" if one else "sbc2"
    write_atomic(options.out / f"{stem}.csv", lines.to_csv(index=False, float_format="%.6g"))
    write_atomic(options.out / f"{stem}.md", table)
    figure = figures.rank_histograms(found, shown)
    figure.set_facecolor(figures.LIGHT.paper)
    write_atomic(options.out / f"{stem}.png", figures.render(figure, "png", dpi=110))
    print(table)


if __name__ == "__main__":
    main()
