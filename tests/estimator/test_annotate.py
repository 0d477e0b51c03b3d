"""What annotators are told, against Monte Carlo, quadrature, and labels that were removed on purpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.special import entr, expit
from sklearn.metrics import roc_auc_score

from esmc_pyro import ESMCClassifier, annotate
from esmc_pyro.feature_map import FeatureMap
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import ESMC, MPU, Bernoulli, rules
from esmc_pyro.posterior import Posterior
from esmc_pyro.stack import Member, Stack

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


def test_suitability_is_the_mean_over_the_posterior(fitted: ESMCClassifier, make_data: Make) -> None:
    X = make_data()[0][:5]
    draws = fitted.sample_posterior(X, 600, ["suitability"])["suitability"]
    error = draws.std(0) / len(draws) ** 0.5
    ours = fitted.suitability(X, draws=600)
    assert (np.abs(ours - draws.mean(0)) < 4 * 2**0.5 * error + 1e-4).all()


def test_complete_gives_probability_and_spread(fitted: ESMCClassifier, make_data: Make) -> None:
    X, Y = make_data()
    X, Y = X[:6], Y[:6]
    table = fitted.complete(X, Y, draws=600)
    places = table["row"].to_numpy(), table["label"].str[1:].astype(int).to_numpy()
    np.testing.assert_allclose(table["probability"], fitted.suitability(X, draws=None)[places], rtol=1e-6)
    z = torch.as_tensor(fitted.sample_posterior(X, 600, ["z"])["z"])
    spread = fitted._calibrated(z).numpy().std(0)[places]
    assert np.abs(table["spread"] / spread - 1).max() < 0.25


def test_complete_by_a_likelihood_under_which_labels_go_missing(make_data: Make) -> None:
    X, Y = make_data(1100)  # more than a block of draws
    rates = torch.tensor([0.1, 0.5, 0.8])
    model = ESMCClassifier(features="standard", likelihood=MPU(rates, lambda_=2.0), search=False, pseudo=30, epochs=2)
    table = model.fit(X[:100], Y[:100]).complete(X, Y, draws=200)
    places = table["row"].to_numpy(), table["label"].str[1:].astype(int).to_numpy()
    slope, offset = model.suitability_calibration_

    def missing(z: np.ndarray) -> np.ndarray:
        fits = expit(2 * slope * z + offset)
        return fits * rates.numpy() / (1 - fits + fits * rates.numpy())

    z = model.decision_function(X).astype(float)
    np.testing.assert_allclose(table["probability"], missing(z)[places], atol=1e-5)
    spread = missing(model.sample_posterior(X, 200, ["z"])["z"].astype(float)).std(0)[places]
    ratio = (table["spread"] / spread)[spread > 0.1]  # of 200 draws each has an error of about 7 percent
    assert len(ratio) > 500
    assert abs(ratio.mean() - 1) < 0.03
    assert (ratio - 1).abs().median() < 0.1


def test_complete_breaks_ties_by_z(make_data: Make) -> None:
    _, Y = make_data()
    z = torch.as_tensor(np.random.default_rng(0).normal(size=Y.shape))
    drawn = [(slice(0, len(Y)), z.expand(3, -1, -1))]
    table = annotate.missing_labels(z, drawn, torch.zeros_like, Y, ["y0", "y1", "y2"], None)
    order = z.numpy()[table["row"], table["label"].str[1:].astype(int)]
    assert (np.diff(order) <= 0).all()
    assert (table["spread"] == 0).all()


def test_complete_lists_zeros_only_ranked(fitted: ESMCClassifier, make_data: Make) -> None:
    X, Y = make_data()
    Y[0, 1], Y[2, 0] = np.nan, np.nan
    table = fitted.complete(X, Y)
    assert list(table.columns) == ["row", "label", "probability", "spread"]
    assert len(table) == (Y == 0).sum()
    assert (Y[table["row"], table["label"].str[1:].astype(int)] == 0).all()
    assert table["probability"].is_monotonic_decreasing
    assert table["probability"].between(0, 1).all()
    pd.testing.assert_frame_equal(fitted.complete(X, Y, n=7), table[:7])
    assert len(fitted.complete(X, Y, n=10_000)) == len(table)
    assert len(fitted.complete(X[:3], np.ones((3, Y.shape[1])))) == 0


def test_complete_finds_removed_labels(make_data: Make) -> None:
    X, Y = make_data(150, 5)
    removed = (Y == 1) & (np.random.default_rng(3).random(Y.shape) < 0.4)
    given = np.where(removed, 0, Y)
    table = ESMCClassifier(features="standard").fit(X, given).complete(X, given)
    truth = removed[table["row"], table["label"].str[1:].astype(int)]
    assert roc_auc_score(truth, table["probability"]) > 0.75
    assert truth[:20].mean() > 2 * truth.mean()


def test_probabilities_by_draws_are_the_mean_over_the_posterior(fitted: ESMCClassifier, make_data: Make) -> None:
    X = make_data()[0][:5]
    z = torch.as_tensor(fitted.sample_posterior(X, 600, ["z"])["z"])
    p = fitted._calibrated(z).numpy()
    ours = fitted.predict_proba(X, draws=600)
    assert (np.abs(ours - p.mean(0)) < 4 * 2**0.5 * p.std(0) / len(p) ** 0.5 + 1e-4).all()
    plug_in = fitted.predict_proba(X)
    clear = np.abs(plug_in - 0.5) > 0.2
    assert (np.abs(ours - 0.5)[clear] < np.abs(plug_in - 0.5)[clear] + 0.02).all()
    with pytest.raises(ValueError, match="draws must be a whole number of at least 1; got 0"):
        fitted.predict_proba(X, draws=0)


def _one_layer(v_loc: float, scale: float) -> tuple[Posterior, np.ndarray]:
    """One label, one pseudo-instance at 0: z of a row there is normal, with known mean and variance."""
    x = torch.zeros(1, 1)
    model = ESMC.from_data(x, torch.ones(1, 1), [], likelihood=Bernoulli(), pseudo=1, lengthscale=1.0)
    guide = DoublyStochasticGuide(model, x, torch.ones(1, 1), start="zero")
    guide.z_v_loc.data.fill_(v_loc)
    guide.z_v_scale = torch.full((1, 1), scale)
    return Posterior(model, guide), x.numpy()


def _worth(posterior: Posterior, X: np.ndarray, draws: int) -> pd.DataFrame:
    stack = Stack([Member(1.0, FeatureMap("identity"), posterior)])
    drawn = stack.z_draws(X, draws, seed=0)
    return annotate.worth_labelling(
        drawn, posterior.model.likelihood, lambda at: stack.correlation(X[at.numpy()]), ["y0"], 1
    )


@pytest.mark.parametrize(("v_loc", "scale"), [(0.0, 2.0), (1.0, 1.0), (-1.5, 0.3)])
def test_information_gain_against_quadrature(v_loc: float, scale: float) -> None:
    posterior, x = _one_layer(v_loc, scale)
    layer = posterior.model.layers[0]
    a = float(layer.features(torch.as_tensor(x)).detach())
    mean, var = a * v_loc, a**2 * scale**2 + float(layer.beta) ** 2 + float(layer.gamma) ** 2
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    p = expit(mean + var**0.5 * nodes)

    def entropy(q: np.ndarray | float) -> np.ndarray:
        return entr(q) + entr(1 - np.asarray(q))

    exact = entropy(weights @ p) - weights @ entropy(p)
    table = _worth(posterior, x, 1500)
    assert table["gain"][0] == pytest.approx(float(exact), rel=0.12, abs=4e-3)
    assert table["ask"].tolist() == [["y0"]]


def test_gain_is_large_where_the_posterior_is_wide() -> None:
    gains = [_worth(*_one_layer(0.0, s), 500)["gain"][0] for s in (0.1, 1, 3)]
    assert gains[0] < gains[1] < gains[2] < np.log(2)


def test_suggestions_are_ranked_and_name_labels(fitted: ESMCClassifier, make_data: Make) -> None:
    X, _ = make_data(30, seed=9)
    table = fitted.suggest_annotations(X, n=4)
    assert list(table.columns) == ["row", "gain", "ask"]
    assert len(table) == 4
    assert table["gain"].is_monotonic_decreasing
    assert (table["gain"] >= 0).all()
    assert all(set(ask) <= {"y0", "y1", "y2"} for ask in table["ask"])
    assert len(fitted.suggest_annotations(X, n=500)) == 30


def _gaussian_gains(R: np.ndarray, g: np.ndarray, n: int) -> tuple[list[int], list[float]]:
    """What ``worth_labelling`` does, by conditioning a Gaussian on all chosen rows at once."""
    chosen: list[int] = []
    gains: list[float] = []
    noise: list[float] = []
    for _ in range(n):
        known = R[:, chosen]
        S = R - known @ np.linalg.solve(R[np.ix_(chosen, chosen)] + np.diag(noise), known.T)
        value = (g[:, None] * S**2).sum(0) / np.diag(S)
        value[chosen] = -1
        best = int(value.argmax())
        chosen.append(best)
        gains.append(value[best])
        noise.append(annotate.NOISE * S[best, best])
    return chosen, gains


def _pool(rows: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlations of rows on a plane, and draws of their z, of unlike spread."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    R = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1))
    z = rng.normal(size=(40, rows, 2)) * rng.uniform(0.2, 3, size=(rows, 1))
    return torch.as_tensor(R).float(), torch.as_tensor(z).float()


def test_rows_are_chosen_as_a_gaussian_process_would(monkeypatch: pytest.MonkeyPatch) -> None:
    R, z = _pool()
    p = torch.sigmoid(z).double().numpy()
    g = (entr(p.mean(0)) + entr(1 - p.mean(0)) - (entr(p) + entr(1 - p)).mean(0)).sum(1)
    chosen, gains = _gaussian_gains(R.double().numpy(), g, 12)

    def worth(n: int, **options: int) -> pd.DataFrame:
        rows = slice(0, z.shape[1])
        return annotate.worth_labelling([(rows, z)], Bernoulli(), lambda at: R[at][:, at], ["a", "b"], n, **options)

    table = worth(12)
    order = np.argsort(-np.array(gains), kind="stable")
    assert table["row"].tolist() == np.array(chosen)[order].tolist()
    np.testing.assert_allclose(table["gain"], np.array(gains)[order], rtol=1e-3)
    monkeypatch.setattr(annotate, "IN_TURN", 5)
    short = worth(60)
    assert sorted(short["row"]) == list(range(60))
    assert set(chosen[:5]) <= set(short["row"][:10])
    assert short["gain"].is_monotonic_decreasing
    monkeypatch.setattr(annotate, "IN_TURN", 0)
    at_first = worth(60).set_index("row")["gain"].sort_index()
    monkeypatch.setattr(annotate, "LOOKED_AT", 30)
    some = [worth(60, seed=seed).set_index("row")["gain"].sort_index() for seed in range(40)]
    assert not some[0].equals(some[1])
    seen = np.array([one.where(one > g + 1e-3) for one in some])  # rows that were not looked at have their own alone
    off, error = np.nanmean(seen, axis=0) - at_first, np.nanstd(seen, axis=0) / 20**0.5
    assert (np.abs(off) < 5 * error + 0.03 * at_first).all()


def test_rows_that_are_alike_are_not_all_asked(fitted: ESMCClassifier, make_data: Make) -> None:
    X, _ = make_data(30, seed=9)
    first = fitted.suggest_annotations(X, n=1)["row"][0]
    again = np.concatenate([X, np.repeat(X[[first]], 5, axis=0)])
    table = fitted.suggest_annotations(again, n=8)
    copies = [first, *range(30, 35)]
    assert 1 <= table["row"].isin(copies).sum() <= 3


@pytest.mark.parametrize("covariance", ["common", "diagonal", "shared", "full"])
def test_rows_are_as_alike_as_posterior_draws_of_their_functions(covariance: str) -> None:
    """One layer: the correlation over rows of draws of ``z`` without its own noise, in the mean over outputs."""
    X, Y = torch.randn(8, 2), torch.bernoulli(torch.full((8, 3), 0.5))
    model = ESMC.from_data(X, Y, [], likelihood=Bernoulli(), pseudo=5, lengthscale=1.0)
    layer = model.layers[0]
    guide = DoublyStochasticGuide(model, X, Y, covariance=covariance, scale=0.5)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        a = layer.features(X)
        spreads = guide.q_v(layer).sample((40_000,)) - guide.v_loc(layer)
        if covariance in ("common", "diagonal"):
            V = torch.diag_embed(guide.z_v_scale.square()).mean(0)
        else:
            V = guide.z_v_tril @ guide.z_v_tril.mT
            V = V.mean(0) if covariance == "full" else V
        drawn = (spreads @ a.mT).transpose(0, 1)  # outputs x draws x rows
        empirical = (drawn.mT @ drawn / len(spreads)).mean(0)
        ours = guide.mean_covariance(layer, a)
        torch.testing.assert_close(ours, a @ V @ a.mT, atol=1e-4, rtol=1e-3)
        assert (ours - empirical).abs().max() < 0.03 * ours.diagonal().max()
        S = layer.kernel(X, X) - a @ a.mT + ours
        expected = S / (S.diagonal().unsqueeze(1) * S.diagonal()).sqrt()
        found = Stack([Member(1.0, FeatureMap("identity"), Posterior(model, guide))]).correlation(X.numpy())
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_rows_are_as_alike_as_the_kernel_says_where_q_is_not_whitened(make_data: Make) -> None:
    X, Y = make_data()
    model = ESMCClassifier(inference="svi", guide="paper", epochs=1, features="standard").fit(X, Y)
    x, kernel = torch.as_tensor(model.feature_map_(X)), model.model_.layers[0].kernel
    expected = kernel(x, x).detach() / kernel(x, diag=True).detach()[0]
    torch.testing.assert_close(model.stack_.correlation(X), expected, atol=1e-4, rtol=1e-4)
    assert len(model.suggest_annotations(X, n=5)) == 5


def test_labelling_what_is_suggested_lowers_the_gain(make_data: Make) -> None:
    X, Y = make_data(40)
    pool, truth = make_data(40, seed=5)
    model = ESMCClassifier(features="standard").fit(X, Y)
    first = model.suggest_annotations(pool, n=40, draws=200).set_index("row")["gain"]
    asked = first.index[:10]
    model.partial_fit(pool[asked], truth[asked])
    after = model.suggest_annotations(pool, n=40, draws=200).set_index("row")["gain"]
    assert after[asked].sum() < first[asked].sum()


def test_explain_names_the_training_row_itself(fitted: ESMCClassifier, make_data: Make) -> None:
    X, Y = make_data()
    for x in (X[3], X[3].tolist(), X[3:4], sparse.csr_array(X[3:4])):
        table = fitted.explain(x, n=3)
        assert list(table.columns) == ["pseudo", "training_row", "similarity", "labels"]
        assert table["training_row"][0] == 3
        assert table["labels"][0] == [f"y{k}" for k in np.flatnonzero(Y[3])]
        assert table["similarity"][0] == pytest.approx(1, abs=1e-5)
        assert table["similarity"].is_monotonic_decreasing
    distances = np.linalg.norm((X - X[3]) / fitted.feature_map_.scale, axis=1)
    nearest = fitted.explain(X[3], n=4)["training_row"]
    assert sorted(nearest) == sorted(np.argsort(distances)[:4])


def test_explain_tells_equal_rows_apart(make_data: Make) -> None:
    X, _ = make_data(12)
    X[[2, 5, 7]] = X[0]
    model = ESMCClassifier(features="standard", search=False).fit(X, np.eye(12))
    assert model.pseudo_rows_.tolist() == list(range(12))
    table = model.explain(X[0], n=4)
    assert sorted(table["training_row"]) == [0, 2, 5, 7]
    assert all(labels == [f"y{row}"] for row, labels in zip(table["training_row"], table["labels"], strict=True))
    few = ESMCClassifier(features="standard", search=False, pseudo=3).fit(X, np.eye(12))
    points = few.model_.layers[0].pseudo_instances.detach()
    assert torch.equal(points, few.feature_map_(X)[few.pseudo_rows_])
    assert few.pseudo_rows_.tolist() == np.sort(rules.choose_pseudo_rows(12, 3, 0)).tolist()
    unlabelled = ESMCClassifier(features="standard", search=False).fit(X[3:5], np.eye(2), X[3:4])
    assert unlabelled.explain(X[3], n=2)["training_row"].tolist() == [0, 2]
    assert unlabelled.explain(X[3], n=2)["labels"].tolist() == [["y0"], []]


def test_explain_far_from_the_origin(make_data: Make) -> None:
    X, Y = make_data()
    model = ESMCClassifier(features="identity", search=False).fit(X + 10_000, Y)
    assert [model.explain(x + 10_000, n=1)["training_row"][0] for x in X] == list(range(len(X)))


def test_explain_takes_a_row_of_a_frame(make_data: Make) -> None:
    X, Y = make_data(20)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = ESMCClassifier(features="standard").fit(frame, pd.DataFrame(Y, columns=["p", "q", "r"]))
    for x in (frame.iloc[2], frame.iloc[[2]]):
        assert model.explain(x, n=1)["training_row"].tolist() == [2]


def test_other_guides_are_sampled(make_data: Make) -> None:
    X, Y = make_data(20)
    model = ESMCClassifier(features="standard", guide="paper", epochs=2).fit(X, Y)
    assert np.isfinite(model.suitability(X[:3])).all()
    assert len(model.complete(X, Y, n=3)) == 3
    assert len(model.suggest_annotations(X, n=2)) == 2
