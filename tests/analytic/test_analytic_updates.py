"""Each closed-form update is the numerical optimum of the bound over its own block."""

from collections.abc import Callable

import pytest
import torch
from analytic_problems import make_solver
from torch import Tensor

from esmc_pyro.inference.analytic import bound, updates
from esmc_pyro.inference.analytic.latent import climb, own_part
from esmc_pyro.inference.analytic.rows import TRIES
from esmc_pyro.models import EEOE, MPU, Likelihood


def maximise(function: Callable[..., Tensor], *start: Tensor) -> list[Tensor]:
    """L-BFGS with strong Wolfe steps, from ``start``."""
    parameters = [x.clone().requires_grad_() for x in start]
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=500, tolerance_grad=1e-9, tolerance_change=0, history_size=50,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -function(*parameters)
        value.backward()
        return value

    optimiser.step(loss)
    return [x.detach() for x in parameters]


def lower(raw: Tensor) -> Tensor:
    """A lower triangle with a positive diagonal from any square matrix."""
    return raw.tril(-1) + raw.diagonal().exp().diag()


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
def test_q_f(layer: int) -> None:
    f = make_solver().functions[layer]
    var_u = f.u_covariance_sum().diagonal()

    def value(m_f: Tensor, raw: Tensor) -> Tensor:
        tril = lower(raw)
        return (
            bound.expected_log_u_given_f(f.u_loc, var_u, m_f, tril, f.a2)
            + bound.expected_log_f(m_f, tril, f.K_tril)
            + bound.entropy_shared(tril, len(m_f))
        )

    m_f, raw = maximise(value, f.f_loc, torch.zeros_like(f.f_tril))
    f.update_f()
    same(f.f_loc, m_f)
    same(f.f_tril @ f.f_tril.mT, lower(raw) @ lower(raw).mT)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("layer", [0, 1])
def test_q_u(layer: int, covariance: str, joint: bool) -> None:
    solver = make_solver(covariance=covariance)
    f, moments = solver.functions[layer], solver.moments[layer]
    second, cross = f.Lw @ solver.second[layer] @ f.Lw.mT, solver.cross[layer]
    O = len(f.u_loc)

    def value(m_u: Tensor, raw: Tensor, m_f: Tensor) -> Tensor:
        spread = O * lower(raw) @ lower(raw).mT if covariance == "full" else raw.exp().square().sum(0).diag()
        entropy = bound.entropy_shared(lower(raw), O) if covariance == "full" else raw.sum()
        now = bound.Moments(
            moments.count, moments.square, moments.var, moments.log_scale,
            cross=(cross * (m_u @ f.W).mT).sum(), quad=(second * (f.W @ (m_u.mT @ m_u + spread) @ f.W)).sum(),
        )  # fmt: skip
        m_f = m_f if joint else m_f.detach()
        return (
            bound.expected_log_u_given_f(m_u, spread.diagonal(), m_f, f.f_tril, f.a2)
            + bound.expected_log_f(m_f, f.f_tril, f.K_tril)
            + bound.expected_log_output(now, f.b2, f.g2)
            + entropy
        )

    start = torch.zeros_like(f.u_spread)
    held = f.f_loc.clone()
    m_u, raw, m_f = maximise(lambda u, r, m: value(u, r, m if joint else held + 0 * m), f.u_loc, start, f.f_loc)
    f.update_u(solver.second[layer], cross, joint=joint)
    same(f.u_loc, m_u)
    if joint:
        same(f.f_loc, m_f)
    if covariance == "full":
        same(f.u_spread @ f.u_spread.mT, lower(raw) @ lower(raw).mT)
    else:
        same(f.u_spread, raw.exp())


