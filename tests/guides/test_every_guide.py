"""Every guide of the registry at its optimum on a problem that is Gaussian throughout: moments, bound and gradients.

One layer, Gaussian likelihood, all labels known. In the letters of ``Marginal``, for each label ``k`` alone,
``v ~ N(0, I)``, ``z = A v + N(0, s^2)``, ``y = z + N(0, noise^2)``: the posterior of ``(v, z)`` is a normal
distribution and the evidence is ``N(y; 0, A A' + (s^2 + noise^2) I)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from tiny import agree, elbo, mean_and_error, tiny_model
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, Guide, MarginalGuide
from esmc_pyro.inference import fit_analytic, fit_svi
from esmc_pyro.model_file import ModelFileError
from esmc_pyro.model_file import guides as guide_files
from esmc_pyro.model_file.errors import Tensors
from esmc_pyro.models import ESMC, Gaussian

pytestmark = pytest.mark.usefixtures("double")
N, K, M, NOISE = 5, 2, 3, 0.6


@dataclass
class Problem:
    """The model, its data, and what is known of its posterior: ``(v, z)`` as one vector, label after label."""

    model: ESMC
    X: Tensor
    Y: Tensor
    features: Tensor  # A, N x M
    s2: float
    mean: Tensor
    precision: Tensor
    evidence: Tensor

    @property
    def posterior(self) -> MultivariateNormal:
        return MultivariateNormal(self.mean, precision_matrix=self.precision)

    def bound(self, q: MultivariateNormal) -> Tensor:
        """The bound of any normal ``q(v, z)``."""
        return self.evidence - kl_divergence(q, self.posterior)


def problem() -> Problem:
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(N, 2, generator=generator)
    Y = (torch.rand(N, K, generator=generator) < 0.5).to(X.dtype)
    model = tiny_model(X, Y, 1, Gaussian(NOISE), pseudo=M)
    layer = model.layers[0]
    with torch.no_grad():
        a, s2 = layer.features(X), float(layer.beta**2 + layer.gamma**2)
    # the order of Marginal's latent sites: v_z is K x M, z is N x K
    precision, linear, evidence = torch.zeros(K * (M + N), K * (M + N)), torch.zeros(K * (M + N)), torch.zeros(())
    for k in range(K):
        v, z = k * M + torch.arange(M), K * M + k + K * torch.arange(N)
        precision[v[:, None], v] = torch.eye(M) + a.mT @ a / s2
        precision[v[:, None], z] = -a.mT / s2
        precision[z[:, None], v] = -a / s2
        precision[z[:, None], z] = torch.eye(N) * (1 / s2 + 1 / NOISE**2)
        linear[z] = Y[:, k] / NOISE**2
        evidence += MultivariateNormal(torch.zeros(N), a @ a.mT + (s2 + NOISE**2) * torch.eye(N)).log_prob(Y[:, k])
    return Problem(model, X, Y, a, s2, torch.linalg.solve(precision, linear), precision, evidence)


@dataclass
class Optimum:
    """A guide with its parameters at the best values, and in closed form its bound and moments of ``v`` (K x M)."""

    guide: Guide
    bound: Tensor
    mean: Tensor
    variance: Tensor
    tight: bool = False  # whether ln p - ln q is the same for every draw: q is the posterior


def by_site(name: str, p: Problem) -> Optimum:
    """Means are exact; the best diagonal normal has the posterior's conditional variances."""
    guide = GUIDES[name](p.model, p.X, p.Y)
    scale = p.precision.diagonal().rsqrt()
    for site, part, shape in (("v_z", slice(0, K * M), (K, M)), ("z", slice(K * M, None), (N, K))):
        setattr(guide.auto.locs, site, p.mean[part].reshape(shape).clone())
        setattr(guide.auto.scales, site, scale[part].reshape(shape).clone())
    q = MultivariateNormal(p.mean, scale_tril=torch.diag(scale))
    return Optimum(guide, p.bound(q), p.mean[: K * M], scale[: K * M] ** 2)


