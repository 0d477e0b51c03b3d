"""SVI: what is learned, when it stops, what it reports, and that nothing leaks."""

import random
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from tiny import (
    GUIDE_CASES,
    LIKELIHOOD_CASES,
    F,
    I,
    K,
    N,
    agree,
    elbo,
    guides_and_likelihoods,
    shake,
    tiny_data,
    tiny_model,
)

from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, PaperGuide
from esmc_pyro.inference import OBJECTIVES, fit_svi
from esmc_pyro.inference.schedules import SCHEDULES, Plateau
from esmc_pyro.inference.svi import HISTORY
from esmc_pyro.models import ESMC, Experts, Gaussian, Layer
from esmc_pyro.objectives import MeanFieldELBO, RenyiELBO, RenyiLoss
from esmc_pyro.posterior import Posterior

collapsed = {"guide": "doubly_stochastic", "objective": "collapsed"}


def fit(model: ESMC, X: torch.Tensor, Y: torch.Tensor, **options: Any) -> Posterior:
    options = {"epochs": 2, "batch_size": 4, "progress": False} | options
    return fit_svi(model, X[: len(Y)], Y, X[len(Y) :] if len(X) > len(Y) else None, **options)


@guides_and_likelihoods
def test_every_guide_fits_every_likelihood(case: str, likelihood: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, LIKELIHOOD_CASES[likelihood][1]())
    posterior = fit(model, X, Y, guide=GUIDE_CASES[case][1], epochs=1, batch_size=20)
    assert posterior.predict(X).shape == (N + I, K)
    assert np.isfinite(posterior.history["elbo"]).all()


PAIRS = [
    ("paper", "trace"), ("paper", "mean_field"), ("paper", "renyi"),
    ("doubly_stochastic", "trace"), ("doubly_stochastic", "renyi"), ("doubly_stochastic", "collapsed"),
]  # fmt: skip


def test_every_objective_that_is_a_bound_is_in_the_table() -> None:
    assert set(OBJECTIVES) - {"map"} == {objective for _, objective in PAIRS}


@pytest.mark.parametrize(("guide", "objective"), PAIRS)
def test_every_objective_raises_the_bound(guide: str, objective: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    q = shake(GUIDES[guide](model, X, Y), 0.7)
    before = elbo(model, q, X, Y)
    fit(model, X, Y, guide=q, objective=objective, epochs=30, batch_size=20, lr=0.05)
    after = elbo(model, q, X, Y)
    assert after[0] > before[0] + 10 * (before[1] + after[1])


def test_the_mean_field_objective_has_the_mean_of_the_trace_elbo() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    guide = PaperGuide(model, X, Y)
    with torch.no_grad():
        draws = torch.stack([-MeanFieldELBO()(model, guide)(X, Y) for _ in range(60)])
    assert agree((draws.mean(), draws.std() / 60**0.5), elbo(model, guide, X, Y))


def test_the_renyi_bound_lies_between_the_elbo_and_the_evidence() -> None:
    """With a Gaussian likelihood and one layer the evidence is known; more particles come closer to it."""
    X, Y = tiny_data(0, unknown=False)
    model = tiny_model(X, Y, 1, Gaussian(0.4)).double()
    X, Y = X.double(), Y.double()
    guide = DoublyStochasticGuide(model, X, Y, covariance="full", scale=0.9)
    layer = model.layers[0]
    with torch.no_grad():
        a = layer.features(X)
        total = a @ a.mT + (0.3**2 + 0.5**2 + 0.4**2) * torch.eye(N, dtype=X.dtype)
        evidence = torch.distributions.MultivariateNormal(torch.zeros(N, dtype=X.dtype), total).log_prob(Y.mT).sum()
        plain = elbo(model, guide, X, Y)
        tighter = torch.stack([-RenyiELBO(0.0, 20)(model, guide)(X, Y) for _ in range(10)])
        same = torch.stack([-RenyiELBO(0.0, 1)(model, guide)(X, Y) for _ in range(60)])
    assert agree((same.mean(), same.std() / 60**0.5), plain)  # one particle: the ELBO itself
    assert plain[0] + 4 * plain[1] < tighter.mean() < evidence


@pytest.mark.parametrize("order", [0.0, 0.5, 2.0])
def test_the_renyi_bound_by_hand(monkeypatch: pytest.MonkeyPatch, order: float) -> None:
    weights = torch.tensor([0.3, 1.5, 0.2, 2.0], dtype=torch.float64)
    logs = iter(weights.log())
    monkeypatch.setattr(RenyiLoss, "_log_weight", lambda self, *data: next(logs))
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    loss = RenyiELBO(order, 4)(model, PaperGuide(model, X, Y))(X, Y)
    assert -loss.item() == pytest.approx((weights ** (1 - order)).mean().log().item() / (1 - order))


@pytest.mark.parametrize("objective", ["mean_field", "renyi"])
def test_objectives_that_need_the_experts_summed_out_say_so(objective: str) -> None:
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=f"the objective '{objective}' needs the experts summed out"):
        fit(tiny_model(X, Y, 2, Experts(3)), X, Y, objective=objective)
    fit(tiny_model(X, Y, 2, Experts(3, explicit=False)), X, Y, objective=objective, epochs=1)


