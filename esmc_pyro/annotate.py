"""What a fitted model says to annotators: labels that are probably missing, rows worth labelling, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.objectives import propagate
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded


@torch.no_grad()
def z_draws(
    posterior: Posterior, X: Tensor, draws: int, seed: int, block: int = 1024
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows with posterior draws of their ``z`` (draws x n x K).

    With the doubly stochastic guide ``u`` is integrated out a row at a time (``objectives.propagate``): each entry has
    its exact marginal, and no draw costs an M x M factor. Other guides are sampled.
    """
    with seeded(seed):
        for start in range(0, len(X), block):
            rows = slice(start, min(start + block, len(X)))
            if isinstance(posterior.guide, DoublyStochasticGuide):
                features = posterior.model.layers[0].features(X[rows])
                z = []
                for _ in range(draws):
                    mean, var = propagate(posterior.model, posterior.guide, X[rows], features)
                    z.append(mean + var.sqrt() * torch.randn_like(mean))
                yield rows, torch.stack(z)
            else:
                yield rows, posterior.sample(X[rows], draws, ("z",))["z"]


def missing_labels(
    posterior: Posterior, X: Tensor, Y: npt.NDArray[Any], labels: Sequence[str], n: int | None, draws: int, seed: int
) -> pd.DataFrame:
    """The zeros of ``Y`` (rows x K) by how suitable their label is: ``row``, ``label``, ``probability``, ``spread``.

    ``probability`` is ``E sigma(lambda z)`` and ``spread`` the standard deviation of ``sigma(lambda z)`` over the
    posterior. The first ``n`` of all, or every zero if ``n`` is None.
    """
    parts = []
    for rows, z in z_draws(posterior, X, draws, seed):
        suitability = posterior.model.likelihood.suitability(z)
        probability, spread = suitability.mean(0).numpy(), suitability.std(0).numpy()
        row, label = np.nonzero(Y[rows] == 0)
        values = probability[row, label]
        if n is not None and len(values) > n:
            keep = np.argpartition(-values, n - 1)[:n]
            row, label, values = row[keep], label[keep], values[keep]
        parts.append(
            pd.DataFrame(
                {
                    "row": row + rows.start,
                    "label": np.asarray(labels, dtype=object)[label],
                    "probability": values,
                    "spread": spread[row, label],
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    return table.sort_values("probability", ascending=False, kind="stable", ignore_index=True)[:n]


@torch.no_grad()
def worth_labelling(
    posterior: Posterior, X: Tensor, labels: Sequence[str], n: int, draws: int, seed: int, top: int = 3
) -> pd.DataFrame:
    """Rows by the information that their labels are expected to give about the functions: ``row``, ``gain``, ``ask``.

    ``gain = sum_k H(E p_k) - E H(p_k)`` in nats, ``p_k = P(y_k = 1 | z_k)``, ``H`` the entropy of a coin: large where
    posterior draws are each sure and disagree. ``ask`` names the ``top`` labels that add most to it.
    """
    gains = torch.empty(len(X), len(labels))
    for rows, z in z_draws(posterior, X, draws, seed):
        p = posterior.model.likelihood.prob(z)
        gains[rows] = _entropy(p.mean(0)) - _entropy(p).mean(0)
    totals = gains.sum(1)
    order = torch.argsort(totals, descending=True, stable=True)[:n]
    ask = gains[order].topk(min(top, len(labels)), dim=1).indices
    return pd.DataFrame(
        {
            "row": order.numpy(),
            "gain": totals[order].numpy(),
            "ask": [", ".join(labels[i] for i in best) for best in ask.tolist()],
        }
    )


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p) + torch.special.entr(1 - p)


@torch.no_grad()
def nearest_pseudo_instances(posterior: Posterior, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Positions and kernel values of the ``n`` pseudo-instances most like each row: (rows x n) each."""
    layer = posterior.model.layers[0]
    similarity = layer.kernel(x, layer.pseudo_instances) / layer.kernel(x, diag=True).unsqueeze(-1)
    values, places = similarity.topk(min(n, layer.pseudo_count), dim=1)
    return places, values
