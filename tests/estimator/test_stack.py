"""Several fits as one: the weights that held-out rows choose, and what a mixture of members predicts and draws."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ctrl_c import stop_at
from fitted import data, fitted, quick
from scipy.special import expit

from esmc_pyro import ESMCClassifier, calibration, default, judge, online, search, stack
from esmc_pyro.feature_map import FeatureMap, candidate_kinds
from esmc_pyro.folds import Folds
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.models import EEOE, ESMC, MPU, Bernoulli, Gaussian, Likelihood, NotPositiveDefiniteError
from esmc_pyro.posterior import Posterior
from esmc_pyro.stack import Member, Stack

Make = Callable[..., tuple[np.ndarray, np.ndarray]]


def _problem(shares: tuple[float, ...], n: int, K: int = 5, B: int = 1) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Candidates of ``z`` that have much in common, and labels of their mean with these shares."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(n, K))
    z = [torch.as_tensor(common + rng.normal(size=(n, K)), dtype=torch.float32) for _ in shares]
    mean = sum(share * part.numpy() for share, part in zip(shares, z, strict=True))
    p = EEOE(B).prob(torch.as_tensor(mean)).numpy() if B > 1 else expit(mean)
    return z, torch.as_tensor((rng.random((n, K)) < p).astype(np.float32))


@pytest.mark.parametrize("likelihood", [Bernoulli(), EEOE(3), MPU([0.1, 0.2, 0.3, 0.2, 0.1])])
def test_no_other_weights_explain_the_labels_better(likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all weights on a grid, each at its best scale: the sum is left to the calibration."""
    monkeypatch.setattr(stack, "LEAST_WEIGHT", 0.0)
    z, Y = _problem((0.6, 0.4, 0.0), n=60, B=3 if isinstance(likelihood, EEOE) else 1)
    Y[3, 2] = Y[10] = torch.nan

    def best_fit(weights: np.ndarray) -> float:
        mean = sum(float(w) * part.double() for w, part in zip(weights, z, strict=True))
        terms = [likelihood.log_prob(torch.nan_to_num(Y).double(), scale * mean) for scale in np.linspace(0.1, 3, 117)]
        return max(float(term[~torch.isnan(Y)].sum()) for term in terms)

    with torch.no_grad():
        chosen = stack.member_weights(z, Y, likelihood)
        steps = np.linspace(0, 1, 11)
        grid = [np.array([a, b, 1 - a - b]) for a, b in itertools.product(steps, steps) if a + b <= 1 + 1e-9]
        assert chosen.sum() == pytest.approx(1)
        assert (chosen >= 0).all()
        assert best_fit(chosen) > max(map(best_fit, grid)) - 2e-3  # the scales are 0.025 apart


def test_weights_are_those_that_made_the_labels() -> None:
    runs = []
    for start in range(0, 4000, 400):
        z, Y = _problem((0.7, 0.3), n=4000)
        runs.append(
            stack.member_weights([part[start : start + 400] for part in z], Y[start : start + 400], Bernoulli())
        )
    mean, error = np.mean(runs, 0), np.std(runs, 0, ddof=1) / len(runs) ** 0.5
    assert np.abs(mean - [0.7, 0.3]).max() < 4 * error.max()
    assert error.max() < 0.05


def test_light_members_are_left_out() -> None:
    z, Y = _problem((0.75, 0.22, 0.03), n=4000)
    chosen = stack.member_weights(z, Y, Bernoulli())
    assert chosen[2] == 0
    assert np.allclose(chosen[:2], stack.member_weights(z[:2], Y, Bernoulli()), atol=1e-4)


def test_so_many_members_at_most() -> None:
    z, Y = _problem((0.5, 0.3, 0.2), n=2000)
    assert (stack.member_weights(z, Y, Bernoulli()) > 0).all()
    chosen = stack.member_weights(z, Y, Bernoulli(), 2)
    assert chosen[2] == 0
    assert np.allclose(chosen[:2], stack.member_weights(z[:2], Y, Bernoulli()), atol=1e-4)
    assert stack.member_weights(z, Y, Bernoulli(), 1).tolist() == [1, 0, 0]