def values(model: ESMC, name: str) -> list[torch.Tensor]:
    return [
        p.detach().clone()
        for layer in model.layers
        for path, p in layer.named_parameters()
        if path.split(".")[0].removesuffix("_unconstrained") == name
    ]


@pytest.mark.parametrize("case", ["paper", "doubly_stochastic"])
@pytest.mark.parametrize("name", Layer.LEARNABLE)
def test_exactly_what_is_named_is_learned(case: str, name: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, mean="linear", kernel="rbf+matern32", ard=True, learn=[name])
    guide = GUIDES[case](model, X, Y)
    before = {other: values(model, other) for other in Layer.LEARNABLE}
    fit(model, X, Y, guide=guide, epochs=1)
    for other in Layer.LEARNABLE:
        after = values(model, other)
        assert len(after) >= 2
        moved = [not torch.equal(a, b) for a, b in zip(before[other], after, strict=True)]
        if other != name:
            assert not any(moved), other
        elif name == "beta" and case == "paper":
            # with q(c_hat) = p(c_hat) beta counts only as noise of c: it is learned, towards zero
            assert any(moved)
        else:
            assert all(moved), other


def test_the_noise_of_the_gaussian_likelihood_is_learned_on_request() -> None:
    X, Y = tiny_data()
    for learn_noise in (True, False):
        model = tiny_model(X, Y, 2, Gaussian(0.4, learn_noise=learn_noise))
        fit(model, X, Y, **collapsed)
        moved = abs(float(torch.as_tensor(model.likelihood.noise).detach()) - 0.4) > 1e-4
        assert moved == learn_noise


def test_same_seed_same_result_and_the_callers_state_is_untouched() -> None:
    X, Y = tiny_data()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    results = []
    for seed in (3, 3, 4):
        posterior = fit(tiny_model(X, Y), X, Y, seed=seed)
        results.append((posterior.predict(X), posterior.history["elbo"].tolist()))
        torch.rand(1)  # a caller who draws in between changes nothing
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert results[0][1] != results[2][1]
    torch.set_rng_state(states[0])
    fit(tiny_model(X, Y), X, Y, seed=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]


def test_two_fits_never_share_a_parameter_and_the_store_stays_empty() -> None:
    X, Y = tiny_data()
    one = fit(tiny_model(X, Y), X, Y)
    kept = {name: value.clone() for name, value in one.guide.state_dict().items()}
    two = fit(tiny_model(X, Y), X, Y, seed=9, lr=0.2)
    assert all(torch.equal(kept[name], value) for name, value in one.guide.state_dict().items())
    assert not torch.equal(one.predict(X), two.predict(X))
    assert len(pyro.get_param_store()) == 0


def test_history_has_its_columns_and_counts() -> None:
    X, Y = tiny_data()
    history = fit(tiny_model(X, Y), X, Y, epochs=3, schedule="constant", lr=0.01).history
    assert tuple(history.columns) == HISTORY
    assert history["epoch"].tolist() == [1, 2, 3]
    assert history["lr"].tolist() == pytest.approx([0.01] * 3)
    assert (history["seconds"].diff().dropna() > 0).all()
    assert (history["rows_per_second"] > 0).all()


