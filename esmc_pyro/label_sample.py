"""Which of many labels a step looks at: all that occur in its rows, and some of the others, which stand for the rest.

A label without a one in a batch adds a little to an objective, and a few such labels say how much all of them add. With
``P`` the labels that occur in the batch, ``R`` of the ``K - |P|`` others drawn at random and ``g_k`` what label ``k``
adds::

    sum_k g_k = E [ sum_{k in P} g_k + (K - |P|) / R  sum_{k drawn} g_k ]

so the likelihood of a batch costs O(b M (|P| + R)) in place of O(b M K), and only what is kept for each label, M K
numbers at most, grows with K. The likelihood must be the same for all labels (``Likelihood.is_alike``).
"""

from __future__ import annotations

import torch
from torch import Tensor


class LabelSample:
    """Draws labels for batches of rows of ``Y`` (N x K of 0, 1, NaN): ``absent`` of those that do not occur."""

    def __init__(self, Y: Tensor, absent: int) -> None:
        self.absent, self.count = absent, Y.shape[1]
        rows, self._labels = (Y == 1).nonzero(as_tuple=True)
        self._sizes = torch.bincount(rows, minlength=len(Y))
        self._starts = self._sizes.cumsum(0) - self._sizes

    def occurring(self, rows: Tensor) -> Tensor:
        """``P``: the labels with a one in these rows, in order. Rows beyond those of ``Y`` have none."""
        rows = rows[rows < len(self._sizes)]
        sizes = self._sizes[rows]
        ends = sizes.cumsum(0)
        # places of all ones of the rows: those of a row follow its first one
        first = (self._starts[rows] - ends + sizes).repeat_interleave(sizes)
        return self._labels[first + torch.arange(len(first), device=first.device)].unique()

    def __call__(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Labels, and how many each stands for, ``(|P| + R,)``; None for all, where these would be half of them."""
        occurring = self.occurring(rows)
        absent = self.count - len(occurring)
        if 2 * (len(occurring) + self.absent) >= self.count:  # to take so many from the others would cost more
            return None, None
        is_absent = torch.ones(self.count, dtype=torch.bool, device=rows.device)
        is_absent[occurring] = False
        # on the processor, whose draws are seeded and kept in checkpoints
        drawn = is_absent.nonzero().squeeze(1)[torch.randperm(absent)[: self.absent].to(rows.device)]
        weights = torch.ones(len(occurring) + len(drawn), dtype=torch.float64, device=rows.device)
        weights[len(occurring) :] = absent / len(drawn)
        return torch.cat([occurring, drawn]), weights
