"""SVI, NUTS and the analytic solver on one small problem: means and standard deviations of ``z``, side by side.

Labels of 40 instances are drawn from a model with one layer, whose posterior NUTS draws from. The guide
``doubly_stochastic`` with full covariance comes close to it. The paper's factorisation, whether it is fitted by
coordinate ascent or by SVI, has about the right means and standard deviations that are far too small: ``q(z)`` is
independent of ``q(u)``, so it can be no wider than the noise ``gamma`` between them.

    python examples/svi_nuts_analytic.py --out svi_nuts_analytic.png
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from esmc_pyro.data import simulate
from esmc_pyro.figures import LIGHT, dress, name_axes, render
from esmc_pyro.files import write_atomic
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference import fit_analytic, fit_nuts, fit_svi
from esmc_pyro.randomness import seeded
from esmc_pyro.sbc import guide_draws


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("svi_nuts_analytic.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    quick = options.quick

    X, Y, _, model = simulate(N=40, F=2, K=3, L=[], pseudo=10, amplitude=2.0, gamma=0.3)
    full = partial(DoublyStochasticGuide, covariance="full", scale=0.5)
    algorithms = {
        "NUTS": partial(fit_nuts, chains=4, warmup=20 if quick else 200, draws=20 if quick else 250),
        "SVI, doubly stochastic": partial(
            fit_svi, guide=full, objective="collapsed", epochs=20 if quick else 300, lr=0.05
        ),
        "analytic, paper's guide": partial(fit_analytic, covariance="diagonal", sweeps=3 if quick else 100),
    }
    means, deviations = {}, {}
    for name, fit in algorithms.items():
        posterior = fit(copy.deepcopy(model), X, Y, progress=False)
        with seeded(0):
            z = guide_draws(posterior, X, Y, 200 if quick else 1000)["z"].numpy()
        means[name], deviations[name] = z.mean(0), z.std(0)

    figure = Figure(figsize=(8.6, 4.0), layout="constrained", facecolor="none")
    ratios = {}
    for axes, what, values in zip(
        figure.subplots(1, 2), ("mean of z", "standard deviation of z"), (means, deviations), strict=True
    ):
        dress(axes, LIGHT)
        exact = values["NUTS"].reshape(-1)
        ends = [min(0.0, exact.min()), exact.max()]
        axes.plot(ends, ends, color=LIGHT.muted, linewidth=1)
        for (name, found), colour in zip(list(values.items())[1:], (LIGHT.accent, LIGHT.bad), strict=True):
            axes.scatter(exact, found.reshape(-1), s=14, color=colour, label=name, alpha=0.7, linewidths=0)
        name_axes(axes, LIGHT, f"{what}, NUTS", f"{what}, the others")
    figure.axes[0].legend(frameon=False, fontsize=10)
    for name in list(algorithms)[1:]:
        ratios[name] = float(np.median(deviations[name] / deviations["NUTS"]))
        apart = float(np.sqrt(np.square(means[name] - means["NUTS"]).mean()))
        print(
            f"{name}: means {apart:.2f} from those of NUTS (root mean square), whose standard deviation is "
            f"{deviations['NUTS'].mean():.2f} on average; its own is {ratios[name]:.2f} times that (median)"
        )
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return ratios


if __name__ == "__main__":
    main()
