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

LOOKED_AT, IN_TURN, NOISE = 2000, 200, 0.3  # of ``worth_labelling``


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
    correlation: Callable[[Tensor], Tensor],
    labels: Sequence[str],
    n: int,
    *,
    top: int = 3,
    seed: int = 0,
) -> pd.DataFrame:
    """Rows by the information that their labels are expected to give about all rows: ``row``, ``gain``, ``ask``.

    What is left to learn about row ``j``, in nats, is ``g_j = sum_k H(E p_jk) - E H(p_jk)``: ``p = P(y = 1 | z)`` of
    the ``z`` that are ``drawn``, ``H`` the entropy of a coin; large where draws are each sure and disagree. Labels of
    row ``i`` say of ``j`` what they have in common: ``gain_i = sum_j g_j r_ij²``, ``r`` being the ``correlation`` of
    rows (places -> len(places) x len(places)). Rows are chosen one after another, each given the labels of those before
    it, as if these told of a Gaussian variable with noise of ``NOISE`` times its variance: rows alike are not all
    chosen, nor are rows like no other. ``ask`` names the ``top`` labels that add most to ``g``.

    Of more than ``LOOKED_AT`` rows so many, drawn at random, stand for all, and the others follow by ``g``. After
    ``IN_TURN`` rows those that are left follow by the gain that they have then.
    """
    parts = []
    for _, z in drawn:
        p = likelihood.prob(z)
        parts.append(_entropy(p.mean(0)) - _entropy(p).mean(0))
    gains = torch.cat(parts).float().clamp(min=0)
    own, count = gains.sum(1), len(gains)
    looked = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:LOOKED_AT].sort().values
    shared, weight = correlation(looked), own[looked]
    scale = (count - 1) / max(1, len(looked) - 1)  # each but the row itself stands for so many

    def gain() -> Tensor:
        left = shared.diagonal().clamp(min=1e-6)
        return scale * (shared.square() @ weight) / left - (scale - 1) * weight * left

    rows: list[int] = []
    values: list[float] = []
    for _ in range(min(n, len(looked), IN_TURN)):
        now = gain()
        now[rows] = -1.0
        best = int(now.argmax())
        rows.append(best)
        values.append(float(now[best]))
        # what its labels leave of the variance
        step = shared[best] / (shared[best, best] * (1 + NOISE)).sqrt()
        shared = shared - torch.outer(step, step)
    rest = own.clone()
    rest[looked] = gain()
    rows = looked[rows].tolist()
    rest[rows] = -1.0
    after = torch.argsort(rest, descending=True, stable=True)[: max(0, min(n, count) - len(rows))]
    found = pd.DataFrame({"row": rows + after.tolist(), "gain": values + rest[after].tolist()})
    found = found.sort_values("gain", ascending=False, kind="stable", ignore_index=True)
    ask = gains[found["row"].tolist()].topk(min(top, len(labels)), dim=1).indices
    return found.assign(ask=pd.Series([[labels[i] for i in best] for best in ask.tolist()], dtype=object))


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p) + torch.special.entr(1 - p)
