"""The collapsed objective beside Pyro's ELBOs, ``python benchmarks/objectives.py``: variance of the gradient, and cost.

One model and one doubly stochastic guide, a little way into a fit; the same batch of rows, many draws. The variance is
summed over the means of ``q(u)`` and divided by the squared length of the mean gradient. Seconds are processor seconds
of one thread. Writes benchmarks/results/objectives.csv and objectives.md.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import torch
from pyro.infer import Trace_ELBO
from torch import nn

from esmc_pyro.data import simulate
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC
from esmc_pyro.objectives import CollapsedELBO

RESULTS = Path(__file__).parent / "results"
N, F, K, L, M, BATCH, DRAWS = 2000, 10, 50, 8, 100, 256, 200


def measure(loss_of: nn.Module, guide: DoublyStochasticGuide, X: torch.Tensor, Y: torch.Tensor) -> dict[str, float]:
    """Mean loss with its error, relative variance of the gradient, milliseconds an evaluation with its gradient."""
    torch.manual_seed(1)
    rows = torch.arange(BATCH)
    means = [guide.v_loc(layer) for layer in guide.model.layers]
    # the variance is that of the means' gradient, the time that of all that is learned
    others = [p for p in loss_of.parameters() if p.requires_grad and all(p is not mean for mean in means)]
    losses, gradients = [], []
    begun = time.process_time()
    for _ in range(DRAWS):
        loss = loss_of(X, Y, rows)
        found = torch.autograd.grad(loss, [*means, *others], allow_unused=True)
        gradients.append(torch.cat([g.flatten() for g in found[: len(means)]]))
        losses.append(loss.item())
    seconds = time.process_time() - begun
    g, loss = torch.stack(gradients), torch.tensor(losses, dtype=torch.float64)
    return {
        "elbo": -loss.mean().item(),
        "standard_error": loss.std().item() / DRAWS**0.5,
        "gradient_variance": (g.var(0).sum() / g.mean(0).square().sum()).item(),
        "milliseconds": 1e3 * seconds / DRAWS,
    }


def main() -> None:
    torch.set_num_threads(1)
    data = simulate(N, F, K, L, seed=0)
    X, Y = data.X, data.Y.to(data.X.dtype)
    lines = []
    for learned, learn in (("frozen", ()), ("learned", ("kernel", "pseudo_instances"))):
        model = ESMC.from_data(X, Y, [L], likelihood="bernoulli", pseudo=M, variance=[1.0, 9.0])
        guide = DoublyStochasticGuide(model, X, Y, covariance="diagonal")
        fit_svi(model, X, Y, guide=guide, objective="collapsed", epochs=5, batch_size=BATCH, progress=False)
        for layer in model.layers:
            layer.learn(*learn)
        for name, elbo in (
            ("collapsed", CollapsedELBO()),
            ("Trace_ELBO", Trace_ELBO()),
            ("Trace_ELBO, 10 particles", Trace_ELBO(num_particles=10, vectorize_particles=True)),
        ):
            line = measure(elbo(model, guide), guide, X, Y)
            lines.append({"kernel and pseudo-instances": learned, "objective": name} | line)
            print(lines[-1], flush=True)
    results = pd.DataFrame(lines)
    results.to_csv(RESULTS / "objectives.csv", index=False)
    rows = [
        f"Command: `python benchmarks/objectives.py`: N = {N}, F = {F}, K = {K}, L = {L}, M = {M}, batch {BATCH}, "
        f"{DRAWS} draws, processor milliseconds of one thread, loss and gradient.\n",
        "| kernel and pseudo-instances | objective | ELBO | variance of the gradient / squared mean | ms | "
        "variance × ms |\n|---|---|---|---|---|---|",
    ]
    for line in results.to_dict("records"):
        rows.append(
            f"| {line['kernel and pseudo-instances']} | {line['objective']} | {line['elbo']:.1f} ± "
            f"{line['standard_error']:.1f} | {line['gradient_variance']:.3g} | {line['milliseconds']:.1f} | "
            f"{line['gradient_variance'] * line['milliseconds']:.3g} |"
        )
    (RESULTS / "objectives.md").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