def diagonal(name: str, p: Problem) -> Optimum:
    guide = GUIDES[name](p.model, p.X, p.Y)
    scale = p.precision.diagonal().rsqrt()
    guide.auto.loc.data, guide.auto.scale = p.mean.clone(), scale
    q = MultivariateNormal(p.mean, scale_tril=torch.diag(scale))
    return Optimum(guide, p.bound(q), p.mean[: K * M], scale[: K * M] ** 2)


def exact(guide: Guide, p: Problem) -> Optimum:
    return Optimum(guide, p.evidence, p.mean[: K * M], p.posterior.variance[: K * M], tight=True)


def full(name: str, p: Problem) -> Optimum:
    guide = GUIDES[name](p.model, p.X, p.Y)
    tril = p.posterior.scale_tril
    guide.auto.loc.data, guide.auto.scale = p.mean.clone(), tril.diagonal().clone()
    guide.auto.scale_tril = tril / tril.diagonal().unsqueeze(-1)
    return exact(guide, p)


def low_rank(name: str, p: Problem) -> Optimum:
    """With a rank of all dimensions any covariance ``e I + F F'`` can be had."""
    rank = len(p.mean)
    guide = MarginalGuide(p.model, p.X, p.Y, auto=partial(AutoLowRankMultivariateNormal, rank=rank))
    covariance = p.posterior.covariance_matrix
    least = 0.5 * torch.linalg.eigvalsh(covariance)[0]
    factor = torch.linalg.cholesky(covariance - least * torch.eye(rank))
    guide.auto.loc.data, guide.auto.scale = p.mean.clone(), least.sqrt().expand(rank).clone()
    guide.auto.cov_factor.data = factor / least.sqrt()
    return exact(guide, p)


def laplace(name: str, p: Problem) -> Optimum:
    """From where it starts it finds the peak, and the curvature of a normal density is its precision."""
    guide = GUIDES[name](p.model, p.X, p.Y)
    guide.finish(p.X, p.Y)
    return exact(guide, p)


def delta(name: str, p: Problem) -> Optimum:
    """The value is ``ln p`` at the posterior's peak, ``ln p(y) + ln N(mean; mean, covariance)``."""
    guide = GUIDES[name](p.model, p.X, p.Y)
    guide.auto.v_z, guide.auto.z = p.mean[: K * M].reshape(K, M).clone(), p.mean[K * M :].reshape(N, K).clone()
    peak = p.evidence + p.posterior.log_prob(p.mean)
    return Optimum(guide, peak, p.mean[: K * M], torch.zeros(K * M), tight=True)


def flow(name: str, p: Problem) -> Optimum:
    """An affine flow whose networks are constant is a diagonal normal: ``x = mean + scale * noise``."""
    guide = GUIDES[name](p.model, p.X, p.Y)
    scale = p.precision.diagonal().rsqrt()
    network = guide.auto.transform[0].arn
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.layers[-1].bias.copy_(torch.cat([p.mean, scale.log()]))
    q = MultivariateNormal(p.mean, scale_tril=torch.diag(scale))
    return Optimum(guide, p.bound(q), p.mean[: K * M], scale[: K * M] ** 2)


def whitened(name: str, p: Problem) -> Optimum:
    """``q(v) = N(m, V)``, ``V^-1 = I + A'A / noise^2``; ``z`` keeps its own variance, so the bound is below the
    evidence."""
    guide = GUIDES[name](p.model, p.X, p.Y, covariance="shared")
    assert isinstance(guide, DoublyStochasticGuide) or name == "amortized"
    a = p.features
    V = torch.linalg.inv(torch.eye(M) + a.mT @ a / NOISE**2)
    m = (V @ a.mT @ p.Y / NOISE**2).mT
    guide.z_v_loc.data, guide.z_v_tril = m.clone(), torch.linalg.cholesky(V)
    fit = torch.distributions.Normal(a @ m.mT, NOISE).log_prob(p.Y).sum()
    spread = K * ((a @ V * a).sum() + N * p.s2) / (2 * NOISE**2)
    q, prior = MultivariateNormal(m, V), MultivariateNormal(torch.zeros(M), torch.eye(M))
    return Optimum(guide, fit - spread - kl_divergence(q, prior).sum(), m.flatten(), V.diagonal().repeat(K))