def test_without_anything_to_tell_members_apart_there_still_is_one() -> None:
    z, Y = _problem((0.5, 0.5), n=20)
    for labels in (torch.full_like(Y, torch.nan), (z[0] + z[1] < 0).float()):  # nothing known; the opposite of z
        chosen = stack.member_weights(z, labels, Bernoulli())
        assert chosen.sum() == pytest.approx(1)
        assert np.isfinite(chosen).all()


# --- a mixture --------------------------------------------------------------------------------------------------------


def _member(weight: float, v_loc: float, scale: float = 0.1) -> Member:
    """One label and one pseudo-instance at 0, so that ``z`` of a row there is normal."""
    x = torch.zeros(1, 1)
    model = ESMC.from_data(x, torch.ones(1, 1), [], likelihood=Bernoulli(), pseudo=1, lengthscale=1.0)
    guide = DoublyStochasticGuide(model, x, torch.ones(1, 1), start="zero")
    guide.z_v_loc.data.fill_(v_loc)
    guide.z_v_scale = torch.full((1, 1), scale)
    return Member(weight, FeatureMap("identity"), Posterior(model, guide))


def test_the_heaviest_is_first_and_weights_sum_to_one() -> None:
    made = Stack([_member(1.0, 0.0), _member(3.0, 1.0)])
    assert [member.weight for member in made.members] == [0.75, 0.25]
    assert made.lead is made.members[0]


def test_the_mean_of_the_mixture_is_what_is_predicted() -> None:
    made, X = Stack([_member(0.7, 2.0), _member(0.3, -3.0)]), np.zeros((1, 1), dtype=np.float32)
    alone = [float(member.posterior.predict(torch.zeros(1, 1))) for member in made.members]
    expected = 0.7 * alone[0] + 0.3 * alone[1]
    assert float(made.predict(X)) == pytest.approx(expected, rel=1e-5)
    blocks = [z for _, z in made.z_draws(X, 4000, seed=1)]
    for z in (made.sample(X, 4000, ["z"], seed=1)["z"].flatten(), torch.cat(blocks, 1).flatten()):
        # strata, not coins, give each member its draws: the error is that of the draws within members
        error = float(z[z > 0].std() + z[z < 0].std()) / 4000**0.5
        assert abs(float(z.mean()) - expected) < 4 * error
        assert float((z > 0).float().mean()) == pytest.approx(0.7, abs=1e-3)


def test_every_member_draws_its_share_in_the_mean_over_seeds() -> None:
    made = Stack([_member(0.6, 0.0), _member(0.25, 0.0), _member(0.15, 0.0)])
    shares = np.array([made._shares(3, seed)[0] for seed in range(2000)])
    assert (shares.sum(1) == 3).all()
    expected = 3 * np.array([0.6, 0.25, 0.15])
    assert (np.abs(shares - expected) < 1).all()
    assert (np.abs(shares.mean(0) - expected) < 4 * shares.std(0) / 2000**0.5).all()


def test_similarity_is_the_mean_over_members() -> None:
    model = fitted("default, stacked")[0]
    X = data()[0][:3]
    expected = torch.zeros(3, 30)
    for member in model.stack_.members:
        layer = member.posterior.model.layers[0]
        with torch.no_grad():
            kernel = copy.deepcopy(layer.kernel).double()  # of variance 1
            x, s = member.feature_map(X).double(), layer.pseudo_instances.double()
            expected += member.weight * kernel(x, s).float()
    # a rough kernel has a root of the rounding of a square where rows are equal
    assert torch.allclose(model.stack_.similarity(X), expected, atol=1e-3)
    assert model.explain(X[0], n=1)["training_row"].tolist() == [0]


# --- the default ------------------------------------------------------------------------------------------------------


