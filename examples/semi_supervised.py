"""Semi-supervised: few labelled pictures, many unlabelled ones. Do the unlabelled ones help?

The paper's guide keeps a code ``c`` and a score ``z`` for each row, labelled or not, so the closed-form bound runs over
all of them; they can also be pseudo-instances. Two ways to use them, against the labelled rows alone:

- all rows: the bound of labelled and unlabelled rows together;
- self-training: as in the authors' code, a fit to the labelled rows says the ``z`` of the others, which then stays.

An unlabelled row says nothing of ``p(y | x)`` by itself: this model has no density of ``x``. On these pictures it does
not help: the AUC of new ones falls, as the script shows.

    python examples/semi_supervised.py --out semi_supervised.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from esmc_pyro.data import make_digit_pictures
from esmc_pyro.figures import LIGHT, name_axes, plain_axes, render
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_analytic
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC, Bernoulli


def main(argv: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("semi_supervised.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    labelled, unlabelled, seeds, sweeps = (20, 20, 2, 1) if options.quick else (60, 240, 4, 10)

    test = make_digit_pictures(100 if options.quick else 500, 1, part="test")
    ways = {"labelled rows alone": None, "all rows": "bound", "self-training": "self_training"}
    auc: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(seeds):
        train = make_digit_pictures(labelled + unlabelled, 100 + seed, part="train")
        X, Y = torch.as_tensor(train.X), torch.as_tensor(train.Y[:labelled])
        for name, way in ways.items():
            seen = X[:labelled] if way is None else X
            model = ESMC.from_data(
                seen, Y, [10], likelihood=Bernoulli(), kernel="rbf", lengthscale="authors", variance=[1.0, 9.0],
                mean=["zero", "constant"], pseudo=labelled, seed=seed,
            )  # fmt: skip
            more = {} if way is None else {"X_unlabeled": X[labelled:], "unlabelled": way}
            posterior = fit_analytic(model, X[:labelled], Y, sweeps=sweeps, seed=seed, progress=False, **more)
            auc[name].append(float(evaluate(test.Y, posterior.predict(test.X).numpy())["auc"]))

    figure, axes = plain_axes(LIGHT)
    values = np.array(list(auc.values()))
    axes.plot(range(len(ways)), values, color=LIGHT.grid, linewidth=1.5)
    for place, row in enumerate(values):
        axes.scatter(np.full(seeds, place), row, color=LIGHT.accent if place else LIGHT.muted, zorder=2)
    axes.set_xticks(range(len(ways)), list(ways))
    axes.margins(x=0.2)
    name_axes(axes, LIGHT, f"{labelled} labelled, {unlabelled} unlabelled pictures", "AUC of new pictures")
    write_atomic(options.out, render(figure, "png", dpi=150))

    print(f"labelled rows alone: AUC {values[0].mean():.3f}")
    gains = {}
    for name, row in zip(list(ways)[1:], values[1:], strict=True):
        gain = row - values[0]
        gains[name] = (float(gain.mean()), float(gain.std(ddof=1) / seeds**0.5))
        print(f"{name}: AUC {row.mean():.3f}, gain {gains[name][0]:+.3f} ± {gains[name][1]:.3f}")
    print(f"{options.out} written.")
    return gains


if __name__ == "__main__":
    main()
