"""The methods that ESMC is compared with: each fits given labels and scores new rows, each tuned on held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.optimize import minimize
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from esmc_pyro.metrics import held_out_score
from esmc_pyro.search import LARGE_ROWS, fold_count, hold_out

Array = npt.NDArray[Any]
Scores = tuple[Array, Array | None]  # scores, and probabilities where the method has them
Method = Callable[..., Callable[[Array], Scores]]  # (X, Y, seed, **setting) -> (X_new -> Scores)
TREES, FOREST_BYTES = 200, 8e9
LATENTS, MOST_INDEPENDENT = 32, 100  # functions that more labels than these are mixtures of, in ``svgp``


def label_frequency(X: Array, Y: Array, seed: int) -> Callable[[Array], Scores]:
    """Every row gets the frequencies of the training labels."""
    frequency = Y.mean(axis=0)
    return lambda new: (np.tile(frequency, (len(new), 1)),) * 2


def nearest_neighbours(X: Array, Y: Array, seed: int, k: int, sharpness: float) -> Callable[[Array], Scores]:
    """The labels of the k nearest rows, weighted by ``exp(-sharpness distance / mean distance)``; ties go to frequent
    labels.
    """
    index = NearestNeighbors(n_neighbors=min(k, len(X))).fit(X)
    frequency = Y.mean(axis=0)

    def predict(new: Array) -> Scores:
        distance, rows = index.kneighbors(new)
        weight = np.exp(-sharpness * (distance - distance[:, :1]) / max(distance.mean(), 1e-12))
        weight /= weight.sum(axis=1, keepdims=True)
        p = np.stack([w @ Y[r] for w, r in zip(weight, rows, strict=True)])
        return p + 1e-6 * frequency, np.clip(p, 0, 1)

    return predict


def logistic_regression(X: Array, Y: Array, seed: int, C: float, scaled: bool) -> Callable[[Array], Scores]:
    """One logistic regression a label, ``C`` as in scikit-learn; all labels in one L-BFGS, since they share ``X``.

    Columns of unit deviation, or as they are. What is mostly zero stays so: ``b`` takes the mean of columns.
    """
    is_thin = np.count_nonzero(X) < 0.05 * X.size
    seen = X.any(axis=0) if is_thin else slice(None)  # the weights of other words stay 0

    def columns(rows: Array) -> Any:
        return sparse.csr_array(rows[:, seen]) if is_thin else rows

    scale = StandardScaler(with_mean=scaled and not is_thin, with_std=scaled).fit(columns(X))
    X = scale.transform(columns(X))
    F, K = X.shape[1], Y.shape[1]
    frequency = (Y.sum(axis=0) + 0.5) / (len(Y) + 1)

    def loss(flat: Array) -> tuple[float, Array]:
        W, b = flat[: F * K].reshape(F, K).astype(np.float32), flat[F * K :].astype(np.float32)
        z = X @ W + b
        error = 1 / (1 + np.exp(-z)) - Y
        value = float(np.logaddexp(0, z).sum() - (Y * z).sum() + (W**2).sum() / (2 * C))
        return value, np.concatenate([(X.T @ error + W / C).ravel(), error.sum(axis=0)]).astype(np.float64)

    start = np.concatenate([np.zeros(F * K), np.log(frequency / (1 - frequency))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    W, b = found[: F * K].reshape(F, K), found[F * K :]

    def predict(new: Array) -> Scores:
        z = scale.transform(columns(new)) @ W + b
        return z, 1 / (1 + np.exp(-z))

    return predict


def nystroem_ridge(X: Array, Y: Array, seed: int, noise: float, lengthscale: float) -> Callable[[Array], Scores]:
    """Least squares on 1000 Nystroem features of an RBF kernel, length-scale in medians of the distance."""
    rng = np.random.default_rng(seed)
    some = torch.as_tensor(X[rng.permutation(len(X))[:1000]])
    gamma = 0.5 / max(lengthscale * float(torch.nn.functional.pdist(some).median()), 1e-6) ** 2
    features = Nystroem(gamma=gamma, n_components=min(1000, len(X)), random_state=seed).fit(X)
    A, mean = features.transform(X), Y.mean(axis=0)
    W = np.linalg.solve(A.T @ A + noise * np.eye(A.shape[1]), A.T @ (Y - mean))

    def predict(new: Array) -> Scores:
        scores = features.transform(new) @ W + mean
        return scores, np.clip(scores, 0, 1)

    return predict


def extra_trees(X: Array, Y: Array, seed: int, leaf: int) -> Callable[[Array], Scores]:
    """200 extremely randomised trees over all labels at once.

    A node keeps a number for each label: where all trees would need more than ``FOREST_BYTES``, each is forgotten once
    it was asked, and its growth counts as prediction.
    """
    options: dict[str, Any] = {"min_samples_leaf": leaf, "max_features": "sqrt"}
    shape = (-1, Y.shape[1])  # scikit-learn drops the axis of a single label
    if TREES * 2 * Y.size / leaf * 8 <= FOREST_BYTES:
        forest = ExtraTreesRegressor(TREES, random_state=seed, **options).fit(X, Y)
        return lambda new: (forest.predict(new).reshape(shape),) * 2

    def predict(new: Array) -> Scores:
        total = np.zeros((len(new), Y.shape[1]))
        for tree in range(TREES):
            grown = ExtraTreesRegressor(1, random_state=TREES * seed + tree, **options).fit(X, Y)
            total += grown.predict(new).reshape(shape)
        return (total / TREES,) * 2

    return predict


def mlp(X: Array, Y: Array, seed: int, alpha: float, scaled: bool) -> Callable[[Array], Scores]:
    """scikit-learn's network with one hidden layer of 256 units, 60 iterations; columns of unit deviation or as is."""
    scale = StandardScaler(with_mean=scaled, with_std=scaled).fit(X)
    network = MLPClassifier((256,), alpha=alpha, max_iter=60, random_state=seed)
    network.fit(scale.transform(X), Y.astype(int))
    return lambda new: (network.predict_proba(scale.transform(new)),) * 2