def z_objective(
    value: Callable[[Tensor, Tensor], Tensor], z_hat: Tensor, g2: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """The bound over ``q(z)``: mean and log-variance."""
    return lambda m, log_v: (
        value(m, log_v.exp()) - ((m - z_hat).square() + log_v.exp()) / (2 * g2) + log_v / 2
    ).sum()  # fmt: skip


def test_q_z_xi_and_experts() -> None:
    lambda_, g2 = 1.7, 0.6
    count = torch.tensor([0.0, 1.0, 4.0, 4.0], dtype=torch.float64)
    ones = torch.tensor([0.0, 0.0, 4.0, 1.3], dtype=torch.float64)
    xi = torch.tensor([0.1, 0.5, 2.0, 3.0], dtype=torch.float64)
    z_hat = torch.tensor([0.4, -1.0, 0.3, 2.0], dtype=torch.float64)
    value = lambda m, v: bound.jaakkola(count, ones, m, v, xi, lambda_)  # noqa: E731
    m, log_v = maximise(z_objective(value, z_hat, g2), torch.zeros_like(z_hat), torch.zeros_like(z_hat))
    mean, var = updates.update_z(z_hat, count, ones, xi, lambda_, g2)
    same(mean, m)
    same(var, log_v.exp())
    assert mean[0] == z_hat[0]
    assert var[0] == pytest.approx(g2)
    (best,) = maximise(lambda x: bound.jaakkola(count, ones, mean, var, x, lambda_)[1:].sum(), xi + 1)
    same(updates.update_xi(mean, var, lambda_)[1:], best[1:].abs())
    (logit,) = maximise(
        lambda r: (torch.sigmoid(r) * lambda_ * mean + bound.entropy_experts(torch.sigmoid(r))).sum(), 0 * mean
    )
    same(updates.update_experts(mean, lambda_), torch.sigmoid(logit))


def test_q_z_gaussian() -> None:
    g2, noise = 0.6, 0.4
    z_hat = torch.tensor([0.4, -1.0, 0.3], dtype=torch.float64)
    y, known = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    value = lambda m, v: -known * ((y - m).square() + v) / (2 * noise**2)  # noqa: E731
    m, log_v = maximise(z_objective(value, z_hat, g2), torch.zeros_like(z_hat), torch.zeros_like(z_hat))
    mean, var = updates.update_z_gaussian(z_hat, y, known, noise, g2)
    same(mean, m)
    same(var, log_v.exp())


@pytest.mark.parametrize("likelihood", [EEOE(6.0, lambda_=2.0), MPU(0.4)])
def test_q_z_by_quadrature_arrives_at_the_optimum(likelihood: Likelihood) -> None:
    solver = make_solver(likelihood="eeoe" if isinstance(likelihood, EEOE) else "mpu")
    labels = solver.rows.labels
    labels.likelihood = likelihood  # type: ignore[attr-defined]
    N, K = labels.Y.shape  # type: ignore[attr-defined]
    z_hat = torch.randn(N, K, dtype=torch.float64)
    for _ in range(20):
        labels.step("q(z)", slice(0, N), z_hat)
    y, known = labels.labels(slice(0, N))  # type: ignore[attr-defined]
    value = lambda m, v: torch.where(known, likelihood.expected_log_prob(y, m, v), 0.0)  # noqa: E731
    m, log_v = maximise(z_objective(value, z_hat, labels.g2), z_hat, torch.zeros_like(z_hat))  # type: ignore[attr-defined]
    same(solver.rows.loc[-1][:N], m)
    same(solver.rows.var[-1][:N], log_v.exp())


@pytest.mark.parametrize("c_variance", ["shared", "rows"])
def test_steps_of_q_c_arrive_where_the_gradient_is_zero(c_variance: str) -> None:
    solver = make_solver(c_variance=c_variance)
    rows, everything = solver.rows, slice(0, 7)
    above, g2 = rows._above(0), float(solver.functions[0].g2)
    psi, R = rows._psi(above, 0, everything), rows._target(0, everything, above)
    c_hat = torch.randn_like(psi.mean)
    size = torch.ones(7, dtype=torch.float64)
    before = own_part(psi.mean, psi.var, c_hat, g2) - above.cost(psi, R)
    for _ in range(150):
        climb(psi, c_hat, R, above, g2, size, TRIES)
    after = own_part(psi.mean, psi.var, c_hat, g2) - above.cost(psi, R)
    assert (after > before).all()
    _, by_mean, by_var = above.cost_slope(psi, R)
    assert (-(psi.mean - c_hat) / g2 - by_mean).abs().max() < 1e-4
    if c_variance == "rows":
        assert (0.5 / psi.var - 0.5 / g2 - by_var).abs().max() < 1e-4


def test_the_shared_variance_arrives_where_the_gradient_is_zero() -> None:
    solver = make_solver()
    for _ in range(60):
        solver.resting = [0]
        solver.update_variance(0)
    rows, above, g2 = solver.rows, solver.rows._above(0), float(solver.functions[0].g2)
    _, _, by_var = above.cost_slope(rows._psi(above, 0, slice(0, 7)), rows._target(0, slice(0, 7), above))
    assert (7 * (0.5 / rows.var[0] - 0.5 / g2) - by_var).abs().max() < 1e-4
    # the moments it keeps up to date are those of a fresh look at the rows
    kept = solver.bound()
    solver.gather()
    assert solver.bound() == pytest.approx(kept, rel=1e-12)
