"""What a fitted model says to annotators: labels that are probably missing, rows worth labelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from esmc_pyro.models import Likelihood

Drawn = Iterable[tuple[slice, Tensor]]  # blocks of rows with draws of what each label has, draws x n x K


def missing_labels(
    suitability: Tensor, drawn: Drawn, Y: npt.NDArray[Any], labels: Sequence[str], n: int | None
) -> pd.DataFrame:
    """The zeros of ``Y`` by how suitable their label is: ``row``, ``label``, ``probability``, ``spread``.

    ``probability`` is the ``suitability`` that is given (rows x K, as ``Y``), and ``spread`` the standard deviation of
    what is ``drawn`` of it from the posterior. The first ``n`` of all, or every zero if ``n`` is None.
    """
    row, label = np.nonzero(Y == 0)
    probability = suitability.numpy()[row, label]
    order = np.argsort(-probability, kind="stable")[:n]
    row, label = row[order], label[order]
    spread = np.zeros(len(row))
    for rows, draws in drawn:
        here = (row >= rows.start) & (row < rows.stop)
        spread[here] = draws.std(0).numpy()[row[here] - rows.start, label[here]]
    names = np.asarray(labels, dtype=object)[label]
    return pd.DataFrame({"row": row, "label": names, "probability": probability[order], "spread": spread})


@torch.no_grad()
def worth_labelling(drawn: Drawn, likelihood: Likelihood, labels: Sequence[str], n: int, top: int = 3) -> pd.DataFrame:
    """Rows by the information that their labels are expected to give about the functions: ``row``, ``gain``, ``ask``.

    ``gain = sum_k H(E p_k) - E H(p_k)`` in nats, ``p_k = P(y_k = 1 | z_k)`` of the ``z`` that are ``drawn``, ``H`` the
    entropy of a coin: large where draws are each sure and disagree. ``ask`` names the ``top`` labels that add most.
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
