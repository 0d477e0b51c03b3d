"""Look at a posterior with ArviZ: the draws as named arrays, LOO, k-hat of q, two likelihoods compared, and a page.

python examples/arviz_report.py --out arviz_report.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from esmc_pyro.data.simulate import simulate
from esmc_pyro.diagnose import write_diagnosis
from esmc_pyro.diagnose_figures import forest
from esmc_pyro.diagnostics import compare, khat, loo, verdict
from esmc_pyro.figures import render
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import EEOE, ESMC, Bernoulli


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data: a check that it runs")
    parser.add_argument(
        "--out", type=Path, default=Path("arviz_report.png"), help="where the figure goes; page beside it"
    )
    options = parser.parse_args(argv)
    rows, epochs, draws = (40, 10, 100) if options.quick else (150, 150, 400)

    # labels that were drawn from experts who must agree, so that many are missing
    drawn = simulate(N=rows, F=2, K=5, L=[], likelihood=EEOE(10), pseudo=12, offset=2.0)
    posteriors = {}
    for name, likelihood in {"eeoe": EEOE(10), "bernoulli": Bernoulli()}.items():
        model = ESMC.from_data(drawn.X, drawn.Y, [], likelihood=likelihood, pseudo=12, variance=9.0, mean="constant")
        posteriors[name] = fit_svi(
            model, drawn.X, drawn.Y, guide="doubly_stochastic", objective="collapsed", epochs=epochs, lr=0.05,
            progress=False,
        )  # fmt: skip

    # one call gives every group; ArviZ's own functions and plots take it from here
    data = posteriors["eeoe"].to_arviz(drawn.X, drawn.Y, draws=draws, label_names=list("abcde"))
    print("posterior:", {name: dict(values.sizes) for name, values in data["posterior"].data_vars.items()}["z"])
    found = loo(data)
    print(f"LOO: elpd {found.elpd:.1f} ± {found.se:.1f}, {found.bad} of {len(found.pointwise)} terms not to be trusted")
    k = khat(posteriors["eeoe"], drawn.X, drawn.Y, draws=max(100, draws))
    print(f"k-hat of q: {k:.2f}. {verdict(k)}")
    table = compare(posteriors, drawn.X, drawn.Y, draws=draws)
    print(table[["rank", "elpd", "elpd_diff", "dse", "bad_k"]].round(2))

    page = write_diagnosis(
        posteriors["eeoe"], drawn.X, drawn.Y, options.out.with_suffix(".html"), name="Labels from ten experts",
        label_names=list("abcde"), draws=max(100, draws),
    )  # fmt: skip
    z = data["posterior"]["z"].values[0, :, :12, 0]
    quantiles = np.quantile(z, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0).T
    picture = forest(quantiles, [f"{row}, a" for row in range(len(quantiles))])
    write_atomic(options.out, render(picture, "png", dpi=120))
    print(f"{options.out} and {page} written.")
    return {"elpd": found.elpd, "khat": k, **table["elpd"]}


if __name__ == "__main__":
    main()
