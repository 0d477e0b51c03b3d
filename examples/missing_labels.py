"""Missing labels: ones removed from the training labels, five likelihoods, and who still knows what fits.

A share of the ones of digit pictures becomes zeros, as if nobody had written them down. The same model is fitted with
each likelihood, and judged by the full labels of new pictures: how well ``z`` ranks them (AUC), and how many labels a
picture has by the mean suitability, which the removal must not lower.

- bernoulli: a zero is a zero;
- eeoe: the paper's, B from the ratio of zeros to ones;
- mpu, told: a suitable label is missing at random, and the rate is known;
- mpu_learned: the same with the rate learned;
- propensity: rates from how rare a label is.

    python examples/missing_labels.py --out missing_labels.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from esmc_pyro.data import make_digit_pictures, remove_ones
from esmc_pyro.figures import LIGHT, dress, name_axes, render
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC, MPU, Likelihood

COLOURS = {"bernoulli": LIGHT.muted, "eeoe": LIGHT.accent, "mpu, told": LIGHT.good, "mpu_learned": LIGHT.bad,
           "propensity": "#a06a00"}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> dict[str, list[tuple[float, float]]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("missing_labels.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    rows, epochs, shares = (60, 2, (0.0, 0.5)) if options.quick else (400, 25, (0.0, 0.3, 0.6))
    train, test = make_digit_pictures(rows, 0, part="train"), make_digit_pictures(400, 1, part="test")
    X, X_test = torch.as_tensor(train.X), torch.as_tensor(test.X)
    labels = float(test.Y.sum(1).mean())

    result: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
    for share in shares:
        Y = torch.as_tensor(remove_ones(train.Y, share, seed=0))
        for name, found in result.items():
            likelihood: str | Likelihood = MPU(share) if name == "mpu, told" else name
            model = ESMC.from_data(
                X, Y, [12], likelihood=likelihood, kernel=["matern32", "rbf"], variance=[1.0, 9.0], pseudo=rows // 4,
                mean=["zero", "constant"], lengthscale="authors",
            )  # fmt: skip
            posterior = fit_svi(model, X, Y, guide="doubly_stochastic", objective="collapsed", epochs=epochs, lr=0.03)
            z = posterior.predict(X_test)
            auc = float(evaluate(test.Y, z.numpy())["auc"])
            found.append((auc, model.likelihood.suitability(z).sum(1).mean().item()))
            print(f"{share:.0%} removed, {name}: AUC {auc:.3f}, {found[-1][1]:.2f} suitable labels a picture "
                  f"(in truth {labels:.2f})")  # fmt: skip

    figure = Figure(figsize=(9.6, 3.7), layout="constrained", facecolor="none")
    left, right = figure.subplots(1, 2)
    for axes, place, caption in ((left, 0, "AUC of new pictures"), (right, 1, "suitable labels a picture")):
        dress(axes, LIGHT)
        for name, found in result.items():
            axes.plot(shares, [pair[place] for pair in found], "o-", color=COLOURS[name], linewidth=2, label=name)
        name_axes(axes, LIGHT, "share of the ones removed", caption)
    right.axhline(labels, color=LIGHT.ink, linewidth=1, linestyle=(0, (4, 2)), label="in truth")
    right.legend(frameon=False, labelcolor=LIGHT.ink, fontsize=9)
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return result


if __name__ == "__main__":
    main()
