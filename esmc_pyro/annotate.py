"""What a fitted model says to annotators: labels that are probably missing, rows worth labelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from esmc_pyro.models import Likelihood

Drawn = Iterable[tuple[slice, Tensor]]  # blocks of rows with draws of their z, draws x n x K (``Stack.z_draws``)


def missing_labels(
    z: Tensor,
    drawn: Drawn,
    fits: Callable[[Tensor], Tensor],
    Y: npt.NDArray[Any],
    labels: Sequence[str],
    n: int | None,
) -> pd.DataFrame:
    """The zeros of ``Y`` by how probable it is that their label fits: ``row``, ``label``, ``probability``, ``spread``.

    ``probability`` is ``fits(z)`` (``z`` and ``Y``, rows x K), equal ones by ``z``, and ``spread`` the standard
    deviation of ``fits`` over the ``z`` that are ``drawn``. The first ``n`` of all, or every zero if ``n`` is None.
    """
    row, label = np.nonzero(Y == 0)
    probability = fits(z).numpy()[row, label]
    order = np.lexsort((-z.numpy()[row, label], -probability))[:n]
    row, label = row[order], label[order]
    spread = np.zeros(len(row))
    for rows, draws in drawn:
        here = np.flatnonzero((row >= rows.start) & (row < rows.stop))
        if len(here):
            looked, place = np.unique(row[here] - rows.start, return_inverse=True)
            spread[here] = fits(draws[:, looked]).std(0).numpy()[place, label[here]]
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