def paper(name: str, p: Problem) -> Optimum:
    """Coordinate ascent on the closed-form bound ends there."""
    posterior = fit_analytic(p.model, p.X, p.Y, covariance="full", sweeps=200, tolerance=1e-12, progress=False)
    guide, layer = posterior.guide, p.model.layers[0]
    bound = torch.tensor(posterior.history["elbo"].iloc[-1])
    to_v = torch.linalg.inv(layer.factor().detach())
    covariance = to_v @ guide.q_u("z").covariance_matrix[0].detach() @ to_v.mT
    return Optimum(guide, bound, layer.whiten(guide.u_means()[0]).detach().flatten(), covariance.diagonal().repeat(K))


TABLE: dict[str, Callable[[str, Problem], Optimum]] = {
    "paper": paper,
    "doubly_stochastic": whitened,
    "amortized": whitened,
    "auto_delta": delta,
    "auto_normal": by_site,
    "auto_diagonal_normal": diagonal,
    "auto_multivariate_normal": full,
    "auto_low_rank_multivariate_normal": low_rank,
    "auto_laplace_approximation": laplace,
    "auto_iaf_normal": flow,
}
every_guide = pytest.mark.parametrize("name", GUIDES)


@cache
def optimum(name: str) -> tuple[Problem, Optimum]:
    """Made once: no test changes it."""
    p = problem()
    return p, TABLE[name](name, p)


def test_every_guide_has_an_entry() -> None:
    assert set(TABLE) == set(GUIDES)


@every_guide
def test_the_bound_is_the_closed_form(name: str) -> None:
    p, best = optimum(name)
    mean, error = elbo(p.model, best.guide, p.X, p.Y, particles=4000)
    if best.tight:
        assert torch.allclose(mean, best.bound, rtol=1e-6)
        assert error < 1e-6
    else:
        assert best.bound < p.evidence
        assert agree((mean, error), (best.bound, torch.zeros(())))


@every_guide
def test_the_moments_are_the_closed_form(name: str) -> None:
    p, best = optimum(name)
    layer = p.model.layers[0]
    with torch.no_grad(), pyro.plate("particles", 8000, dim=-3):
        v = layer.whiten(best.guide.sample_globals()[0]).flatten(1)
    mean, error = mean_and_error(v)
    assert ((mean - best.mean).abs() <= 4 * error + 1e-9).all()
    # the variance of a variance of n normal numbers is 2 var^2 / n
    assert ((v.var(0) - best.variance).abs() <= 4 * best.variance * (2 / len(v)) ** 0.5 + 1e-12).all()
    middle = layer.whiten(best.guide.u_means()[0]).flatten()
    tolerance = 4 * (best.variance / 4000).sqrt() if name == "auto_iaf_normal" else 1e-6
    assert ((middle - best.mean).abs() <= tolerance).all()


@every_guide
def test_the_gradient_vanishes_there(name: str) -> None:
    """So the fit of a guide can end where its bound is highest; a mean gradient within its standard error."""
    p, best = optimum(name)
    parameters = [parameter for parameter in best.guide.parameters() if parameter.requires_grad]
    if not parameters:  # Laplace's approximation is done
        assert name == "auto_laplace_approximation"
        return
    loss_of = Trace_ELBO(40, 2, vectorize_particles=True)(best.guide.joint, best.guide)
    draws = [torch.autograd.grad(loss_of(p.X, p.Y, None), parameters, allow_unused=True) for _ in range(15)]
    flat = torch.stack([torch.cat([g.flatten() for g in draw if g is not None]) for draw in draws])
    mean, error = mean_and_error(flat)
    still = error < 1e-8
    assert (mean[still].abs() < 1e-5).all()
    assert ((mean / error)[~still].abs() < 5).all()