CANDIDATES = (
    ({"kernel": "rbf", "lengthscale": 4.0, "amplitude": 16.0},),
    ({"lengthscale": 2.0},),
    ({"amplitude": 0.5},),
)


@pytest.fixture
def real_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that differ, so that several have a weight."""
    for name in ("CANDIDATES", "MANY_CANDIDATES"):
        monkeypatch.setattr(search, name, CANDIDATES)


@pytest.mark.usefixtures("real_search")
def test_the_default_averages_its_members(make_data: Make) -> None:
    X, Y = make_data(60)
    model = ESMCClassifier().fit(X, Y)
    members = model.stack_.members
    assert len(members) > 1
    weights = model.search_["weight"].to_numpy()
    assert weights.sum() == pytest.approx(1)
    assert sorted(weights[weights > 0], reverse=True) == [member.weight for member in members]
    alone = [member.weight * member.posterior.predict(member.feature_map(X)).numpy() for member in members]
    np.testing.assert_allclose(model.decision_function(X), sum(alone), rtol=1e-5, atol=1e-5)
    assert model.settings_ == members[0].settings
    links = model.search_.loc[weights > 0, ["B", "miss"]]
    assert len(links.drop_duplicates()) == 1  # the z of one likelihood mean the same


@pytest.mark.usefixtures("real_search")
def test_a_stack_explains_held_out_labels_better_than_its_members(make_data: Make) -> None:
    X, Y = make_data(60)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard", "identity"))
    assert len(found.members) > 1
    likelihood = default.likelihood_of(found.members[0][0])

    def explained(z: torch.Tensor) -> float:
        return max(float(likelihood.log_prob(found.Y, scale * z).sum()) for scale in np.linspace(0.05, 4, 200))

    assert all(explained(found.z) > explained(z) for z in found.member_z)


@pytest.mark.usefixtures("real_search")
def test_what_remains_of_a_search_when_members_are_left_out(make_data: Make) -> None:
    X, Y = make_data(60)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard", "identity"))
    assert found.only({settings for settings, _ in found.members}) is found
    one = found.only({found.members[0][0]})
    assert one.members == ((found.members[0][0], 1.0),)
    assert torch.equal(one.z, found.member_z[0])
    assert sorted(one.tried["weight"]) == [0.0] * (len(one.tried) - 1) + [1.0]
    assert one.tried["weight"].idxmax() == found.tried["weight"].idxmax()


@pytest.mark.usefixtures("real_search")
def test_calibration_is_that_of_the_members_that_were_fitted(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(60)
    fit, calls = default.fit_settings, itertools.count()

    def stop_at_second(*args: object, **options: object) -> Posterior:
        if "name" in options and next(calls) == 1:
            raise KeyboardInterrupt
        return fit(*args, **options)

    monkeypatch.setattr(default, "fit_settings", stop_at_second)
    model = ESMCClassifier().fit(X, Y)
    assert len(model.stack_.members) == 1
    assert model.posterior_.interrupted
    found = search.choose(X, torch.as_tensor(Y), None, {}, candidate_kinds(X))
    found = found.only({found.members[0][0]})
    assert model.calibration_ == calibration.fit(model._log_odds(found.z), found.Y)
    assert model.search_["weight"].tolist() == found.tried["weight"].tolist()


@pytest.mark.usefixtures("real_search")
def test_a_member_without_a_factor_is_left_out(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(60)
    fit, places = default.fit_settings, itertools.count()
    whole = ESMCClassifier().fit(X, Y)
    assert len(whole.stack_.members) > 1
    hopeless = {0}

    def fail(*args: object, **options: object) -> Posterior:
        if "name" in options and next(places) in hopeless:
            raise NotPositiveDefiniteError("no factor")
        return fit(*args, **options)

    monkeypatch.setattr(default, "fit_settings", fail)
    model = ESMCClassifier().fit(X, Y)
    assert [member.settings for member in model.stack_.members] == [m.settings for m in whole.stack_.members[1:]]
    assert not model.posterior_.interrupted
    weights = whole.search_["weight"].sort_values(ascending=False).iloc[1:]
    left = model.search_["weight"].loc[weights.index]
    assert np.allclose(left, weights / weights.sum())
    assert sum(member.weight for member in model.stack_.members) == pytest.approx(1)
    places, hopeless = itertools.count(), set(range(99))
    with pytest.raises(NotPositiveDefiniteError):
        ESMCClassifier().fit(X, Y)


@pytest.mark.usefixtures("real_search")
def test_ctrl_c_while_weights_are_found_ends_at_the_best(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(60)

    def interrupted(*args: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "member_weights", interrupted)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",))
    assert found.interrupted
    assert found.members == ((found.settings, 1.0),)


@pytest.mark.usefixtures("real_search")
@pytest.mark.parametrize(("likelihood", "asked"), [(None, 2), (Bernoulli(), 2), (MPU([0.1, 0.2, 0.3]), 3)])
def test_some_of_many_labels_weigh_the_members(
    likelihood: Likelihood | None, asked: int, make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All where the likelihood is not the same for each."""
    X, Y = make_data(60)
    monkeypatch.setattr(default, "MANY_LABELS", 2)
    seen, inner = [], stack.member_weights

    def watch(z: list[torch.Tensor], labels: torch.Tensor, *given: object) -> np.ndarray:
        seen.append({part.shape for part in (*z, labels)})
        return inner(z, labels, *given)

    monkeypatch.setattr(stack, "member_weights", watch)
    monkeypatch.setattr(judge, "LABELS", 2)
    found = search.choose(X, torch.as_tensor(Y), likelihood, {}, ("standard",))
    assert seen == [{(60, asked)}]
    assert {z.shape for z in found.member_z} == {(60, 3)}


