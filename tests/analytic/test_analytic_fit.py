"""``fit_analytic`` from the outside: what it returns, its options, and what it says to bad input."""

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from analytic_problems import make_data, make_likelihood, make_model
from torch import Tensor

from esmc_pyro.guides import PaperGuide
from esmc_pyro.inference import fit_analytic
from esmc_pyro.inference.analytic import Options, Solver
from esmc_pyro.inference.analytic.blocks import RowBlock
from esmc_pyro.inference.analytic.psi import Radial
from esmc_pyro.models import ESMC, Experts, Gaussian, Layer, Likelihood, make_kernel
from esmc_pyro.models.means import Constant
from esmc_pyro.posterior import Posterior

QUIET: dict[str, Any] = {"progress": False, "tolerance": 0.0}


def problem(
    seed: int = 0, likelihood: str = "bernoulli", widths: list[int] | None = None
) -> tuple[ESMC, Tensor, Tensor]:
    X, Y = make_data(seed, N=14, labelled=14)
    return make_model(X, 3, [2] if widths is None else widths, make_likelihood(likelihood), M=5, seed=seed), X, Y


@pytest.mark.parametrize("more", [{}, {"refresh": torch.arange(6), "xi": "paper"}], ids=["plain", "refreshed"])
def test_a_shorter_history_is_of_the_same_fit(more: dict[str, Any]) -> None:
    fits = []
    for history in ("blocks", "sweeps"):
        model, X, Y = problem(likelihood="experts")
        options = {"sweeps": 3, "experts": "explicit", "history": history} | more
        fits.append(fit_analytic(model, X, Y, **options, **QUIET))
    whole, short = (fit.history for fit in fits)
    ends = whole.groupby("sweep").tail(1)
    assert list(short["block"]) == list(ends["block"]) == ["q(E)"] * 3
    assert short["elbo"].to_numpy() == pytest.approx(ends["elbo"].to_numpy(), rel=1e-12)
    assert torch.equal(fits[0].predict(X), fits[1].predict(X))


def test_the_likelihoods_term_stays_when_pseudo_instances_move() -> None:
    model, X, Y = problem(likelihood="experts")
    options = Options(refresh=torch.arange(6), xi="paper")
    solver = Solver(model, X, Y, PaperGuide(model, X, Y, covariance="full"), options)
    for _ in range(2):
        solver.sweep()
    solver.refresh()
    kept = solver.likelihood
    solver.gather()
    assert kept == pytest.approx(solver.likelihood, rel=1e-12)


def test_returns_a_posterior_that_predicts_and_draws() -> None:
    model, X, Y = problem()
    posterior = fit_analytic(model, X.numpy(), Y.numpy(), sweeps=3, **QUIET)
    assert isinstance(posterior, Posterior)
    assert isinstance(posterior.guide, PaperGuide)
    assert not posterior.interrupted
    assert list(posterior.history.columns) == ["sweep", "block", "elbo", "seconds"]
    expected = ["q(f_z) q(u_z)", "q(f_c) q(u_c)", "q(c) variance", "q(c)", "q(z)", "xi"]
    assert list(posterior.history["block"][:6]) == expected
    assert posterior.history["sweep"].max() == 3
    assert posterior.predict(X).shape == (14, 3)
    draws = posterior.sample(X, draws=5, seed=0)
    assert draws["y"].shape == (5, 14, 3)
    assert torch.isfinite(draws["z"]).all()


def test_stops_when_the_bound_has_settled() -> None:
    model, X, Y = problem()
    loose = fit_analytic(model, X, Y, sweeps=200, tolerance=1e-2, progress=False).history["sweep"].max()
    tight = fit_analytic(problem()[0], X, Y, sweeps=200, tolerance=1e-3, progress=False).history["sweep"].max()
    assert loose < tight < 200


@pytest.mark.parametrize("other", [{"block": 3}, {"covariance": "full"}])
def test_same_seed_same_result_whatever_the_block(other: dict[str, Any]) -> None:
    (model, X, Y), (again, _, _) = problem(), problem()
    first, second = fit_analytic(model, X, Y, sweeps=3, **QUIET), fit_analytic(again, X, Y, sweeps=3, **QUIET | other)
    exact = "block" not in other
    for a, b in zip(first.guide.parameters(), second.guide.parameters(), strict=True):
        torch.testing.assert_close(a, b, **({"rtol": 0, "atol": 0} if exact else {"rtol": 1e-6, "atol": 1e-8}))


