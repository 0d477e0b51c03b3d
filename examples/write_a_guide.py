"""Write a guide: a class with two methods. Here a ``q(u)`` with a single spread for all numbers of a layer.

``Guide`` says what a guide owes; prediction, draws and minibatches follow. The figure shows its bound during the fit
beside those of two guides that come with the package, and the AUC of new rows that each reaches.

    python examples/write_a_guide.py --out write_a_guide.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from esmc_pyro.data import simulate
from esmc_pyro.figures import LIGHT, name_axes, plain_axes, render
from esmc_pyro.files import write_atomic
from esmc_pyro.guides import Guide, label_informed_start
from esmc_pyro.inference import fit_svi
from esmc_pyro.metrics import evaluate
from esmc_pyro.models import ESMC


class OneSpreadGuide(Guide):
    """``q(u_o) = N(Lw v_o, s^2 Lw Lw')``: the prior's covariance, shrunk by one number a layer."""

    def __init__(self, model: ESMC, X: Tensor, Y: Tensor) -> None:
        super().__init__(model)
        for layer, u in zip(model.layers, label_informed_start(model, X, Y), strict=True):
            setattr(self, f"{layer.site}_v", nn.Parameter(layer.whiten(u).detach()))
            setattr(self, f"{layer.site}_log_s", nn.Parameter(torch.tensor(-2.0)))

    def sample_globals(self) -> list[Tensor]:
        us = []
        for layer, mean in zip(self.model.layers, self._means(), strict=True):
            tril = getattr(self, f"{layer.site}_log_s").exp() * layer.factor()
            with pyro.plate(layer.plate, layer.outputs, dim=-1):
                us.append(pyro.sample(f"u_{layer.site}", dist.MultivariateNormal(mean, scale_tril=tril)))
                pyro.sample(f"f_{layer.site}", layer.functions_given(us[-1]))
        return us

    def u_means(self) -> list[Tensor]:
        return [mean.detach() for mean in self._means()]

    def _means(self) -> list[Tensor]:
        return [getattr(self, f"{layer.site}_v") @ layer.factor().mT for layer in self.model.layers]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps: a check that it runs")
    parser.add_argument("--out", type=Path, default=Path("write_a_guide.png"), help="where the figure goes")
    options = parser.parse_args(argv)
    rows, epochs = (30, 3) if options.quick else (200, 200)
    data = simulate(rows + 500, F=3, K=6, L=2)
    X, Y, X_new, Y_new = data.X[:rows], data.Y[:rows], data.X[rows:], data.Y[rows:]

    figure, axes = plain_axes(LIGHT)
    result = {}
    for guide, colour in ((OneSpreadGuide, LIGHT.accent), ("doubly_stochastic", LIGHT.good), ("paper", LIGHT.muted)):
        name = guide if isinstance(guide, str) else guide.__name__
        model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", variance=[1.0, 9.0], pseudo=20)
        posterior = fit_svi(model, X, Y, guide=guide, epochs=epochs, lr=0.05, progress=False)
        result[name] = float(evaluate(Y_new.numpy(), posterior.predict(X_new).numpy())["auc"])
        elbo = posterior.history["elbo"].rolling(5, min_periods=1).mean()
        axes.plot(posterior.history["epoch"], elbo, color=colour, label=f"{name}: AUC {result[name]:.3f}")
        print(f"{name}: AUC {result[name]:.4f}, ELBO {elbo.iloc[-1]:.1f}")
    axes.legend(frameon=False, labelcolor=LIGHT.ink)
    name_axes(axes, LIGHT, "epoch", "ELBO (nats), mean of five epochs")
    write_atomic(options.out, render(figure, "png", dpi=150))
    print(f"{options.out} written.")
    return result


if __name__ == "__main__":
    main()
