"""How much each feature says about the labels: a weight a feature, learned on few rows and then frozen.

With the weighted features ``w * x`` in the kernel, ``1 / w`` are length-scales, one a feature. They maximise the
evidence of Gaussian-process regression, per label, with a prior on them. ``T`` (n x K) are the labels less their
frequencies ``p``, over ``(p (1 - p))^(1/4)``: halfway between labels that count alike and labels that count by how
often they occur; of many labels, their ``RANK`` leading principal components. With ``C = k(w X, w X) + noise I`` and
the variance of all columns at its best, ``tr(T' C^-1 T) / (n K)``::

    evidence(w, noise) = -1/2 ln|C| - n/2 ln tr(T' C^-1 T) + constant,    ln w ~ N(0, SPREAD^2)

A step is O(n^3 + n^2 (F + RANK)).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from esmc_pyro.models import rules
from esmc_pyro.models.linalg import add_to_diagonal
from esmc_pyro.threads import few_threads

ROWS = 1500  # rows at most
FEATURES = 4096  # more features are not weighted: a step would take seconds
STEPS, LR = 40, 0.1
RANK = 128  # columns of T at most
SPREAD = 1.0  # prior standard deviation of the logarithm of a weight
TRAINING = (ROWS, STEPS, LR, RANK, SPREAD)


def targets(Y: Tensor, seed: int = 0) -> Tensor:
    """``T`` of labels ``Y`` (n x K of 0, 1 and NaN for unknown, which counts as the label's frequency)."""
    T = rules.standardised_labels(Y)
    varies = T.any(0)
    T = T[:, varies] * rules.label_spread(Y)[varies].sqrt()
    if min(T.shape) <= RANK:
        return T
    left, values, _ = randomized_svd(T.numpy(), RANK, random_state=seed)
    return torch.as_tensor(left * values)


def kernel_matrix(X: Tensor, log_weights: Tensor) -> Tensor:
    """Matern-1/2 of the weighted rows, ``exp(-|w (x - x')|)``: n x n."""
    Z = X * log_weights.exp()
    squares = Z.square().sum(1)
    squared = (squares[:, None] + squares - 2 * Z @ Z.mT).fill_diagonal_(0.0)
    return torch.exp(-squared.clamp_min(1e-10).sqrt())  # the floor keeps the root's slope finite where rows are equal


def evidence(K: Tensor, log_noise: Tensor, T: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The evidence at ``C = K + exp(log_noise) I``, and its gradient by ``K`` (n x n) and ``log_noise``.

    None where rounding leaves ``C`` without a Cholesky factor.
    """
    n = len(K)
    factor, failed = torch.linalg.cholesky_ex(add_to_diagonal(K, log_noise.exp()))
    if failed:
        return None
    inverse = torch.cholesky_inverse(factor)
    solved = inverse @ T
    trace = (solved * T).sum()
    value = -factor.diagonal().log().sum() - n / 2 * trace.log()
    slope = torch.addmm(inverse, solved, solved.mT, beta=-0.5, alpha=float(n / (2 * trace)))
    return value, slope, slope.trace() * log_noise.exp()


def feature_weights(X: Tensor, Y: Tensor, seed: int = 0) -> npt.NDArray[np.float32]:
    """Weights of mapped features ``X`` (N x F) for labels ``Y`` (N x K), with mean one: the best of ``STEPS`` steps."""
    rows = torch.as_tensor(np.sort(rules.choose_pseudo_rows(len(Y), min(len(Y), ROWS), seed)))
    x, T = X[rows], targets(Y[rows].to(X.dtype), seed)
    x = (x - x.mean(0)) / rules.lengthscale_from_distances(x, "authors", seed=seed)
    log_weights = x.new_zeros(x.shape[1]).requires_grad_()
    log_noise = x.new_zeros(()).requires_grad_()
    optimizer = torch.optim.Adam([log_weights, log_noise], lr=LR)
    best, found = -torch.inf, log_weights.detach().clone()
    with few_threads(len(x) ** 2 * max(len(x) / 3, x.shape[1])):
        for _ in range(STEPS if T.numel() else 0):  # labels that do not vary say nothing of any feature
            K = kernel_matrix(x, log_weights)
            now = evidence(K.detach(), log_noise.detach(), T)
            if now is None or not torch.isfinite(now[0]):
                break
            value = float(now[0] - log_weights.detach().square().sum() / (2 * SPREAD**2))
            if value > best:
                best, found = value, log_weights.detach().clone()
            optimizer.zero_grad()
            K.backward(-now[1])
            assert log_weights.grad is not None
            log_weights.grad += log_weights.detach() / SPREAD**2
            log_noise.grad = -now[2]
            optimizer.step()
    weights = found.exp()
    return (weights / weights.mean()).float().numpy()