def test_random_state_of_the_caller_is_left_alone() -> None:
    model, X, Y = problem()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit_analytic(model, X, Y, sweeps=1, **QUIET)
    assert torch.equal(torch.rand(3), expected)


def test_interrupt_returns_what_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, Y = problem()
    sweep = Solver.sweep

    def stop(self: Solver) -> float:
        if self.sweeps == 2:
            raise KeyboardInterrupt
        return sweep(self)

    monkeypatch.setattr(Solver, "sweep", stop)
    posterior = fit_analytic(model, X, Y, sweeps=9, **QUIET)
    assert posterior.interrupted
    assert posterior.history["sweep"].max() == 2
    monkeypatch.undo()
    whole = fit_analytic(problem()[0], X, Y, sweeps=2, **QUIET)
    torch.testing.assert_close(posterior.predict(X), whole.predict(X))


def test_goes_on_from_a_guide() -> None:
    model, X, Y = problem()
    first = fit_analytic(model, X, Y, sweeps=2, **QUIET)
    more = fit_analytic(model, X, Y, start=first.guide, sweeps=2, **QUIET)
    assert more.guide is first.guide
    assert more.history["elbo"].iloc[0] >= first.history["elbo"].iloc[-1]
    with pytest.raises(ValueError, match="for 5 rows; got PaperGuide for 14 rows of this model"):
        fit_analytic(model, X[:5], Y[:5], start=first.guide, **QUIET)
    with pytest.raises(ValueError, match="of another model"):
        fit_analytic(problem()[0], X, Y, start=first.guide, **QUIET)


@pytest.mark.parametrize("likelihood", ["bernoulli", "experts", "gaussian", "eeoe"])
def test_unlabelled_rows_and_unknown_entries_follow_their_prediction(likelihood: str) -> None:
    model, X, Y = problem(likelihood=likelihood)
    Y[3, 1] = torch.nan
    posterior = fit_analytic(model, X[:10], Y[:10], X[10:], sweeps=2, **QUIET)
    guide, layer = posterior.guide, model.layers[1]
    scale = guide.get("z", "scale")
    torch.testing.assert_close(scale[10:], torch.full_like(scale[10:], layer.gamma.item()))
    assert scale[3, 1].item() == pytest.approx(layer.gamma.item())
    assert (scale[:10][~torch.isnan(Y[:10])] < layer.gamma.item()).all()
    # the psi-averaged prediction from q(c) and q(u), which were updated before it
    solver = Solver(model, X, Y[:10], guide, Options())
    radial = Radial.of(layer.kernel, layer.pseudo_instances)
    psi = RowBlock(radial, guide.get("c", "loc"), guide.get("c", "scale").square())
    z_hat = layer.offset(X) + psi.p1 @ solver.functions[1].weights.mT
    torch.testing.assert_close(guide.get("z", "loc")[10:], z_hat[10:])
    torch.testing.assert_close(guide.get("z", "loc")[3, 1], z_hat[3, 1])


def test_self_training_holds_the_predictions() -> None:
    model, X, Y = problem()
    posterior = fit_analytic(model, X[:10], Y[:10], X[10:], unlabelled="self_training", sweeps=1, **QUIET)
    held = posterior.guide.get("z", "loc")[10:]
    again = problem()[0]
    longer = fit_analytic(again, X[:10], Y[:10], X[10:], unlabelled="self_training", sweeps=6, **QUIET)
    torch.testing.assert_close(longer.guide.get("z", "loc")[10:], held)
    free = fit_analytic(problem()[0], X[:10], Y[:10], X[10:], sweeps=6, **QUIET)
    assert not torch.allclose(free.guide.get("z", "loc")[10:], held)


def test_float32_stays_float32_and_agrees() -> None:
    model, X, Y = problem()
    double = fit_analytic(model, X, Y, sweeps=3, **QUIET)
    single = problem()[0].float()
    posterior = fit_analytic(single, X.float(), Y.float(), sweeps=3, **QUIET)
    assert all(p.dtype == torch.float32 for p in posterior.guide.parameters())
    torch.testing.assert_close(posterior.predict(X).double(), double.predict(X), rtol=1e-2, atol=1e-2)
    assert posterior.history["elbo"].iloc[-1] == pytest.approx(double.history["elbo"].iloc[-1], rel=1e-3)


