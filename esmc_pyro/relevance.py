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

ROWS = 1500  # rows at most
STEPS, LR = 40, 0.1
RANK = 128  # columns of T at most
SPREAD = 1.0  # prior standard deviation of the logarithm of a weight


def targets(Y: Tensor, seed: int = 0) -> Tensor:
    """``T`` of labels ``Y`` (n x K of 0, 1 and NaN for unknown, which counts as the label's frequency)."""
    known = ~Y.isnan()
    frequency = Y.nan_to_num().sum(0) / known.sum(0).clamp_min(1)
    variance = frequency * (1 - frequency)
    T = torch.where(known, Y.nan_to_num() - frequency, 0.0)[:, variance > 0] / variance[variance > 0] ** 0.25
    if min(T.shape) <= RANK:
        return T
    left, values, _ = randomized_svd(T.numpy(), RANK, random_state=seed)
    return torch.as_tensor(left * values)


def kernel_matrix(X: Tensor, log_weights: Tensor) -> Tensor:
    """Matern-1/2 of the weighted rows, ``exp(-|w (x - x')|)``: n x n."""
    Z = X * log_weights.exp()
    squares = Z.square().sum(1)
    # the floor keeps the root's slope finite where rows are equal
    distances = (squares[:, None] + squares - 2 * Z @ Z.mT).clamp_min(1e-10).sqrt()
    return torch.exp(-distances)


def evidence(K: Tensor, log_noise: Tensor, T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The evidence at ``C = K + exp(log_noise) I``, and its gradient by ``K`` (n x n) and ``log_noise``."""
    n = len(K)
    factor = torch.linalg.cholesky(K + log_noise.exp() * torch.eye(n, dtype=K.dtype))
    inverse = torch.cholesky_inverse(factor)
    solved = inverse @ T
    trace = (solved * T).sum()
    value = -factor.diagonal().log().sum() - n / 2 * trace.log()
    slope = torch.addmm(inverse, solved, solved.mT, beta=-0.5, alpha=float(n / (2 * trace)))
    return value, slope, slope.trace() * log_noise.exp()


def feature_weights(X: Tensor, Y: Tensor, seed: int = 0) -> npt.NDArray[np.float32]:
    """Weights of mapped features ``X`` (N x F) for labels ``Y`` (N x K), with mean one."""
    rows = torch.as_tensor(np.sort(rules.choose_pseudo_rows(len(Y), min(len(Y), ROWS), seed)))
    x, T = X[rows], targets(Y[rows], seed)
    if not T.numel():  # no label varies: nothing can be learned
        return np.ones(X.shape[1], dtype=np.float32)
    x = (x - x.mean(0)) / rules.lengthscale_from_distances(x, "authors", seed=seed)
    log_weights = torch.zeros(x.shape[1], requires_grad=True)
    log_noise = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([log_weights, log_noise], lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        K = kernel_matrix(x, log_weights)
        _, slope, noise_slope = evidence(K.detach(), log_noise.detach(), T)
        K.backward(-slope)
        with torch.no_grad():
            log_weights.grad += log_weights / SPREAD**2
        log_noise.grad = -noise_slope
        optimizer.step()
    weights = log_weights.detach().exp()
    return (weights / weights.mean()).numpy()
