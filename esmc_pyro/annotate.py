"""What posterior draws of ``z`` say to annotators: labels that are probably missing, rows worth labelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from esmc_pyro.models import Likelihood

Drawn = Iterable[tuple[slice, Tensor]]  # blocks of rows with draws of their z, draws x n x K (``Stack.z_draws``)


def missing_labels(
    drawn: Drawn, likelihood: Likelihood, Y: npt.NDArray[Any], labels: Sequence[str], n: int | None
) -> pd.DataFrame:
    """The zeros of ``Y`` (rows x K) by how suitable their label is: ``row``, ``label``, ``probability``, ``spread``.

    ``probability`` is ``E sigma(lambda z)`` and ``spread`` the standard deviation of ``sigma(lambda z)`` over the
    posterior. The first ``n`` of all, or every zero if ``n`` is None.
    """
    parts = []
    for rows, z in drawn:
        suitability = likelihood.suitability(z)
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
def worth_labelling(drawn: Drawn, likelihood: Likelihood, labels: Sequence[str], n: int, top: int = 3) -> pd.DataFrame:
    """Rows by the information that their labels are expected to give about the functions: ``row``, ``gain``, ``ask``.

    ``gain = sum_k H(E p_k) - E H(p_k)`` in nats, ``p_k = P(y_k = 1 | z_k)``, ``H`` the entropy of a coin: large where
    posterior draws are each sure and disagree. ``ask`` names the ``top`` labels that add most to it.
    """
    parts = []
    for _, z in drawn:
        p = likelihood.prob(z)
        parts.append(_entropy(p.mean(0)) - _entropy(p).mean(0))
    gains = torch.cat(parts)
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