def svgp(
    X: Array, Y: Array, seed: int, lengthscale: float, pseudo: int = 300, epochs: int = 20, batch: int = 256,
    steps: int = 200, independent: bool | None = None,
) -> Callable[[Array], Scores]:  # fmt: skip
    """GPyTorch's sparse variational GP: shared Matern-1/2 kernel and inducing points.

    Labels are ``independent``, or learned mixtures of ``LATENTS`` functions (linear coregionalisation); None chooses
    the latter for more than ``MOST_INDEPENDENT``, where the former takes hours. The kernel's scales are learned too.
    There are ``epochs``, and at least so many ``steps``.
    """
    if independent is None:
        independent = Y.shape[1] <= MOST_INDEPENDENT
    torch.manual_seed(seed)
    x, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y, dtype=torch.float32)
    scale = lengthscale * max(float(torch.nn.functional.pdist(x[torch.randperm(len(x))[:1000]]).median()), 1e-6)
    points = x[torch.randperm(len(x))[:pseudo]]
    model = _SVGP(points, y, scale, None if independent else LATENTS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02 if independent else 0.05)
    batches = max(1, len(x) // batch)
    for _ in range(max(epochs, steps // batches)):
        for rows in torch.randperm(len(x)).tensor_split(batches):
            optimizer.zero_grad()
            mean, variance = model.z(x[rows])
            z = mean + variance.sqrt() * torch.randn_like(mean)
            fit = torch.nn.functional.binary_cross_entropy_with_logits(z, y[rows], reduction="sum") / len(rows)
            (fit + model.variational_strategy.kl_divergence().sum() / len(x)).backward()
            optimizer.step()

    @torch.no_grad()
    def predict(new: Array) -> Scores:
        z = torch.cat([model.z(rows)[0] for rows in torch.as_tensor(new, dtype=torch.float32).split(1024)])
        return z.numpy(), torch.sigmoid(z).numpy()

    model.eval()
    return predict


class _SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, points: torch.Tensor, y: torch.Tensor, scale: float, latents: int | None) -> None:
        K = y.shape[1]
        shape = torch.Size([K if latents is None else latents])
        q = gpytorch.variational.MeanFieldVariationalDistribution(len(points), batch_shape=shape)
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=False))
        self.mean_module = gpytorch.means.ZeroMean()  # without a batch: all functions share one Cholesky factor
        self.offset = torch.nn.Parameter(torch.logit((y.sum(0) + 0.5) / (len(y) + 1)))
        self.mixture = None if latents is None else torch.nn.Parameter(torch.randn(latents, K) / latents**0.5)
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=0.5))
        self.covar_module.base_kernel.lengthscale = scale
        self.covar_module.outputscale = 16.0

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def z(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the logits of rows ``x``, rows x K each."""
        with gpytorch.settings.cholesky_jitter(1e-4, 1e-4):  # tried if there is no factor without; 1e-8 did not suffice
            q = self(x)
        mean, variance = q.mean.mT, q.variance.mT
        if self.mixture is not None:
            mean, variance = mean @ self.mixture, variance @ self.mixture**2
        return mean + self.offset, variance


# method -> the settings that held-out rows choose from
PEERS: dict[str, tuple[Method, tuple[dict[str, Any], ...]]] = {
    "label frequency": (label_frequency, ({},)),
    "kNN": (
        nearest_neighbours,
        tuple({"k": k, "sharpness": s} for k in (10, 30, 100, 300) for s in (1.0, 5.0, 10.0)),
    ),
    "logistic regression": (
        logistic_regression,
        (
            *({"C": c, "scaled": True} for c in (0.0001, 0.001, 0.01, 0.1)),
            *({"C": c, "scaled": False} for c in (0.1, 1.0, 10.0)),
        ),
    ),
    "Nystroem ridge": (
        nystroem_ridge,
        tuple({"noise": n, "lengthscale": l} for n in (0.1, 1.0, 10.0, 100.0) for l in (0.25, 0.5, 1.0, 2.0)),
    ),
    "extra trees": (extra_trees, tuple({"leaf": l} for l in (1, 2, 5, 10))),
    "MLP": (
        mlp,
        (
            *({"alpha": a, "scaled": False} for a in (0.01, 0.1, 1.0)),
            *({"alpha": a, "scaled": True} for a in (0.1, 1.0, 10.0)),
        ),
    ),
    "GPyTorch SVGP": (svgp, tuple({"lengthscale": l} for l in (0.5, 1.0))),
}


# these choose, where words are projected (``feature_map.is_wide``), between that and all words; others are too slow
ON_ALL_WORDS = ("kNN", "logistic regression")


def choose_setting(
    method: Method, settings: tuple[dict[str, Any], ...], X: Array, Y: Array, seed: int
) -> tuple[dict[str, Any], float]:
    """The setting that scores best on held-out training rows, the same rows as in ESMC's own search, and its score.

    Of more than ``LARGE_ROWS`` rows so many are asked, as ESMC asks them last: more rows bear less shrinkage.
    """
    if len(settings) == 1:
        return settings[0], 0.0
    folds = [hold_out(len(X), seed, fold) for fold in range(fold_count(len(X)))]
    if len(X) > LARGE_ROWS:
        folds = [hold_out(len(X), seed, most=LARGE_ROWS)]
    truth = torch.as_tensor(np.concatenate([Y[held] for held, _ in folds]))

    def score(setting: dict[str, Any]) -> float:
        scores = [method(X[rest], Y[rest], seed, **setting)(X[held])[0] for held, rest in folds]
        return held_out_score(truth, torch.as_tensor(np.concatenate(scores)))

    scored = [score(setting) for setting in settings]
    best = int(np.argmax(scored))
    return settings[best], scored[best]