@pytest.mark.parametrize(("schedule", "ends"), [("constant", 0.1), ("cosine", 0.0), ("one_cycle", 0.0)])
@pytest.mark.parametrize("epochs", [1, 8])
def test_schedules(schedule: str, ends: float, epochs: int) -> None:
    assert schedule in SCHEDULES
    X, Y = tiny_data()
    rates = fit(tiny_model(X, Y), X, Y, epochs=epochs, batch_size=20, lr=0.1, schedule=schedule, **collapsed).history[
        "lr"
    ]
    assert rates.max() <= 0.1 + 1e-9
    if epochs == 8:
        assert rates.iloc[-1] == pytest.approx(ends, abs=0.01)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW])
def test_any_torch_optimizer(optimizer: type[torch.optim.Optimizer]) -> None:
    X, Y = tiny_data()
    posterior = fit(tiny_model(X, Y), X, Y, optimizer=optimizer, lr=1e-3, **collapsed)
    assert np.isfinite(posterior.history["elbo"]).all()


def test_batches_are_as_equal_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = tiny_data()
    seen: list[list[int]] = []
    forward = ESMC.forward

    def spy(self: ESMC, X: torch.Tensor, Y: torch.Tensor, rows: torch.Tensor) -> None:
        seen.append(rows.tolist())
        forward(self, X, Y, rows)

    monkeypatch.setattr(ESMC, "forward", spy)
    fit(tiny_model(X, Y), X, Y, epochs=1, batch_size=10)  # 11 rows: not 10 and a lonely one
    assert sorted(map(len, seen[1:])) == [5, 6]
    assert sorted(row for rows in seen[1:] for row in rows) == list(range(N + I))


def test_clipping_bounds_the_step() -> None:
    X, Y = tiny_data()
    moves = {}
    for clip in (1e-3, None):
        model = tiny_model(X, Y)
        guide = DoublyStochasticGuide(model, X, Y, start="zero")
        before = torch.cat([p.detach().flatten().clone() for p in guide.parameters()])
        fit(model, X, Y, guide=guide, objective="collapsed", epochs=1, batch_size=20, clip=clip,
            optimizer=torch.optim.SGD, lr=1.0, schedule="constant")  # fmt: skip
        moves[clip] = (torch.cat([p.detach().flatten() for p in guide.parameters()]) - before).norm().item()
    assert moves[1e-3] == pytest.approx(1e-3, rel=1e-2)
    assert moves[None] > 1e-2


def test_plateau_by_hand() -> None:
    plateau = Plateau(patience=2, tolerance=0.01, smoothing=0.0)
    reached = []
    for score in (-100, -90, -89.5, -89.2, -80, -80, -80):  # rises of at least 1 % count
        plateau.add(score)
        reached.append(plateau.reached)
    assert reached == [False, False, False, True, False, False, True]
    never = Plateau(patience=None)
    for _ in range(50):
        never.add(0.0)
    assert not never.reached


def test_a_fit_stops_on_its_plateau() -> None:
    X, Y = tiny_data()
    history = fit(tiny_model(X, Y), X, Y, epochs=200, batch_size=20, lr=1e-6, patience=3, schedule="constant",
                  tolerance=0.05, **collapsed).history  # fmt: skip
    assert len(history) < 30


