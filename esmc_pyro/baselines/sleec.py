"""SLEEC: local embeddings that keep the nearest neighbours of label vectors, and nearest neighbours in them.

Kush Bhatia, Himanshu Jain, Purushottam Kar, Manik Varma and Prateek Jain, Sparse local embeddings for extreme
multi-label classification (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import linalg, sparse
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.neighbors import NearestNeighbors

from esmc_pyro.baselines.base import COUNT, NOT_NEGATIVE, POSITIVE, SEED, Array, Baseline
from esmc_pyro.baselines.ridge import Ridge, leading_eigenvectors, with_constant


def neighbour_products(Y: Array, neighbours: int) -> sparse.csr_array:
    """``G = P_Omega(Y Y')`` (n x n): inner products of rows that are among each other's nearest, in either order.

    Nearest is by inner product; a row is its own neighbour. Zeros in Omega are stored.
    """
    n, k = len(Y), min(neighbours, len(Y))
    few = sparse.csr_array(Y)  # label vectors are mostly zeros
    products = (few @ few.T).toarray()
    nearest = np.argpartition(-products, k - 1, axis=1)[:, :k]
    omega = np.zeros((n, n), dtype=bool)
    omega[np.arange(n)[:, None], nearest] = True
    omega |= omega.T
    np.fill_diagonal(omega, True)
    rows, columns = np.nonzero(omega)
    return sparse.csr_array((products[rows, columns], (rows, columns)), shape=(n, n))


def leading_part(residual: sparse.csr_array, Z: Array, start: Array, passes: int = 2) -> Array:
    """``Z+`` (n x L) with ``Z+ Z+'`` the nearest matrix of that rank and no negative eigenvalue to ``residual + Z Z'``.

    Subspace iteration from ``start`` (n x (L + extra)), near the answer in all but the first call.
    """
    L = Z.shape[1]
    Q = start
    for _ in range(passes):
        Q = linalg.qr(residual @ Q + Z @ (Z.T @ Q), mode="economic")[0]
    A = Q.T @ (residual @ Q)
    small = A + (Q.T @ Z) @ (Z.T @ Q)
    values, vectors = leading_eigenvectors((small + small.T) / 2, min(L, len(small)))
    return np.asarray(Q @ (vectors * np.sqrt(np.maximum(values, 0))))


def embed(Y: Array, latent: int, neighbours: int, steps: int, seed: int) -> tuple[Array, list[float]]:
    """Singular value projection: ``Z`` (n x L) with ``Z Z' = Y Y'`` on Omega as nearly as may be, and the misfits.

    ``Z Z' <- P_L(Z Z' + P_Omega(Y Y' - Z Z'))``, from the best fit to all of ``Y Y'``; ``|P_Omega(Y Y' - Z Z')|²``
    does not rise, since the step minimises a bound from above.
    """
    n, L = len(Y), min(latent, len(Y))
    G = neighbour_products(Y, neighbours)
    rows = np.repeat(np.arange(n), np.diff(G.indptr))
    values, vectors = leading_eigenvectors(Y.T @ Y, min(L, Y.shape[1]))
    Z = np.zeros((n, L))
    Z[:, : len(values)] = Y @ vectors
    extra = np.random.default_rng(seed).standard_normal((n, min(10, n - L)))
    misfits = []
    for _ in range(steps):
        residual = sparse.csr_array((G.data - (Z @ Z.T)[rows, G.indices], G.indices, G.indptr), shape=(n, n))
        misfits.append(float((residual.data**2).sum()))
        Z = leading_part(residual, Z, np.hstack([Z, extra]))
    return Z, misfits


def sparse_regression(X: Any, Z: Array, penalty: float, sparsity: float, steps: int = 20) -> Array:
    """``argmin_V 1/2 |Z - X V|² + penalty/2 |V|² + sparsity |X V|_1`` (F x L), by ADMM on ``X V = A``.

    ``V = ((1 + rho) X'X + penalty)^-1 X'(Z + rho (A - U))``, ``A = shrink(X V + U, sparsity / rho)``,
    ``U += X V - A``, with ``rho = 1``.
    """
    if sparsity == 0:
        return Ridge(X, penalty, centre=False).solve(Z)[0]
    ridge = Ridge(X, penalty / 2, centre=False)  # 2 X'X + penalty = 2 (X'X + penalty / 2)
    A, U = Z, np.zeros_like(Z)
    for _ in range(steps):
        V = ridge.solve((Z + A - U) / 2)[0]
        XV = X @ V
        A = np.sign(XV + U) * np.maximum(np.abs(XV + U) - sparsity, 0)
        U = U + XV - A
    return V


@dataclass
class Part:
    """A cluster's map ``V`` (F x L), its rows' embeddings ``X V`` (n x L) and their labels (n x K)."""

    V: Array
    embedded: Array
    Y: sparse.csr_array


@dataclass
class Learner:
    """One clustering of the rows: the centres (clusters x F), and a part each."""

    centres: Array
    parts: list[Part]


class SLEEC(Baseline):
    """Clusters of rows, in each an embedding of label vectors, a linear map to it, and nearest neighbours there.

    In each cluster ``Z`` keeps the inner products of label vectors with their nearest ones (``embed``), label vectors
    taken at length one; ``V`` maps features to ``Z`` (``sparse_regression``); a row's scores are the mean labels of the
    nearest training rows among the embedded ``X V`` of its cluster. Learners differ in their clusters; scores are
    averaged. Labels that no neighbour has are ranked by their frequency. X gets a constant column. Unlabelled rows are
    ignored.

    Parameters
    ----------
    latent : L
    neighbours : whose inner products an embedding keeps
    nearest : neighbours that vote on a new row
    penalty, sparsity : of the linear map
    cluster_rows : rows in a cluster, about
    learners : how many clusterings are averaged
    steps : of singular value projection
    random_state : draws the clusterings
    """

    limits: ClassVar = {
        "latent": COUNT, "neighbours": COUNT, "nearest": COUNT, "penalty": POSITIVE, "sparsity": NOT_NEGATIVE,
        "cluster_rows": COUNT, "learners": COUNT, "steps": COUNT, "random_state": SEED,
    }  # fmt: skip

    def __init__(
        self, latent: int = 100, neighbours: int = 100, nearest: int = 30, penalty: float = 1.0, sparsity: float = 0.0,
        cluster_rows: int = 6000, learners: int = 3, steps: int = 10, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.latent = latent
        self.neighbours = neighbours
        self.nearest = nearest
        self.penalty = penalty
        self.sparsity = sparsity
        self.cluster_rows = cluster_rows
        self.learners = learners
        self.steps = steps
        self.random_state = random_state

    def _fit(self, X: Any, Y: Array, X_unlabeled: Any) -> None:
        self.frequency_ = Y.mean(axis=0)
        clusters = -(-len(Y) // self.cluster_rows)
        # one cluster is the same each time
        self.learners_ = [
            self._learner(X, Y, clusters, self.random_state + i) for i in range(self.learners if clusters > 1 else 1)
        ]

    def _learner(self, X: Any, Y: Array, clusters: int, seed: int) -> Learner:
        means = KMeans(clusters, init="random", n_init=1, max_iter=20, random_state=seed).fit(X)
        parts, used = [], np.unique(means.labels_)  # equal rows can leave a cluster empty
        for cluster in used:
            rows = np.flatnonzero(means.labels_ == cluster)
            x, y = with_constant(X[rows]), Y[rows]
            length = np.sqrt(y.sum(axis=1, keepdims=True))
            Z, _ = embed(y / np.maximum(length, 1), self.latent, self.neighbours, self.steps, seed)
            V = sparse_regression(x, Z, self.penalty, self.sparsity)
            parts.append(Part(V, x @ V, sparse.csr_array(y)))
        return Learner(means.cluster_centers_[used], parts)

    def _scores(self, X: Any) -> Array:
        scores = np.tile(1e-6 * self.frequency_, (X.shape[0], 1))
        for learner in self.learners_:
            near = euclidean_distances(X, learner.centres).argmin(axis=1)
            for cluster, part in enumerate(learner.parts):
                rows = np.flatnonzero(near == cluster)
                if len(rows):
                    scores[rows] += self._votes(with_constant(X[rows]) @ part.V, part) / len(self.learners_)
        return scores

    def _votes(self, z: Array, part: Part) -> Array:
        k = min(self.nearest, len(part.embedded))
        found = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(part.embedded).kneighbors(z)[1]
        who = sparse.csr_array(
            (np.full(found.size, 1 / k), found.ravel(), np.arange(0, found.size + 1, k)),
            shape=(len(z), len(part.embedded)),
        )
        return np.asarray((who @ part.Y).toarray())