def test_one_layer_with_all_rows_is_exact_gp_regression() -> None:
    """``S = X`` and a small alpha: the posterior mean is ``k (K + (gamma² + noise²) I)^-1 y``."""
    X, Y = make_data(2, N=8, labelled=8, unknown=0.0)
    kernel = make_kernel("matern52", 3, lengthscale=2.0)
    layer = Layer("z", kernel, X, 3, plate="labels", alpha=1e-3, gamma=0.5).learn()
    posterior = fit_analytic(ESMC([layer], Gaussian(noise=0.5)), X, Y, sweeps=200, tolerance=1e-13, progress=False)
    new = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        exact = layer.kernel(new, X) @ torch.linalg.solve(
            layer.kernel(X) + 0.5 * torch.eye(8, dtype=torch.float64), Y
        )  # fmt: skip
    torch.testing.assert_close(posterior.predict(new), exact, rtol=1e-3, atol=1e-4)


def test_clamp_refresh_and_forward_pass_do_what_they_say() -> None:
    model, X, Y = problem(likelihood="experts")
    before = model.layers[1].pseudo_instances.clone()
    posterior = fit_analytic(
        model, X, Y, start="zero", clamp=7.0, refresh=torch.arange(6), q_c="forward", sweeps=2, **QUIET
    )
    guide = posterior.guide
    assert (guide.get("z", "loc")[Y == 1] == 7.0).all()
    assert not torch.equal(model.layers[1].pseudo_instances, before)
    assert "refresh" in set(posterior.history["block"])
    c_hat = model.layers[0].predict(X, guide.get("c", "u_loc"))
    torch.testing.assert_close(guide.get("c", "loc"), c_hat)
    torch.testing.assert_close(guide.get("c", "scale"), torch.full_like(c_hat, model.layers[0].gamma.item()))
    # the paper's refresh puts the second layer's pseudo-instances where the first layer maps its own
    X, Y = make_data(0, N=14, labelled=14)
    model = ESMC.from_data(X, Y, [2], likelihood=Experts(3), pseudo=4)
    guide = fit_analytic(model, X, Y, refresh="pseudo", xi="paper", sweeps=1, functions="alternate", **QUIET).guide
    c = model.layers[0]
    expected = c.predict(c.pseudo_instances, guide.u_means()[0])
    torch.testing.assert_close(model.layers[1].pseudo_instances, expected)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 5), (6, 3, 9)])
def test_odd_shapes(shape: tuple[int, int, int]) -> None:
    N, K, M = shape
    X, Y = make_data(0, N=N, labelled=N, K=K, unknown=0.0)
    X[-1] = X[0]
    model = make_model(X, K, [2], make_likelihood("experts"), M=M)
    posterior = fit_analytic(model, X, Y, sweeps=2, start="zero", **QUIET)
    assert torch.isfinite(posterior.predict(X)).all()


def test_a_likelihood_of_ones_own_is_taken_by_quadrature() -> None:
    class Noisy(Likelihood):
        """Labels flipped one time in ten."""

        def distribution(self, z: Tensor) -> torch.distributions.Distribution:
            return dist.Bernoulli(probs=0.1 + 0.8 * torch.sigmoid(z))

    X, Y = make_data(1, N=14, labelled=14)
    history = fit_analytic(make_model(X, 3, [2], Noisy()), X, Y, sweeps=4, **QUIET).history
    assert (history["elbo"].diff().dropna() >= -1e-8 * history["elbo"].abs().max()).all()


def test_learns_what_the_features_say() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    Y = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] * X[:, 1] > 0], 1).astype(float)
    model = ESMC.from_data(torch.as_tensor(X[:80]), torch.as_tensor(Y[:80]), [3], likelihood=Experts(1), pseudo=30)
    model.layers[1].mean = Constant(torch.zeros(3, dtype=torch.float64).requires_grad_(False))
    model.layers[1].learn()
    scores = fit_analytic(model, X[:80], Y[:80], sweeps=15, progress=False).predict(X[80:])
    assert ((scores > 0).numpy() == Y[80:]).mean() > 0.85


def test_the_origin_of_the_features_does_not_matter() -> None:
    X, Y = (part.float() for part in make_data(0, N=14, labelled=14))
    bounds, scores = [], []
    for moved in (X, X + 2000):
        model = ESMC.from_data(moved, Y, [], likelihood="bernoulli", pseudo=6, lengthscale=2.0)
        fitted = fit_analytic(model, moved, Y, sweeps=5, progress=False)
        bounds.append(fitted.history["elbo"].iloc[-1])
        scores.append(fitted.predict(moved))
    assert bounds[1] == pytest.approx(bounds[0], abs=0.02)
    assert torch.allclose(scores[0], scores[1], atol=0.02)
