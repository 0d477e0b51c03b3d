"""Write a likelihood: a class with one method. Here the complementary log-log link, compared with the sigmoid.

``P(y = 1 | z) = 1 - exp(-exp(lambda z))``: the chance of at least one event where ``exp(lambda z)`` are expected. It
leaves zero as slowly as a sigmoid and reaches one much sooner. Both are fitted to pictures of digits by the same model,
guide and objective; the figure shows each curve, and the share of ones among new pictures with such a ``z``.

    python examples/write_a_likelihood.py --out write_a_likelihood.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from esmc_pyro.data import make_digit_pictures
from esmc_pyro.figures import LIGHT, name_axes, plain_axes, render
from esmc_pyro.files import write_atomic
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC, Bernoulli, Likelihood


class CLogLog(Likelihood):
    """``P(y = 1 | z) = 1 - exp(-exp(lambda z))``."""

    def distribution(self, z: Tensor) -> TorchDistribution:
        rate = torch.exp((self.lambda_ * z).clamp(-40, 4))  # beyond, the curve is flat to the last digit
        return dist.Bernoulli(logits=torch.log(torch.expm1(rate)))

    def suitability(self, z: Tensor) -> Tensor:
        return self.prob(z)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("write_a_likelihood.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    rows, epochs = (60, 3) if options.quick else (600, 40)
    train, test = make_digit_pictures(rows, 0, part="train"), make_digit_pictures(rows, 1, part="test")
    X, Y, X_test, Y_test = (torch.as_tensor(part) for part in (train.X, train.Y, test.X, test.Y))

    figure, axes = plain_axes(LIGHT)
    result = {}
    z_grid = torch.linspace(-8, 5, 200)
    for likelihood, colour in ((Bernoulli(), LIGHT.muted), (CLogLog(), LIGHT.accent)):
        name = type(likelihood).__name__
        model = ESMC.from_data(
            X, Y, [12], likelihood=likelihood, kernel=["matern32", "rbf"], variance=[1.0, 9.0], pseudo=rows // 4,
            mean=["zero", "constant"], lengthscale="authors",
        )  # fmt: skip
        posterior = fit_svi(model, X, Y, guide="doubly_stochastic", objective="collapsed", epochs=epochs, lr=0.03)
        z = posterior.predict(X_test)
        result[name] = {
            "auc": float(evaluate(Y_test.numpy(), z.numpy())["auc"]),
            "log_prob": likelihood.log_prob(Y_test, z).mean().item(),
        }
        print(f"{name}: AUC {result[name]['auc']:.4f}, log-probability of a new label {result[name]['log_prob']:.4f}")
        axes.plot(z_grid, likelihood.prob(z_grid), color=colour, linewidth=2.2, label=name)
        order = z.flatten().argsort().chunk(20)  # equally many labels in each group
        groups = [(z.flatten()[group].mean(), Y_test.flatten()[group].mean()) for group in order]
        axes.scatter(*zip(*groups, strict=True), color=colour, s=18, zorder=3)
    axes.set_xlim(-8, 5)
    axes.legend(frameon=False, labelcolor=LIGHT.ink)
    name_axes(axes, LIGHT, "z", "P(y = 1 | z), and the share of ones among new pictures")
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return result


if __name__ == "__main__":
    main()