@every_guide
def test_gradients_of_minibatches_have_no_bias(name: str) -> None:
    """The mean over the batches of a partition, weighted by size, is the full gradient; away from the optimum."""
    p = problem()
    guide = GUIDES[name](p.model, p.X, p.Y)
    if guide.needs_all_rows:
        with pytest.raises(ValueError, match=r"rows must be None or all 5 rows in order: .* got 2 of them"):
            guide(p.X, p.Y, torch.tensor([3, 1]))
        return
    parameters = [parameter for parameter in guide.parameters() if parameter.requires_grad]
    loss_of = Trace_ELBO(40, 2, vectorize_particles=True)(guide.joint, guide)

    def gradient(rows: Tensor | None) -> tuple[Tensor, Tensor]:
        draws = [torch.autograd.grad(loss_of(p.X, p.Y, rows), parameters) for _ in range(10)]
        return mean_and_error(torch.stack([torch.cat([g.flatten() for g in draw]) for draw in draws]))

    parts = [(len(rows) / N, gradient(rows)) for rows in torch.tensor([3, 0, 4, 1, 2]).split(3)]
    mean, error = sum(w * g for w, (g, _) in parts), sum((w * e) ** 2 for w, (_, e) in parts) ** 0.5
    expected, other = gradient(None)
    noise = (error**2 + other**2).sqrt()
    still = noise < 1e-9
    assert torch.allclose(mean[still], expected[still], atol=1e-7)
    assert (((mean - expected) / noise)[~still].abs() < 5).all()


@pytest.mark.parametrize(("batch_size", "tolerance"), [(99, 1e-3), (3, 0.05)])
def test_a_fit_ends_at_the_optimum_with_all_rows_and_with_batches(batch_size: int, tolerance: float) -> None:
    """Of a point, whose objective has no noise but that of the batches: the posterior's mean."""
    p = problem()
    posterior = fit_svi(
        p.model, p.X, p.Y, guide="auto_delta", epochs=200, batch_size=batch_size, lr=0.1, progress=False
    )
    auto = posterior.guide.auto
    found = torch.cat([auto.v_z.flatten(), auto.z.flatten()]).detach()
    assert torch.allclose(found, p.mean, atol=tolerance)


@pytest.mark.parametrize("name", ["auto_delta", "auto_normal"])
def test_a_batch_of_all_rows_in_another_order_is_refused(name: str) -> None:
    p = problem()
    guide = GUIDES[name](p.model, p.X, p.Y)
    guide(p.X, p.Y, torch.arange(N))
    with pytest.raises(ValueError, match=r"rows must be None or all 5 rows in order or fewer: .* got 5 of them"):
        guide(p.X, p.Y, torch.tensor([1, 0, 2, 3, 4]))


@every_guide
def test_a_fit_predicts_and_seeds_repeat(name: str) -> None:
    p = problem()
    more = torch.randn(4, 2)

    def once(seed: int) -> tuple[Tensor, Tensor]:
        posterior = fit_svi(
            problem().model, p.X, p.Y, more, guide=name, epochs=2, batch_size=99, seed=seed, progress=False
        )
        new = torch.linspace(-1, 1, 6).reshape(3, 2)
        return posterior.predict(new), posterior.sample(new, 2, ["z"], seed=1)["z"]

    first, again, other = once(0), once(0), once(1)
    assert first[0].shape == (3, K)
    assert first[1].shape == (2, 3, K)
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()
        assert not torch.equal(a, c) or name in ("auto_delta", "auto_laplace_approximation")


@every_guide
def test_a_guide_is_saved_or_says_why_not(name: str) -> None:
    p = problem()
    guide, tensors = GUIDES[name](p.model, p.X, p.Y), {}
    if name.startswith("auto_"):
        with pytest.raises(ModelFileError, match=r"a model file can hold the guides \[.*\]; got .*Guide"):
            guide_files.encode(guide, tensors)
        return
    content = guide_files.encode(guide, tensors)
    back = guide_files.decode(content, Tensors({key: value.detach() for key, value in tensors.items()}), p.model)
    assert type(back) is type(guide)
    for (path, a), (other, b) in zip(guide.named_parameters(), back.named_parameters(), strict=True):
        assert (path, a.requires_grad) == (other, b.requires_grad)
        assert torch.equal(a, b)
