"""Named settings: model and solver options for given data, as we, the paper, or the authors' code would choose them.

Each is a function ``(X, Y, X_unlabeled=None, *, seed=0)`` that returns a ``Setting``; ``PRESETS`` holds them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esmc_pyro.inference.analytic import authors
from esmc_pyro.inference.analytic.fit import fit_analytic
from esmc_pyro.models import ESMC, Bernoulli, Experts, Gaussian, Layer, make_kernel, rules
from esmc_pyro.models.means import Constant
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_data


@dataclass
class Setting:
    """A model and the options to fit it with: ``setting.fit(X, Y)`` is ``fit_analytic(model, X, Y, **options)``."""

    model: ESMC
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None, **options: Any) -> Posterior:
        """``fit_analytic`` with this setting; ``options`` given here win."""
        return fit_analytic(self.model, X, Y, X_unlabeled, **(self.options | options))


def log_odds(Y: Tensor) -> Tensor:
    """``ln(p/(1-p))`` of each label's smoothed frequency ``p = (ones + 1/2)/(known + 1)``, K."""
    return torch.logit(rules.label_frequencies(Y))


def default(
    X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0, pseudo: int = 500, width: int | None = None
) -> Setting:
    """What we recommend: a rough first kernel, label frequencies in the mean, a second layer of large variance, much
    noise on ``z``.

    Matern-1/2 on the features with ``l`` = their median distance; RBF of variance 9 on ``L = K/8`` latent dimensions
    (8 to 64), started from the labels; Bernoulli likelihood with ``lambda = 1``; ``gamma_c = 0.1``, ``gamma_z = 2``.
    Histograms want the square root of their shares as features; that is the caller's business.
    """
    X, Y = check_data(X, Y, X_unlabeled)
    K = Y.shape[1]
    L = min(K, max(8, K // 8), 64) if width is None else width
    M = min(pseudo, len(X))
    lengthscale = rules.lengthscale_from_distances(X, "authors", seed=seed)
    scores = rules.label_scores(Y, L)
    start = scores[rules.choose_pseudo_rows(len(scores), M, seed)]
    c = Layer(
        "c", make_kernel("matern12", X.shape[1], lengthscale=lengthscale),
        rules.choose_pseudo_instances(X, M, seed=seed), L, alpha=0.1, gamma=0.1,
    )  # fmt: skip
    z = Layer(
        "z", make_kernel("rbf", L, lengthscale=L**0.5, variance=9.0), start, K, plate="labels",
        alpha=0.3, gamma=2.0, mean=Constant(log_odds(Y)),
    )  # fmt: skip
    return Setting(ESMC([c, z], Bernoulli()), {"sweeps": 40, "tolerance": 1e-4, "seed": seed})


def paper(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0) -> Setting:
    """The paper's rules for ``B``, ``M`` and ``sigma_c``, and its updates: diagonal ``q(u)``, explicit experts, ``xi
    = lambda |E z|``, positives clamped to a large number (10: ``sigma(10)`` is 1 to four digits), ``S_z <- E
    f_c(S_c)`` each sweep.

    The paper does not give the noises and ``lambda``; they are ``ESMC.from_data``'s.
    """  # fmt: skip
    X, Y = check_data(X, Y, X_unlabeled)
    model = ESMC.from_data(X, Y, likelihood=Experts(rules.experts_from_ratio(Y, cap=100)), seed=seed)
    return Setting(
        model,
        {
            "covariance": "diagonal", "experts": "explicit", "xi": "paper", "clamp": 10.0, "refresh": "pseudo",
            "sweeps": 20, "seed": seed,
        },
    )  # fmt: skip


def _double(X: Any, Y: Any, X_unlabeled: Any) -> tuple[Tensor, Tensor]:
    """The data in double precision: the authors' noises of 1e-4 are below what float32 resolves."""
    X, Y = check_data(X, Y, X_unlabeled)
    return X.double(), Y.double()


def authors_b0(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0) -> Setting:
    """The authors' code with ``B = 0``: a Gaussian layer whose ``z`` is ``y``."""
    X, Y = _double(X, Y, X_unlabeled)
    model, rows = authors.model(X, Y, None, Gaussian(noise=1e-6), seed)
    return Setting(model, authors.options(rows, None) | {"seed": seed})


def authors_experts(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0) -> Setting:
    """The authors' code with experts: ``B`` at most 50, ``lambda = 1e5``, ``z`` from +-100, clamped to 1000 where ``y
    = 1``.
    """
    X, Y = _double(X, Y, X_unlabeled)
    likelihood = Experts(rules.experts_from_ratio(Y, cap=50), lambda_=1e5)
    model, rows = authors.model(X, Y, 100.0, likelihood, seed)
    return Setting(model, authors.options(rows, 100.0) | {"clamp": 1000.0, "xi_start": 1.0, "seed": seed})


def authors_semisupervised(X: Any, Y: Any, X_unlabeled: Any = None, *, seed: int = 0) -> Setting:
    """``authors_experts`` with self-training: ``z`` of unlabelled rows comes from five sweeps on the labelled ones
    and stays.
    """
    setting = authors_experts(X, Y, X_unlabeled, seed=seed)
    setting.options["unlabelled"] = "self_training"
    return setting


PRESETS: dict[str, Callable[..., Setting]] = {
    "default": default,
    "paper": paper,
    "authors_b0": authors_b0,
    "authors_experts": authors_experts,
    "authors_semisupervised": authors_semisupervised,
}
