"""The presets build what they say from data, and fit."""

import numpy as np
import pytest
import torch

from esmc_pyro.inference import PRESETS
from esmc_pyro.inference.analytic.authors import principal_scores
from esmc_pyro.inference.analytic.presets import log_odds
from esmc_pyro.models import Bernoulli, Experts, Gaussian


def data(N: int = 60, K: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, 4))
    Y = (X @ rng.normal(size=(4, K)) > 1.5).astype(float)
    Y[0] = 1.0
    return X, Y


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_fits_and_ranks_better_than_chance(name: str) -> None:
    X, Y = data()
    setting = PRESETS[name](X[:40], Y[:40], X[40:], seed=1)
    posterior = setting.fit(X[:40], Y[:40], X[40:], progress=False, sweeps=5)
    scores = posterior.predict(X[40:]).numpy()
    assert np.isfinite(scores).all()
    known = posterior.predict(X[:40]).numpy()
    assert known[Y[:40] == 1].mean() > known[Y[:40] == 0].mean()
    assert scores[Y[40:] == 1].mean() > scores[Y[40:] == 0].mean()


def test_same_seed_same_model() -> None:
    X, Y = data()
    for name, preset in PRESETS.items():
        first, second, other = (preset(X, Y, seed=seed).model.layers[0].pseudo_instances for seed in (1, 1, 2))
        assert torch.equal(first, second), name
        assert not torch.equal(first, other), name


def test_the_authors_numbers() -> None:
    X, Y = data()
    setting = PRESETS["authors_experts"](X, Y)
    c, z = setting.model.layers
    assert (c.outputs, z.outputs, c.pseudo_count) == (2, 8, 60)
    assert z.kernel.lengthscale.item() == pytest.approx(1000.0)
    assert [round(x.item(), 9) for x in (c.alpha, c.gamma)] == [1e-3, 1e-4]
    likelihood = setting.model.likelihood
    assert isinstance(likelihood, Experts)
    assert (likelihood.B, likelihood.lambda_) == (int((Y == 0).sum() // (Y == 1).sum()), 1e5)
    assert setting.options["clamp"] == 1000.0
    assert isinstance(PRESETS["authors_b0"](X, Y).model.likelihood, Gaussian)
    assert PRESETS["authors_semisupervised"](X, Y).options["unlabelled"] == "self_training"


def test_b0_holds_z_at_y() -> None:
    X, Y = data()
    posterior = PRESETS["authors_b0"](X, Y).fit(X, Y, progress=False, sweeps=2)
    torch.testing.assert_close(posterior.guide.get("z", "loc").detach(), torch.as_tensor(Y), rtol=0, atol=1e-3)


def test_experts_clamp_the_positives() -> None:
    X, Y = data()
    posterior = PRESETS["authors_experts"](X, Y).fit(X, Y, progress=False, sweeps=2)
    z = posterior.guide.get("z", "loc").detach().numpy()
    assert (z[Y == 1] == 1000.0).all()
    assert (z[Y == 0] < 1000.0).any()


def test_semisupervised_holds_the_unlabelled_rows() -> None:
    X, Y = data()
    fits = [
        PRESETS["authors_semisupervised"](X[:40], Y[:40], X[40:]).fit(X[:40], Y[:40], X[40:], progress=False, sweeps=n)
        for n in (1, 4)
    ]
    short, long = (fit.guide.get("z", "loc").detach() for fit in fits)
    assert torch.equal(short[40:], long[40:])
    assert not torch.equal(short[:40], long[:40])


def test_the_papers_rules() -> None:
    X, Y = data(N=60)
    setting = PRESETS["paper"](X, Y)
    assert setting.model.layers[0].pseudo_count == 6
    assert setting.model.layers[0].outputs == 2
    assert setting.options["refresh"] == "pseudo"
    assert setting.options["covariance"] == "diagonal"


def test_default_carries_label_frequencies_in_its_mean() -> None:
    X, Y = data()
    Y[5, 2] = np.nan
    model = PRESETS["default"](X, Y).model
    assert isinstance(model.likelihood, Bernoulli)
    torch.testing.assert_close(model.layers[1].mean.offset, log_odds(torch.as_tensor(Y)))
    p = (np.nansum(Y[:, 2]) + 0.5) / (59 + 1)
    assert model.layers[1].mean.offset[2].item() == pytest.approx(np.log(p / (1 - p)))


def test_principal_scores_beyond_the_rank_are_zero() -> None:
    T = torch.randn(7, 2, dtype=torch.float64)
    scores = principal_scores(T, 4)
    assert scores.shape == (7, 4)
    assert (scores[:, 2:] == 0).all()
    centred = T - T.mean(0)
    torch.testing.assert_close(scores[:, :2] @ scores[:, :2].mT, centred @ centred.mT)


@pytest.mark.parametrize("name", ["authors_b0", "authors_experts"])
def test_the_authors_presets_do_not_suffer_from_float32_features(name: str) -> None:
    X, Y = data()
    single = X.astype(np.float32)
    fitted = [PRESETS[name](x, Y, seed=0).fit(x, Y, progress=False) for x in (single, single.astype(float))]
    torch.testing.assert_close(fitted[0].predict(X), fitted[1].predict(X), rtol=1e-6, atol=1e-6)
