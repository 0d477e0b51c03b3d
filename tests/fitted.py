"""Small fitted estimators of every kind that a model file must hold, each fitted once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.contrib.gp import kernels
from scipy import sparse

from esmc_pyro import ESMCClassifier, default, feature_map, judge, search, stack
from esmc_pyro.guides import AmortizedGuide, DoublyStochasticGuide, PaperGuide
from esmc_pyro.inference import fit_svi
from esmc_pyro.models import EEOE, LIKELIHOODS, MPU, Bernoulli, Experts, Gaussian, LearnedMPU

N, F, K = 30, 5, 4


@contextmanager
def quick(curved: bool = False, stacked: bool = False) -> Iterator[None]:
    """A search of few candidates and few steps; with ``curved`` it ends at the one that adds ``f_z``, with ``stacked``
    all of them are members.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_STEPS", "CURVED_STEPS"):
            patch.setattr(default, name, 4)
        patch.setattr(default, "EPOCHS", 3)
        patch.setattr(default, "CURVED_EPOCHS", 2)
        patch.setattr(search, "CANDIDATES", (({"amplitude": 2.0},), ({"curvature": 1.0},)))
        scores = itertools.count() if curved else itertools.count(0, -1)
        patch.setattr(judge, "held_out_score", lambda Y, z: float(next(scores)))
        if not stacked:
            patch.setattr(stack, "member_weights", lambda z, *rest: np.eye(len(z))[-1 if curved else 0])
        else:
            patch.setattr(stack, "member_weights", lambda z, *rest: np.arange(1, len(z) + 1) / sum(range(len(z) + 1)))
        yield


def data(kind: str = "dense") -> tuple[Any, Any]:
    """Features and labels, with unknown entries; "sparse", "wide" (sparse), or as "frames"."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, F)).astype(np.float32)
    Y = (X @ rng.normal(size=(F, K)) + rng.normal(size=(N, K)) > 0.7).astype(np.float32)
    Y[2, 1] = np.nan
    if kind == "frames":
        names = [f"feature {i}" for i in range(F)]
        labels = pd.DataFrame(Y, columns=["sky", "sea", "µ-tree", "sky, sea"])
        return pd.DataFrame(X, columns=names, index=np.arange(N) * 3), labels
    if kind in ("sparse", "wide"):
        words = sparse.random_array((N, 40), density=0.2, rng=rng, dtype=np.float32, format="csr")
        return sparse.csr_array(words), Y
    return X, Y


def _arguments() -> dict[str, tuple[dict[str, Any], str]]:
    svi, analytic = {"inference": "svi", "epochs": 2}, {"inference": "analytic", "epochs": 2}
    ard = kernels.RBF(F, lengthscale=torch.linspace(1, 2, F))
    part = kernels.Matern32(2, lengthscale=torch.tensor(1.5), active_dims=[3, 1])
    doubled = kernels.Product(kernels.Sum(ard, part), 2.0)
    return {
        "default": ({}, "dense"),
        "default, curved": ({}, "dense"),
        "default, stacked": ({}, "dense"),
        "default, frames": ({"top_k": 2}, "frames"),
        "default, sparse": ({}, "sparse"),
        "default, wide": ({}, "wide"),
        "default, standard, wide": ({"features": "standard"}, "wide"),
        "default, quantile, laplacian": ({"features": "quantile", "kernel": "laplacian"}, "dense"),
        "default, quantile, wide": ({"features": "quantile"}, "wide"),
        "default, sum of kernels": ({"kernel": "rbf+matern12"}, "dense"),
        "default, kernel object": ({"kernel": doubled}, "dense"),
        "bernoulli": (svi | {"likelihood": "bernoulli", "random_state": 4}, "dense"),
        "experts": (svi | {"likelihood": "experts", "guide": "paper"}, "dense"),
        "eeoe": (svi | {"likelihood": "eeoe", "B": 3}, "dense"),
        "gaussian": (svi | {"likelihood": "gaussian"}, "dense"),
        "gaussian, learned": (svi | {"likelihood": Gaussian(0.5, learn_noise=True)}, "dense"),
        "mpu": (svi | {"likelihood": MPU(0.3, 1.2)}, "dense"),
        "eeoe, per label": (svi | {"likelihood": EEOE([1.0, 2.0, 3.0, 4.0])}, "dense"),
        "mpu, learned per label": (svi | {"likelihood": LearnedMPU([0.1, 0.2, 0.3, 0.4])}, "dense"),
        "experts, summed out": (svi | {"likelihood": Experts(3, 0.9, explicit=False)}, "dense"),
        "default, likelihood object": ({"likelihood": Bernoulli(1.7)}, "dense"),
        "paper": (svi | {"guide": "paper"}, "frames"),
        "paper, class": (svi | {"guide": partial(PaperGuide, covariance="full"), "widths": (3, 2)}, "dense"),
        "doubly stochastic, class": (svi | {"guide": DoublyStochasticGuide, "widths": []}, "dense"),
        "amortized, class": (svi | {"guide": partial(AmortizedGuide, hidden=5)}, "dense"),
        "analytic": (analytic, "dense"),
        "svi, function": ({"inference": fit_svi, "epochs": 2}, "dense"),
    } | {
        f"preset {name}": ({"preset": name, "epochs": 2}, "dense")
        for name in ("default", "paper", "authors_b0", "authors_experts", "authors_semisupervised")
    } | {
        name: (svi | {"likelihood": name}, "dense")
        for name in LIKELIHOODS if name not in ("bernoulli", "experts", "eeoe", "gaussian", "mpu")
    }  # fmt: skip


CASES = tuple(_arguments())


@cache
def fitted(name: str) -> tuple[ESMCClassifier, Any, Any]:
    """The estimator of this case with its data; not to be changed."""
    arguments, kind = _arguments()[name]
    X, Y = data(kind)
    with quick(curved="curved" in name, stacked="stacked" in name), pytest.MonkeyPatch.context() as patch:
        if kind == "wide":
            patch.setattr(feature_map, "DENSE_LIMIT", 100)
            patch.setattr(feature_map, "PROJECTED", 6)
        return ESMCClassifier(**arguments).fit(X, Y), X, Y


def outputs(estimator: ESMCClassifier, X: Any, Y: Any) -> dict[str, Any]:
    """Everything a user can ask a fitted estimator for."""
    first = X.iloc[0] if isinstance(X, pd.DataFrame) else X[[0]]
    return {
        "decision_function": estimator.decision_function(X),
        "predict_proba": estimator.predict_proba(X),
        "predict": estimator.predict(X),
        "suitability": estimator.suitability(X, draws=3),
        "calibrated suitability": estimator.suitability(X, draws=None),
        "complete": estimator.complete(X, Y, n=7, draws=3),
        "suggest": estimator.suggest_annotations(X, n=3, draws=3),
        "explain": estimator.explain(first, n=3),
        **estimator.sample_posterior(X, draws=2),
        "history": estimator.posterior_.history,
    }


def same(a: Any, b: Any) -> bool:
    """Whether two outputs agree in every bit, names and types included."""
    if isinstance(a, pd.DataFrame):
        return (
            isinstance(b, pd.DataFrame) and a.equals(b) and (a.dtypes == b.dtypes).all() and a.columns.equals(b.columns)
        )
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
