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

# of ``worth_labelling``: rows that stand for all, rows that are chosen in turn, noise of labels (c has variance 1)
REFERENCES, IN_TURN, NOISE = 2000, 200, 0.3


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
def worth_labelling(
    drawn: Drawn,
    likelihood: Likelihood,
    correlations: Callable[[Tensor], Tensor],
    labels: Sequence[str],
    n: int,
    *,
    top: int = 3,
    seed: int = 0,
) -> pd.DataFrame:
    """Rows by the information that their labels are expected to give about all rows: ``row``, ``gain``, ``ask``.

    What is left to learn about row ``j``, in nats, is ``g_j = sum_k H(E p_jk) - E H(p_jk)``: ``p = P(y = 1 | z)`` of
    the ``z`` that are ``drawn``, ``H`` the entropy of a coin; large where draws are each sure and disagree. Labels of
    row ``i`` say of ``j`` what they have in common: ``gain_i = sum_j g_j r_ij²``, ``correlations(i)`` being ``r_ji``
    (rows x len(i)). Rows are chosen one after another, each given the labels of those before it, as a Gaussian process
    with noise ``NOISE`` would be: rows alike are not all chosen, nor are rows like no other. ``ask`` names the ``top``
    labels that add most to ``g``.

    Of more than ``REFERENCES`` rows so many, drawn at random, stand for all others as ``j``, and after ``IN_TURN`` rows
    those that are left follow by the gain that they have then.
    """
    parts = []
    for _, z in drawn:
        p = likelihood.prob(z)
        parts.append(_entropy(p.mean(0)) - _entropy(p).mean(0))
    gains = torch.cat(parts).clamp(min=0)
    own, count = gains.sum(1), len(gains)
    others = torch.arange(count)
    if count > REFERENCES:
        others = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:REFERENCES]
    shared, variance = correlations(others), torch.ones(count)
    weight = own[others] * (count / len(others))
    chosen, values, steps = [], [], torch.zeros(count, 0)
    while len(chosen) < min(n, count):
        value = shared.square() @ weight
        value[others] -= weight * variance[others].square()  # itself, which only some have among the others
        value = own * variance + value / variance.clamp(min=1e-6)
        value[chosen] = -1.0
        if len(chosen) == IN_TURN:
            rest = torch.argsort(value, descending=True, stable=True)[: min(n, count) - IN_TURN]
            chosen, values = chosen + rest.tolist(), values + value[rest].tolist()
            break
        best = int(value.argmax())
        chosen.append(best)
        values.append(float(value[best]))
        # what the labels of this row leave of the variance
        column = correlations(torch.tensor([best])).squeeze(1) - steps @ steps[best]
        step = column / (column[best] + NOISE).sqrt()
        shared -= torch.outer(step, step[others])
        variance -= step.square()
        steps = torch.cat([steps, step.unsqueeze(1)], 1)
    order = np.argsort(-np.array(values), kind="stable")
    rows = np.array(chosen, dtype=np.int64)[order]
    ask = gains[torch.from_numpy(rows)].topk(min(top, len(labels)), dim=1).indices
    return pd.DataFrame(
        {
            "row": rows,
            "gain": np.array(values)[order],
            "ask": [", ".join(labels[i] for i in best) for best in ask.tolist()],
        }
    )


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p) + torch.special.entr(1 - p)
