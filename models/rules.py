"""The paper's rules for what a user need not choose, and the start that its PCA of the labels gives."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from esmc_pyro.models.layer import Layer

EXACT = 4096  # rows or labels up to which a matrix of all their pairs is decomposed: some ten seconds
OVER = 256  # directions at most that a random projection has more than it is asked for


def experts_from_ratio(Y: Tensor, cap: int = 100) -> int:
    """``B = min(#zeros / #ones, cap)`` rounded down, at least 1; NaN is neither. The authors' code caps at 50."""
    ones = int((Y == 1).sum())
    zeros = int((Y == 0).sum())
    return cap if ones == 0 else max(1, min(zeros // ones, cap))


def pseudo_count(N: int) -> int:
    """``M``: 0.1 N below 10000 rows, 0.01 N below 20000, else 400; at least 1."""
    if N < 10_000:
        return max(1, round(0.1 * N))
    return round(0.01 * N) if N < 20_000 else 400


def lengthscale_from_distances(X: Tensor, rule: str = "paper", rows: int = 1000, seed: int = 0, norm: int = 2) -> float:
    """``sigma_c`` from the distances ``|x - x'|_norm`` between distinct rows (of a random ``rows`` of them).

    ``"paper"``: twice the mean distance. ``"authors"``: the median, as in their code. Identical rows give 1.
    """
    if rule not in ("paper", "authors"):
        raise ValueError(f"rule must be 'paper' or 'authors'; got {rule!r}")
    if len(X) > rows:
        X = X[np.random.default_rng(seed).permutation(len(X))[:rows]]
    distances = torch.nn.functional.pdist(X, norm)
    if not len(distances) or not distances.max() > 0:
        return 1.0
    scale = 2 * distances.mean() if rule == "paper" else distances.median()
    return scale.item() if scale > 0 else distances[distances > 0].median().item()


def choose_pseudo_rows(N: int, M: int, seed: int = 0) -> np.ndarray:
    """``M`` of ``N`` rows at random; each row once before any row twice, so that ``M > N`` works too."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(N) for _ in range(-(-M // N))])[:M]


def choose_pseudo_instances(X: Tensor, M: int, method: str = "random", seed: int = 0) -> Tensor:
    """``S_c`` (M x F): a random subset of the rows of ``X``, or their k-means centres (``method="kmeans"``)."""
    if method not in ("random", "kmeans"):
        raise ValueError(f"pseudo-instances must be chosen by 'random' or 'kmeans'; got {method!r}")
    if method == "random" or len(torch.unique(X, dim=0)) <= M:
        return X[choose_pseudo_rows(len(X), M, seed)]
    kmeans = MiniBatchKMeans(M, random_state=seed, n_init=1, batch_size=max(1024, 3 * M)).fit(X.numpy())
    return torch.as_tensor(kmeans.cluster_centers_).to(X)


def latent_pseudo_instances(layer: Layer, u: Tensor) -> Tensor:
    """``S_z <- E f_c(S_c)``: the first layer's mean at its own pseudo-instances, given ``u_c`` (O x M). Shape M x O."""
    return layer.predict(layer.pseudo_instances, u)


def label_frequencies(Y: Tensor) -> Tensor:
    """The share of ones among each label's known entries, half a one and half a zero added: ``(N, K) -> (K,)``.

    A label of which nothing is known has that of all known entries.
    """
    known, ones = ~torch.isnan(Y), Y == 1
    every = (ones.sum() + 0.5).to(Y.dtype) / (known.sum() + 1)
    return torch.where(known.any(0), (ones.sum(0) + 0.5).to(Y.dtype) / (known.sum(0) + 1), every)


def standardised_labels(Y: Tensor) -> Tensor:
    """Labels less their frequency, over their standard deviation: ``(N, K) -> (N, K)``.

    Unknown entries (NaN) count as their label's frequency, and a label that never varies is zero.
    """
    spread = label_spread(Y)
    return _centred_labels(Y) / torch.where(spread > 0, spread, torch.ones_like(spread))


def label_spread(Y: Tensor) -> Tensor:
    """The standard deviation of each label, unknown entries (NaN) at their label's frequency: ``(N, K) -> (K,)``."""
    return _centred_labels(Y).square().mean(0).sqrt()


def _centred_labels(Y: Tensor) -> Tensor:
    known = ~torch.isnan(Y)
    filled = torch.where(known, Y, Y.new_zeros(()))
    return torch.where(known, filled - filled.sum(0) / known.sum(0).clamp(min=1), Y.new_zeros(()))


def label_directions(Y: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` largest eigenvalues of ``R``, the correlations of the labels, and their vectors.

    Of more labels than twice the width, only the directions in which ``N`` rows can tell labels apart are found, by
    whichever of K x K and N x N numbers are fewer, or, where both are more than ``EXACT`` squared, by a random
    projection. Shapes: ``(N, K) -> (width,), (K, width)``, or ``N`` in place of ``width`` where that is less.
    """
    standard, (N, K) = standardised_labels(Y), Y.shape
    if 2 * width >= K or min(N, EXACT) >= K:
        standard = standard.double()
        values, vectors = torch.linalg.eigh(standard.mT @ standard / N)
        return values[-width:], vectors[:, -width:]
    if N <= EXACT:
        standard = standard.double()
        values, left = (part[..., -width:] for part in torch.linalg.eigh(standard @ standard.mT / N))
        scale = torch.where(values > 1e-6 * values.max(), (N * values.clamp(min=1e-30)).rsqrt(), 0.0)
        values, vectors = values.clamp(min=0.0), standard.mT @ (left * scale)
    else:
        _, sizes, vectors = _leading(standard, width, steps=2)
        values = sizes.square() / N
    return values.to(Y.dtype), vectors.to(Y.dtype)


def label_coupling(directions: tuple[Tensor, Tensor], strength: float) -> Tensor:
    """``W`` (width x K) with ``W'W = (1 - strength) I + strength R``, by the ``label_directions`` of ``R``.

    As the slopes of the last layer's linear mean, ``z = c W``, it makes labels that occur together borrow strength from
    each other a priori. With fewer directions than labels it is the best approximation by these, scaled so that each
    label keeps its variance, one: what few directions leave of a rare label would hardly let it vary.
    """
    values, vectors = directions
    root = vectors * (1 - strength + strength * values).clamp(min=0).sqrt()
    if len(vectors) == len(values):
        return root @ vectors.mT
    # labels that never vary have no correlations to go by, in whichever directions they are
    varies = (vectors.square() @ values.clamp(min=0)).unsqueeze(1) > 1e-6
    return (root / torch.where(varies, root.norm(dim=1, keepdim=True), 1.0)).mT


def _leading(matrix: Tensor, rank: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """About ``rank`` leading singular vectors and values, by a random projection and so many power steps."""
    with torch.random.fork_rng(devices=[]):  # it draws numbers: same matrix, same vectors
        torch.manual_seed(0)
        parts = torch.svd_lowrank(matrix, q=min(rank + min(rank, OVER), *matrix.shape), niter=steps)
    return parts[0][:, :rank], parts[1][:rank], parts[2][:, :rank]


def label_scores(Y: Tensor, width: int) -> Tensor:
    """The latent start: the top ``width`` left singular vectors of the standardised labels, scaled to unit variance.

    Directions beyond the rank of ``Y`` are zero. Shapes: ``(N, K) -> (N, width)``.
    """
    standard = standardised_labels(Y)
    rank = min(width, *standard.shape)
    if min(standard.shape) > 4 * rank:
        left, values, _ = _leading(standard, rank, steps=4)
    else:
        left, values, _ = torch.linalg.svd(standard, full_matrices=False)
    scores = standard.new_zeros(len(Y), width)
    keep = values[:rank] > 1e-6 * values[0].clamp(min=1e-30)
    scores[:, :rank] = left[:, :rank] * keep * len(Y) ** 0.5
    return scores
