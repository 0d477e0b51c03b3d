"""Calibrate inference: draw labels from the model, fit, and rank the truth among the posterior draws.

The ranks of an exact posterior are uniform. The paper's guide is over-confident: the truth lies outside of its draws
most of the time, and the histograms are a U. The guide ``doubly_stochastic`` with full covariance comes close to flat,
and NUTS is flat. With one layer the labels are independent, so each is a simulation and one fit serves all of them.
``benchmarks/sbc.py`` does the same for more guides.

    python examples/calibrate_inference.py --out calibrate_inference.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from esmc_pyro.figures import rank_histograms, render
from esmc_pyro.files import write_atomic
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference import fit_analytic, fit_nuts, fit_svi
from esmc_pyro.models import ESMC, Bernoulli
from esmc_pyro.sbc import label_quantities, simulation_based_calibration


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few labels and steps: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("calibrate_inference.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    quick = options.quick

    # one layer, ten instances, a label for each simulation; the labels given here say no more than how many there are
    torch.manual_seed(1)
    X = torch.randn(10, 2, dtype=torch.float64)
    Y = (torch.rand(10, 20 if quick else 100) < 0.5).double()
    model = ESMC.from_data(X, Y, [], likelihood=Bernoulli(), lengthscale=1.5, variance=4.0, pseudo=4, gamma=0.3)

    full = partial(DoublyStochasticGuide, covariance="full", start="zero", scale=0.5)
    fits = {
        "paper's guide": partial(fit_analytic, start="zero", covariance="diagonal"),
        "doubly stochastic": partial(fit_svi, guide=full, objective="collapsed", epochs=10 if quick else 200, lr=0.1),
        "NUTS": partial(fit_nuts, start="prior", warmup=10 if quick else 150, draws=20 if quick else 75),
    }
    found = {
        name: simulation_based_calibration(
            model, X, partial(fit, progress=False), simulations=1, quantities=label_quantities(len(X))
        )
        for name, fit in fits.items()
    }
    for name, result in found.items():
        print(f"\n{name}: p = {result.p_value:.2g} that all ranks are uniform")
        print(result.summary().round(3).to_string())
    figure = rank_histograms(found, ["z[0]", "mean z", "|z|", "log-likelihood"])
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return {name: result.p_value for name, result in found.items()}


if __name__ == "__main__":
    main()
