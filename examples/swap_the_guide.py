"""Swap the guide: the same model and the same data under each guide, compared by bound and by prediction.

The bound is a lower bound of the same ``ln p(y)`` whichever guide gives it, so the highest one is the closest to the
posterior, if its fit has converged: the more parameters a guide has, the more steps it wants (the flow,
``auto_iaf_normal``, more than there are here). Delta is a point and has no bound. The model has one layer (so that the
amortised guide is the doubly stochastic one) and few rows, for which even the covariance of all numbers of all rows can
be fitted.

    python examples/swap_the_guide.py --out swap_the_guide.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from pyro.infer import Trace_ELBO

from esmc_pyro.data import simulate
from esmc_pyro.figures import LIGHT, dress, render
from esmc_pyro.files import write_atomic
from esmc_pyro.guides import GUIDES
from esmc_pyro.inference import fit_svi, log_weights
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("swap_the_guide.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    rows, epochs, draws = (12, 3, 20) if options.quick else (20, 200, 1000)
    data = simulate(rows + 400, F=2, K=3, L=[], beta=0.5, gamma=0.5)
    X, Y, X_new, Y_new = data.X[:rows], data.Y[:rows], data.X[rows:], data.Y[rows:]

    objective = Trace_ELBO(8, max_plate_nesting=2, vectorize_particles=True)  # eight draws a step: less noise
    result = {}
    for guide in (name for name in GUIDES if name != "auto_iaf_normal"):
        # the one line that changes is the guide's name
        model = ESMC.from_data(X, Y, [], likelihood="bernoulli", variance=9.0, pseudo=5, beta=0.5, gamma=0.5)
        posterior = fit_svi(model, X, Y, guide=guide, objective=objective, epochs=epochs, lr=0.05, progress=False)
        auc = evaluate(Y_new.numpy(), posterior.predict(X_new).numpy())["auc"]
        result[guide] = {"auc": float(auc)}
        if not posterior.guide.is_point:
            weights = log_weights(posterior, X, Y, draws)
            result[guide] |= {"bound": weights.mean().item(), "error": (weights.std() / draws**0.5).item()}
        print(guide, {name: round(value, 3) for name, value in result[guide].items()})

    figure = Figure(figsize=(8, 4), layout="constrained", facecolor=LIGHT.paper)
    bounds, aucs = figure.subplots(1, 2, sharey=True)
    for axes, name in ((bounds, "bound"), (aucs, "auc")):
        dress(axes, LIGHT)
        some = [guide for guide in result if name in result[guide]]
        errors = [2 * result[guide]["error"] if name == "bound" else 0.0 for guide in some]
        axes.errorbar([result[guide][name] for guide in some], some, xerr=errors, fmt="o", color=LIGHT.accent)
    bounds.invert_yaxis()
    bounds.set_title("bound of ln p(y)", color=LIGHT.ink, fontsize=11, loc="left")
    aucs.set_title("AUC of new rows", color=LIGHT.ink, fontsize=11, loc="left")
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return result


if __name__ == "__main__":
    main()