@pytest.mark.usefixtures("real_search")
def test_a_search_that_was_interrupted_is_gone_on_with(make_data: Make, monkeypatch, tmp_path) -> None:
    """What is fitted after Ctrl-C in the search is not what the whole search fits; the checkpoint bears both."""
    X, Y = make_data(60)
    whole = ESMCClassifier().fit(X, Y)
    with monkeypatch.context() as patch:
        stop_at(patch, Folds, "predict", 3)
        early = ESMCClassifier().fit(X, Y, checkpoint=tmp_path / "c")
    assert len(early.search_) < len(whole.search_)
    assert len(early.stack_.members) == 1
    again = ESMCClassifier().fit(X, Y, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.decision_function(X), whole.decision_function(X))


def test_labels_that_judge_nothing_are_not_stacked(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(40)
    monkeypatch.setattr(search, "CANDIDATES", CANDIDATES)
    assert len(ESMCClassifier().fit(X, np.zeros_like(Y)).stack_.members) == 1  # AUC has no value


@pytest.mark.usefixtures("real_search")
def test_draws_are_counted_and_mixed(make_data: Make) -> None:
    X, Y = make_data(60)
    model = ESMCClassifier().fit(X, Y)
    for draws in (0, -1, 2.5, "3"):
        for call in (model.sample_posterior, model.suitability, model.predict_proba):
            with pytest.raises(ValueError, match="draws must be a whole number"):
                call(X[:2], draws=draws)
    made = Stack([_member(0.6, 5.0), _member(0.4, -5.0)])
    z = made.sample(np.zeros((1, 1), dtype=np.float32), 100, ["z"], seed=3)["z"].flatten()
    assert 15 < int((z[:50] > 0).sum()) < 45  # 60 of the 100, in any order


@pytest.mark.usefixtures("real_search")
def test_of_many_rows_few_are_stacked_and_all_of_the_larger_search(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data(60)
    monkeypatch.setattr(search, "LARGE_ROWS", 50)
    seen: list[int | None] = []
    weigh = stack.member_weights
    monkeypatch.setattr(stack, "member_weights", lambda *given: (seen.append(given[3]), weigh(*given))[1])
    model = ESMCClassifier(features="standard").fit(X, Y)
    assert seen == [search.LARGE_MEMBERS]
    assert len(model.stack_.members) == 2
    weights = model.search_["weight"]
    assert weights.sum() == pytest.approx(1)
    assert not weights[:2].any()  # those of the small search: the start and what has no long length-scale
    chosen = model.search_[weights > 0].drop(columns=["score", "weight"])
    settings = {default.Settings(**row) for row in chosen.to_dict("records")}
    assert settings == {member.settings for member in model.stack_.members}


def test_a_likelihood_that_learns_is_not_stacked(make_data: Make) -> None:
    X, Y = make_data(40)
    with quick(stacked=True):
        assert len(ESMCClassifier(likelihood="eeoe_learned").fit(X, Y).stack_.members) == 1
        learns = Gaussian(0.5, learn_noise=True)
        assert len(ESMCClassifier(likelihood=learns).fit(X, Y).stack_.members) == 1
        assert len(ESMCClassifier(likelihood="eeoe", B=2).fit(X, Y).stack_.members) == 5


def test_no_search_no_stack(make_data: Make) -> None:
    assert len(ESMCClassifier(search=False).fit(*make_data(40)).stack_.members) == 1


def test_a_member_that_is_interrupted_is_left_out(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(40)
    members = [(default.Settings(amplitude=a), w) for a, w in ((4.0, 0.5), (2.0, 0.3), (1.0, 0.2))]
    whole = default.fit_stack(X, torch.as_tensor(Y), members, epochs=2)
    fit, calls = default.fit_settings, itertools.count()

    def stop_at_third(*args: object, **options: object) -> Posterior:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return fit(*args, **options)

    monkeypatch.setattr(default, "fit_settings", stop_at_third)
    cut = default.fit_stack(X, torch.as_tensor(Y), members, epochs=2)
    assert [member.weight for member in cut.members] == pytest.approx([0.5 / 0.8, 0.3 / 0.8])
    assert cut.lead.posterior.interrupted
    assert not whole.lead.posterior.interrupted
    calls = itertools.count(2)
    with pytest.raises(KeyboardInterrupt):  # nothing is fitted yet
        default.fit_stack(X, torch.as_tensor(Y), members, epochs=2)


def test_members_that_are_in_a_checkpoint_are_not_fitted_again(make_data: Make, tmp_path, monkeypatch) -> None:
    X, Y = make_data(40)
    file = tmp_path / "fit.checkpoint"
    with quick(stacked=True):
        whole = ESMCClassifier().fit(X, Y)
        ESMCClassifier().fit(X, Y, checkpoint=Checkpoint(file, every_seconds=0))
        steps: list[object] = []
        backward = torch.Tensor.backward
        monkeypatch.setattr(torch.Tensor, "backward", lambda *a, **o: (steps.append(a), backward(*a, **o))[1])
        again = ESMCClassifier().fit(X, Y, checkpoint=Checkpoint(file, every_seconds=0))
    assert not steps
    assert len(again.stack_.members) == 5
    np.testing.assert_array_equal(again.decision_function(X), whole.decision_function(X))


def test_new_rows_are_taken_in_by_all_members_or_none(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data(40)
    with quick(stacked=True):
        model = ESMCClassifier(epochs=2).fit(X, Y)
    before, rows = model.decision_function(X), len(model.pseudo_rows_)
    take_in, calls = online.take_in, itertools.count()

    def fail_at_second(*args: object, **options: object) -> object:
        if next(calls) == 1:
            raise RuntimeError("no")
        return take_in(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(online, "take_in", fail_at_second)
        with pytest.raises(RuntimeError, match="no"):
            model.partial_fit(X[:5] + 0.1, Y[:5])
    np.testing.assert_array_equal(model.decision_function(X), before)
    model.partial_fit(X[:5] + 0.1, Y[:5])
    assert {member.posterior.model.layers[0].pseudo_count for member in model.stack_.members} == {rows + 5}
    assert len(model.pseudo_rows_) == rows + 5
    assert not np.allclose(model.decision_function(X), before)