@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_returns_the_model_so_far(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    step, calls = torch.optim.Adam.step, []

    def interrupted(self: torch.optim.Adam, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return step(self, *args)

    monkeypatch.setattr(torch.optim.Adam, "step", interrupted)
    posterior = fit(model, X, Y, epochs=50, batch_size=6)  # two batches an epoch
    assert posterior.interrupted
    assert len(posterior.history) == (at - 1) // 2
    assert tuple(posterior.history.columns) == HISTORY
    assert torch.isfinite(posterior.predict(X)).all()


def test_an_elbo_that_is_not_finite_stops_the_fit() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, X: torch.Tensor, Y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return self.weight * torch.nan

    with pytest.raises(
        FloatingPointError, match=r"the ELBO is nan in epoch 1; expected a finite number \(try a smaller lr\)"
    ):
        fit(model, X, Y, objective=lambda model, guide: Broken())


def test_progress_shows_elbo_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    X, Y = tiny_data()
    fit(tiny_model(X, Y), X, Y, progress=True, **collapsed)
    shown = capsys.readouterr().err
    assert "elbo=" in shown
    assert "rows_per_s=" in shown


def test_a_fit_goes_on_from_a_guide() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    first = fit(model, X, Y, epochs=30, lr=0.05, **collapsed)
    second = fit(model, X, Y, guide=first.guide, objective="collapsed", epochs=5, lr=0.01)
    assert second.guide is first.guide
    assert second.history["elbo"].mean() > first.history["elbo"].iloc[:5].mean()


def test_any_pyro_elbo_is_an_objective() -> None:
    X, Y = tiny_data()
    elbo_of = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    assert np.isfinite(fit(tiny_model(X, Y), X, Y, objective=elbo_of).history["elbo"]).all()


def test_data_of_another_precision_is_taken_in_the_models() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    posterior = fit(model, X.double(), Y.double())
    assert posterior.predict(X.double()).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1; got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number of at least 1; got 2.5"),
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1; got -1"),
        ({"lr": 0}, "lr must be a number above 0; got 0"),
        ({"lr": "fast"}, "lr must be a number above 0; got 'fast'"),
        ({"clip": 0}, "clip must be a number above 0; got 0"),
        ({"patience": 0}, "patience must be a whole number of at least 1; got 0"),
        ({"schedule": "steps"}, r"schedule must be one of \['constant', 'cosine', 'one_cycle'\]; got 'steps'"),
        ({"guide": "amortised!"}, "guide must be one of .*'paper'.*; got 'amortised!'"),
        ({"objective": "mse"}, "objective must be one of .*'collapsed'.*; got 'mse'"),
        ({"objective": "collapsed"}, "the objective 'collapsed' needs the guide 'doubly_stochastic'"),
        ({"objective": "mean_field", "guide": "doubly_stochastic"}, r"got DoublyStochasticGuide \(use 'collapsed'\)"),
    ],
)
def test_bad_options_are_said(options: dict[str, Any], sentence: str) -> None:
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=sentence):
        fit(tiny_model(X, Y), X, Y, **options)


def test_data_that_does_not_fit_the_model_is_refused() -> None:
    X, Y = tiny_data(0)
    model = tiny_model(X, Y)
    sentence = f"X and Y must have the {F} features and {K} labels of the model; got 2 and {K}"
    with pytest.raises(ValueError, match=sentence):
        fit(model, X[:, :2], Y)
    with pytest.raises(ValueError, match=f"labels of the model; got {F} and 1"):
        fit(model, X, Y[:, :1])


def test_a_guide_of_another_model_or_of_other_rows_is_refused() -> None:
    X, Y = tiny_data(0)
    model, other = tiny_model(X, Y), tiny_model(X, Y)
    with pytest.raises(ValueError, match="guide must be a guide of the model that is fitted"):
        fit(model, X, Y, guide=PaperGuide(other, X, Y))
    with pytest.raises(ValueError, match=r"guide must be made for the data that is fitted \(5 rows\); got one for 8"):
        fit(model, X[:5], Y[:5], guide=PaperGuide(model, X, Y))
    fit(model, X[:5], Y[:5], guide=DoublyStochasticGuide(model, X, Y))  # it keeps nothing a row


def test_renyi_options() -> None:
    for options, sentence in [
        ((1.0, 2), "order must not be 1"),
        ((-1.0, 2), "order must be a number of at least 0"),
        ((0.0, 0), "particles must be a whole number of at least 1; got 0"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            RenyiELBO(*options)


def test_the_trace_of_a_fitted_model_still_depends_on_u() -> None:
    """What is drawn is used: another u moves z_hat (so NUTS on the model does not return the prior)."""
    X, Y = tiny_data()
    model = tiny_model(X, Y, 1)
    u = torch.randn(K, model.layers[0].pseudo_count)
    locs = []
    for value in (u, u + 1):
        trace = poutine.trace(poutine.condition(model, data={"u_z": value})).get_trace(X, Y)
        locs.append(trace.nodes["z_hat"]["fn"].base_dist.loc)
    assert (locs[0] - locs[1]).abs().min() > 1e-4
