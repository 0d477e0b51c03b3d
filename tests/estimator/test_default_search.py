"""The search of the default: it never looks at held-out labels while fitting, and keeps the best."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctrl_c import stop_at
from scipy import sparse

from esmc_pyro import ESMCClassifier, default, folds, judge, search
from esmc_pyro.default import Settings
from esmc_pyro.folds import Folds
from esmc_pyro.judge import Times
from esmc_pyro.models import EEOE, MPU, Bernoulli, NotPositiveDefiniteError

Make = Callable[..., tuple[np.ndarray, np.ndarray]]
FEW, MANY = search.CANDIDATES, search.MANY_CANDIDATES  # as they are: tests have fewer (conftest)
KERNELS = tuple(group for group in FEW if "kernel" in group[0])  # all in one group
AT_LAST = FEW[-1]
GROUPS = (({"kernel": "matern32", "lengthscale": 2.0},), ({"amplitude": 1.0},), ({"curvature": 1.0},))


@pytest.fixture(autouse=True)
def _few_candidates(_short_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CANDIDATES", GROUPS)
    monkeypatch.setattr(default, "EPOCHS", 2)
    monkeypatch.setattr(default, "CURVED_EPOCHS", 1)


def choose(X: np.ndarray, Y: np.ndarray, **options: Any) -> judge.Search:
    fixed, kinds = options.pop("fixed", {}), options.pop("kinds", ("standard",))
    return search.choose(X, torch.as_tensor(Y), Bernoulli(), fixed, kinds, **options)


def test_held_out_labels_do_not_reach_the_fits(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CANDIDATES", (({"coupling": 0.8},),))  # or poisoned labels would choose other settings
    X, Y = make_data()
    monkeypatch.setattr(search, "JUDGES", 1)  # one fold: in turn, every row is held out
    held, rest = search.hold_out(len(Y), 0)
    poisoned = Y.copy()
    poisoned[held] = 1 - poisoned[held]
    clean, other = choose(X, Y), choose(X, poisoned)
    assert torch.equal(clean.z, other.z)
    assert torch.equal(clean.Y, torch.as_tensor(Y[held]))
    assert clean.tried["score"][0] != other.tried["score"][0]
    assert len(np.intersect1d(held, rest)) == 0


def test_every_fit_of_the_search_gets_the_other_rows_only(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    rests = [search.hold_out(len(Y), 0, fold)[1] for fold in range(5)]
    seen: list[torch.Tensor] = []
    inner = default.linear_layer

    def watch(y: torch.Tensor, *args: Any) -> Any:
        seen.append(y)
        return inner(y, *args)

    monkeypatch.setattr(default, "linear_layer", watch)
    choose(X, Y)
    assert len(seen) == 4 * 5
    assert all(torch.equal(y, torch.as_tensor(Y[rests[place % 5]])) for place, y in enumerate(seen))


def test_the_search_keeps_the_best_and_repeats_itself(make_data: Make) -> None:
    X, Y = make_data()
    found, again = choose(X, Y, kinds=("standard", "identity")), choose(X, Y, kinds=("standard", "identity"))
    assert found.tried.equals(again.tried)
    assert torch.equal(found.z, again.z)
    best = found.tried.sort_values("score", ascending=False, kind="stable").iloc[0]
    assert found.settings == Settings(**best.drop(["score", "weight"]).to_dict())


def test_fixed_settings_are_not_searched(make_data: Make) -> None:
    X, Y = make_data()
    found = choose(X, Y, fixed={"kernel": "matern32", "amplitude": 3.0})
    assert set(found.tried["kernel"]) == {"matern32"}
    assert set(found.tried["amplitude"]) == {3.0}
    assert set(found.tried["lengthscale"]) == {Settings().lengthscale, 2.0}  # the scale of a named kernel is searched


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_few_rows_are_not_searched(make_data: Make, rows: int) -> None:
    found = choose(*make_data(rows))
    assert found.settings == Settings(features="standard")
    assert len(found.tried) == 0
    assert found.z.shape == found.Y.shape == (0, 3)


def test_an_interrupt_ends_the_search(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stop_at(monkeypatch, Folds, "predict", 2)  # the second candidate
    found = choose(*make_data())
    assert found.interrupted
    assert next(calls) == 3
    assert len(found.tried) == 1
    assert found.settings == Settings(features="standard")
    assert len(found.z) == len(found.Y) == 40


def test_hold_out_takes_a_fifth_of_few_rows() -> None:
    held, rest = search.hold_out(100, 3)
    assert (len(held), len(rest)) == (20, 80)
    assert sorted([*held, *rest]) == list(range(100))
    held, rest = search.hold_out(10**5, 3)
    assert len(held) == search.SEARCH_ROWS // 5
    assert len(held) + len(rest) == search.SEARCH_ROWS
    assert [len(part) for part in search.hold_out(9, 0)] == [0, 9]


def test_few_rows_are_held_out_in_turn() -> None:
    assert [search.fold_count(rows) for rows in (9, 10, 400, 1500, 2500, 10**5)] == [0, 5, 5, 2, 1, 1]
    folds = [search.hold_out(53, 3, fold) for fold in range(5)]
    held = np.concatenate([held for held, _ in folds])
    assert len(held) == len(set(held)) == 50
    assert all(sorted([*held, *rest]) == list(range(53)) for held, rest in folds)


def test_experts_are_chosen_where_no_likelihood_is_named(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "CANDIDATES", (({"B": 3.0},),))
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",))
    assert list(found.tried["B"]) == [1.0, 3.0]
    assert len(choose(X, Y).tried) == 1  # a likelihood that is named has its own B
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    with_experts = default.fit_settings(x, y, Settings(B=3.0))
    assert (type(with_experts.model.likelihood), with_experts.model.likelihood.B) == (EEOE, 3.0)
    assert type(default.fit_settings(x, y, Settings()).model.likelihood) is Bernoulli


def test_labels_that_are_missed_are_chosen_where_no_likelihood_is_named(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "CANDIDATES", (search.MISSED, ({"lengthscale": 2.0},), ({"B": 3.0, "miss": 0.0},)))
    scores = iter([0.1, 0.0, 0.2, 0.15, 0.05])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    monkeypatch.setattr(judge.Judge, "_explained", lambda self, settings: settings.miss)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",))
    assert list(found.tried["miss"]) == [0.0, 0.3, 0.5, 0.5, 0.0]
    assert list(found.tried["B"]) == [1.0, 1.0, 1.0, 1.0, 3.0]
    assert {settings.miss for settings, _ in found.members} == {found.settings.miss} == {0.5}
    posterior = default.fit_settings(torch.as_tensor(X), torch.as_tensor(Y), found.settings)
    assert (type(posterior.model.likelihood), posterior.model.likelihood.c) == (MPU, 0.5)
    scores = iter([0.1, 0.2])
    assert len(choose(X, Y).tried) == 2  # a likelihood that is named has its own rate, and its own B
    with pytest.raises(ValueError, match=r"B must be 1 where labels are missed at random; got 3.0 with miss=0.5"):
        default.likelihood_of(Settings(B=3.0, miss=0.5))


def test_another_likelihood_must_explain_the_held_out_labels_better_too(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    Y[3, 1] = np.nan
    candidates = (search.MISSED, ({"B": 3.0, "miss": 0.0},))
    monkeypatch.setattr(search, "CANDIDATES", candidates)
    scores = iter([0.1, 0.2, 0.3, 0.4])  # by the ranking alone each would be chosen
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    asked: dict[Settings, float] = {}
    inner = judge.Judge._explained

    def watch(self: judge.Judge, settings: Settings) -> float:
        z, y = self.held_out_z(settings), self.Y_held
        assert z is not None
        p, known = default.likelihood_of(settings).prob(z).double(), ~torch.isnan(y)
        expected = torch.where(y == 1, p, 1 - p)[known].log().sum()
        asked[settings] = inner(self, settings)
        assert asked[settings] == pytest.approx(float(expected), rel=1e-4)
        return asked[settings]

    monkeypatch.setattr(judge.Judge, "_explained", watch)
    found = search.choose(X, torch.as_tensor(Y), None, {}, ("standard",))
    assert len(asked) == 4
    assert found.settings == max(asked, key=asked.__getitem__)


def test_few_rows_are_asked_for_missed_labels_before_the_kernel_and_many_are_not() -> None:
    """So that all kernels can be members of one stack."""
    assert FEW.index(search.AMPLITUDES[-1]) < FEW.index(search.MISSED) < FEW.index(KERNELS[0])
    assert search.MISSED not in MANY


def test_more_rows_are_asked_for_more(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "LARGE_ROWS", len(Y) - 1)
    monkeypatch.setattr(search, "MANY_CANDIDATES", (({"coupling": 0.8},),))
    # small; more rows: amplitude twice, length-scale, three of f_z
    scores = iter([0.5, 0.1, 0.2, 0.3, 0.25, 0.35, 0.4, 0.3])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    found = choose(X, Y)
    start = Settings(features="standard")
    assert list(found.tried["amplitude"] / start.amplitude) == [1, 1, 2, 4, 4, 4, 4, 4]
    assert list(found.tried["lengthscale"] / start.lengthscale) == pytest.approx([1, 1, 1, 1, 0.7, 1, 1, 1])
    assert list(found.tried["curvature"]) == [0, 0, 0, 0, 0, 1, 1, 2]
    assert list(found.tried["curve_lengthscale"]) == [1, 1, 1, 1, 1, 1, 0.5, 0.5]
    wanted = replace(start, amplitude=4 * start.amplitude, curvature=1.0, curve_lengthscale=0.5)
    assert found.settings == wanted
    assert len(found.Y) == len(found.z) == (len(Y) - 1) // 5
    # nor are settings that are fixed
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: 0.0)
    assert set(choose(X, Y, fixed={"amplitude": 3.0}).tried["amplitude"]) == {3.0}


def test_denser_pseudo_instances_have_a_shorter_length_scale(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.denser_lengthscale(100, 1600) == pytest.approx(0.5)
    assert judge.denser_lengthscale(100, 50) == 1
    X, Y = make_data()
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: 0.0)  # the start stays the best
    monkeypatch.setattr("esmc_pyro.stack.member_weights", lambda z, *rest: np.eye(len(z))[0])

    def scale(**options: Any) -> float:
        found = choose(X, Y, **options)
        ((settings, _),) = found.members
        assert settings == replace(found.settings, lengthscale=found.settings.lengthscale * found.shorter)
        return found.shorter

    assert scale() == 1  # the search sees all rows
    monkeypatch.setattr(search, "SEARCH_ROWS", len(Y) - 1)
    few = len(Y) - 1 - (len(Y) - 1) // 5  # rows, each of them a pseudo-instance, of a fold
    assert scale() == pytest.approx((few / len(Y)) ** judge.SHORTER)
    monkeypatch.setattr(search, "SEARCH_PSEUDO", 10)
    assert scale() == pytest.approx((10 / len(Y)) ** judge.SHORTER)
    monkeypatch.setattr(default, "PSEUDO", 20)
    assert scale() == pytest.approx((10 / 20) ** judge.SHORTER)
    assert scale(pseudo=30) == pytest.approx((10 / 30) ** judge.SHORTER)  # who names more gets more
    # nothing that nobody searched, and not for a model with as few
    assert scale(pseudo=10) == scale(candidates=()) == scale(fixed={"lengthscale": 2.0}) == 1


def test_more_rows_compare_the_best_with_another_kernel(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "LARGE_ROWS", len(Y) - 1)
    others = ("rbf", 0.3), ("laplacian", 0.35), ("laplacian", 0.5)
    changes = tuple({"kernel": kernel, "lengthscale": scale} for kernel, scale in others)
    monkeypatch.setattr(search, "MANY_CANDIDATES", (changes,))
    # small: the start is the best, the second Laplacian follows; more rows: amplitude, scale, f_z thrice, the rival
    scores = iter([0.5, 0.1, 0.2, 0.3, 0.5, 0.1, 0.6, 0.1, 0.1, 0.1, 0.1, 0.55, 0.7, 0.1])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    found = choose(X, Y)
    assert next(scores, None) is None
    rivals = found.tried[-3:]
    assert set(rivals["kernel"]) == {"laplacian"}
    assert list(rivals["lengthscale"]) == pytest.approx([0.5 * 0.7, 0.5 * 0.7**2, 0.5 * 0.7**3])
    assert found.settings == replace(Settings(features="standard"), kernel="laplacian", lengthscale=0.5 * 0.7 * 0.7)
    # a kernel that was named has none
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: 0.0)
    assert set(choose(X, Y, fixed={"kernel": "rbf"}).tried["kernel"]) == {"rbf"}


@pytest.mark.parametrize("candidate", [1, 2])
def test_an_interrupt_of_the_larger_search_leaves_what_the_small_one_found(
    candidate: int, make_data: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, Y = make_data()
    for name in ("CANDIDATES", "MANY_CANDIDATES"):
        monkeypatch.setattr(search, name, (({"amplitude": 1.0},),))
    small = choose(X, Y)
    monkeypatch.setattr(search, "LARGE_ROWS", len(Y) - 1)
    with monkeypatch.context() as patch:
        calls = stop_at(patch, Folds, "predict", 2 + candidate)  # of the larger search
        found = choose(X, Y)
    assert found.interrupted
    assert next(calls) == 3 + candidate
    assert found.members == ((small.settings, 1.0),)
    assert len(found.tried) == 1 + candidate
    assert found.tried["weight"].sum() == 1
    assert len(found.z) == len(found.Y) == len(small.Y)
    stop_at(monkeypatch, Folds, "predict", 2 + candidate)
    model = ESMCClassifier(features="standard").fit(X, Y)
    assert ESMCClassifier.load(model.save(tmp_path / "model")).search_.equals(model.search_)


@pytest.mark.parametrize(
    ("home", "place", "call"), [(default, "linear_layer", 6), (folds, "FrozenFeatures", 6), (torch, "randperm", 4)]
)
def test_ctrl_c_anywhere_in_a_candidate_ends_the_search_at_the_best(
    home: Any, place: str, call: int, make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    stop_at(monkeypatch, home, place, call)  # of the second candidate
    found = choose(X, Y)
    assert found.interrupted
    assert len(found.tried) == 1
    assert found.settings == Settings(features="standard")


def test_ctrl_c_while_weights_are_found_keeps_what_more_rows_say(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "MANY_CANDIDATES", (({"coupling": 0.8},),))
    monkeypatch.setattr(search, "LARGE_ROWS", len(Y) - 1)
    # small; more rows: the amplitude twice, then nothing is better
    scores = iter([0.5, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))

    def stop(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("esmc_pyro.stack.member_weights", stop)
    found = choose(X, Y)
    assert found.interrupted
    assert found.members == ((replace(Settings(features="standard"), amplitude=8.0), 1.0),)


def test_settings_that_diverge_are_never_the_best(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    inner, calls = Folds.predict, itertools.count(1)

    def diverge(*args: Any) -> torch.Tensor:
        z = inner(*args)
        if next(calls) == 2:
            z[7] = torch.nan
        return z

    monkeypatch.setattr(Folds, "predict", diverge)
    found = choose(X, Y)
    assert found.tried["score"][1] == -np.inf
    assert found.tried["weight"][1] == 0
    assert torch.isfinite(found.z).all()


def test_a_named_kernel_has_its_own_scales(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "CANDIDATES", KERNELS)
    for kernel, own in search.KERNEL_GRID.items():
        tried = choose(X, Y, fixed={"kernel": kernel}).tried
        assert set(tried["lengthscale"]) == {Settings().lengthscale, *(scale for scale, _ in own)}
    tried = choose(X, Y, fixed={"kernel": "rbf+matern12"}).tried  # all of them
    assert set(tried["lengthscale"]) >= {scale for pairs in search.KERNEL_GRID.values() for scale, _ in pairs}


def test_kernels_have_multiples_of_the_amplitude_that_was_found_before(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    halved, rbf, matern = {"amplitude": Times(0.5)}, {"kernel": "rbf"}, {"kernel": "matern32"}
    kernels = (rbf | {"amplitude": Times(4)}, matern | {"amplitude": Times(3)})
    monkeypatch.setattr(search, "CANDIDATES", ((halved,), (halved,), kernels))
    scores = iter([0.1, 0.2, 0.3, 0.4, 0.5])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    # of 4 a half, a fourth; then 4 and 3 times that, not 3 times what the first kernel had
    assert list(choose(X, Y).tried["amplitude"]) == [4, 2, 1, 4, 3]


def test_wide_features_have_no_laplacian(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "CANDIDATES", KERNELS)
    assert "laplacian" in set(choose(X, Y).tried["kernel"])
    monkeypatch.setattr(search, "NARROW", X.shape[1] - 1)
    assert "laplacian" not in set(choose(X, Y).tried["kernel"])


def test_relevance_is_left_again_where_the_last_kernel_does_without(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    both = ({"relevance": True}, {"relevance": False})
    monkeypatch.setattr(search, "CANDIDATES", (both[:1], ({"kernel": "rbf"},), both))
    assert both == AT_LAST  # as it is done
    scores = iter([0.1, 0.2, 0.3, 0.4])
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    found = choose(X, Y)
    assert list(found.tried["relevance"]) == [False, True, True, False]
    assert found.settings == Settings(features="standard", kernel="rbf")


def test_feature_maps_are_compared_once_more_in_the_end(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_data()
    monkeypatch.setattr(search, "CANDIDATES", (({"kernel": "rbf"},),))
    scores = iter([0.1, 0.0, 0.2, 0.3])  # standard, identity; with the other kernel standard, identity
    monkeypatch.setattr(judge, "held_out_score", lambda Y, z: next(scores))
    found = choose(X, Y, kinds=("standard", "identity"))
    assert list(found.tried["features"]) == ["standard", "identity", "standard", "identity"]
    assert found.settings == Settings(features="identity", kernel="rbf")


def test_a_search_that_sees_few_of_many_rows_has_candidates_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = torch.randn(60, 3), (torch.rand(60, 4) < 0.4).float()
    monkeypatch.setattr(search, "CANDIDATES", (({"lengthscale": 2.0},),))
    monkeypatch.setattr(search, "MANY_CANDIDATES", (({"lengthscale": 0.5},),))
    for rows, tried in ((60, 2.0), (59, 0.5)):
        monkeypatch.setattr(search, "LARGE_ROWS", rows)
        first = search.choose(X, Y, None, {}, ["identity"]).tried[:2]
        assert list(first["lengthscale"]) == [Settings().lengthscale, tried]


def test_a_candidate_without_a_cholesky_factor_is_no_candidate(
    make_data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y = make_data()
    inner = default.curved_layer

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise NotPositiveDefiniteError("no factor")

    monkeypatch.setattr(default, "curved_layer", fail)
    found = choose(X, Y)
    hopeless = found.tried["curvature"] == 1.0
    assert list(hopeless) == [False, False, False, True]
    assert (found.tried["score"] == -np.inf).equals(hopeless)
    assert (found.tried["weight"][hopeless] == 0).all()
    monkeypatch.setattr(default, "curved_layer", inner)
    assert np.isfinite(choose(X, Y).tried["score"]).all()  # it was that alone


def test_many_rows_leave_out_smooth_functions_and_rivals_that_are_alike_and_find_the_amplitude_later() -> None:
    def scales(candidates: Any) -> set[tuple[str, float]]:
        return {(one["kernel"], one["lengthscale"]) for group in candidates for one in group if "kernel" in one}

    few, many = scales(FEW), scales(MANY)
    smooth = {(kernel, scale) for kernel in ("matern32", "rbf") for scale in (0.5, 4.0)}
    assert few - many == {("matern12", 2.0), ("matern12", 4.0), *smooth}
    assert many < few
    assert [sum(group in search.AMPLITUDES for group in one) for one in (FEW, MANY)] == [10, 5]
    first = [next(group for group in one if "amplitude" in group[0]) for one in (FEW, MANY)]
    assert ["kernel" in group[0] for group in first] == [False, True]


@pytest.mark.parametrize("rows", [60, 20])  # more and fewer than LARGE_ROWS
def test_without_a_search_the_settings_stay_and_held_out_rows_calibrate(
    make_data: Make, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(search, "LARGE_ROWS", 30)
    X, Y = make_data(rows)
    model = ESMCClassifier(search=False).fit(X, Y)
    assert model.settings_ == Settings(features="standard")
    assert len(model.search_) == 0
    assert model.calibration_ != (1.0, 0.0)
    assert len(ESMCClassifier().fit(X, Y).search_) > 1


def test_what_is_not_searched_takes_no_search() -> None:
    with pytest.raises(ValueError, match="search must be left at True with a named inference"):
        ESMCClassifier(search=False, inference="svi").fit(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="search must be True or False; got 'no'"):
        ESMCClassifier(search="no").fit(np.ones((3, 2)), np.ones((3, 1)))


def test_a_search_cut_short_at_once_calibrates_nothing(make_data: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stop_at(monkeypatch, Folds, "predict", 1)
    X, Y = make_data()
    model = ESMCClassifier(features="standard").fit(X, Y)
    assert next(calls) == 2
    assert len(model.search_) == 0
    assert model.calibration_ == (1.0, 0.0)
    assert model.threshold_ == 0.5


def test_some_rows_are_mapped_as_all_of_them_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = sparse.csr_array(rng.random((60, 30)) * (rng.random((60, 30)) < 0.3))
    Y = (rng.random((60, 3)) < 0.4).astype(np.float32)
    monkeypatch.setattr("esmc_pyro.feature_map.DENSE_LIMIT", 55 * 30)  # all rows are too many, those of the search not
    monkeypatch.setattr("esmc_pyro.feature_map.PROJECTED", 7)
    widths = []
    inner = default.first_layer

    def watch(x: torch.Tensor, *args: Any) -> Any:
        widths.append(x.shape[1])
        return inner(x, *args)

    monkeypatch.setattr(default, "first_layer", watch)
    model = ESMCClassifier(features="unit").fit(X, Y)
    assert model.feature_map_.projection is not None
    assert len(widths) > 5
    assert set(widths) == {7}
