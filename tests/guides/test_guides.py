"""Every guide, one table: its sites meet the model's, its conditionals are the model's, its ELBO has no bias."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import MultivariateNormal
from pyro.infer import Trace_ELBO
from pyro.poutine.util import prune_subsample_sites
from tiny import (
    GUIDE_CASES,
    LIKELIHOOD_CASES,
    M,
    agree,
    elbo,
    guides_and_likelihoods,
    mean_and_error,
    shake,
    tiny_data,
    tiny_model,
)
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from esmc_pyro.guides import GUIDES, DoublyStochasticGuide, Guide, PaperGuide
from esmc_pyro.guides.auto import AUTOGUIDES
from esmc_pyro.guides.whitened import COVARIANCES
from esmc_pyro.models import ESMC, Bernoulli, Experts

guides = pytest.mark.parametrize("case", GUIDE_CASES)
# the amortised guide draws c first and c_hat given it; see test_amortized.py
forward_guides = pytest.mark.parametrize("case", [case for case in GUIDE_CASES if case != "amortized"])
pytestmark = pytest.mark.usefixtures("double")


def make(case: str, depth: int = 2, likelihood: object = None, **options: object) -> tuple[ESMC, Guide, Tensor, Tensor]:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, likelihood, **options)
    return model, shake(GUIDE_CASES[case][1](model, X, Y)), X, Y


def covariance_of(q: Distribution) -> Tensor:
    """O x M x M, of independent normals or of a multivariate one."""
    return q.covariance_matrix if isinstance(q, MultivariateNormal) else torch.diag_embed(q.variance)


def test_every_guide_is_in_the_table() -> None:
    assert {name for name, _ in GUIDE_CASES.values()} == set(GUIDES) - set(AUTOGUIDES)


@guides
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_guide_and_model_have_the_same_latent_sites(case: str, depth: int) -> None:
    model, guide, X, Y = make(case, depth, Experts(3))
    q = poutine.trace(guide).get_trace(X, Y)
    p = poutine.trace(poutine.replay(model, trace=q)).get_trace(X, Y)
    latent = set(prune_subsample_sites(p).stochastic_nodes)
    assert set(prune_subsample_sites(q).stochastic_nodes) == latent
    for name in latent:
        assert q.nodes[name]["fn"].batch_shape == p.nodes[name]["fn"].batch_shape, name
        assert q.nodes[name]["fn"].event_shape == p.nodes[name]["fn"].event_shape, name
    assert torch.isfinite(p.log_prob_sum())


@forward_guides
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fitc", [False, True])
def test_log_probs_of_the_hats_are_equal(case: str, depth: int, fitc: bool) -> None:
    model, guide, X, Y = make(case, depth, fitc=fitc)
    q = poutine.trace(guide).get_trace(X, Y, torch.tensor([2, 7, 10]))
    p = poutine.trace(poutine.replay(model, trace=q)).get_trace(X, Y, torch.tensor([2, 7, 10]))
    q.compute_log_prob()
    p.compute_log_prob()
    for layer in model.layers:
        assert torch.equal(q.nodes[layer.hat]["log_prob"], p.nodes[layer.hat]["log_prob"])


@guides_and_likelihoods
def test_minibatches_estimate_the_full_elbo(case: str, likelihood: str) -> None:
    """The mean over all batches of one partition is the full ELBO, within 4 standard errors."""
    model, guide, X, Y = make(case, 2, LIKELIHOOD_CASES[likelihood][1]())
    batches = torch.randperm(len(X)).split(4)  # 4, 4 and 3 rows: weights by size
    parts = [elbo(model, guide, X, Y, rows) for rows in batches]
    weights = [len(rows) / len(X) for rows in batches]
    mean = sum(w * part[0] for w, part in zip(weights, parts, strict=True))
    error = sum((w * part[1]) ** 2 for w, part in zip(weights, parts, strict=True)) ** 0.5
    assert agree((mean, error), elbo(model, guide, X, Y))


@guides
def test_vectorised_particles_and_a_loop_have_the_same_mean(case: str) -> None:
    model, guide, X, Y = make(case, 2, Experts(3))
    with torch.no_grad():
        loop, at_once = Trace_ELBO()(model, guide), Trace_ELBO(2000, 2, vectorize_particles=True)(model, guide)
        looped = mean_and_error(torch.stack([-loop(X, Y, None) for _ in range(30)]))
        mean, error = elbo(model, guide, X, Y)
        vectorised = -at_once(X, Y, None), error
    assert agree(looped, vectorised)
    assert agree((mean, error), vectorised)


@guides
@pytest.mark.parametrize("depth", [1, 3])
def test_experts_explicit_or_summed_out_give_one_elbo_if_the_guide_is_exact(case: str, depth: int) -> None:
    """p(E | z, y) leaves the bound as it is; the paper's q(E) does not depend on z, so its bound is the lower one."""
    X, Y = tiny_data()
    bounds = []
    for explicit in (True, False):
        model = tiny_model(X, Y, depth, Experts(3, 2.0, explicit=explicit))
        torch.manual_seed(1)
        bounds.append(elbo(model, shake(GUIDE_CASES[case][1](model, X, Y)), X, Y))
    if GUIDE_CASES[case][0] != "paper":
        assert agree(*bounds)
    else:
        assert bounds[0][0] < bounds[1][0] + 4 * (bounds[0][1] + bounds[1][1])


@pytest.mark.parametrize("case", ["diagonal", "shared", "full"])
def test_gradients_with_explicit_experts_are_unbiased(case: str) -> None:
    """q(E) = p(E | z, y) is detached, yet the mean gradient is that of the bound with the experts summed out."""
    X, Y = tiny_data()
    gradients = []
    for explicit in (True, False):
        model = tiny_model(X, Y, 2, Experts(3, 2.0, explicit=explicit))
        torch.manual_seed(1)
        guide = shake(GUIDE_CASES[case][1](model, X, Y))
        loss_of = Trace_ELBO(100, 2, vectorize_particles=True)(model, guide)
        parameters = list(guide.parameters())
        draws = [torch.autograd.grad(loss_of(X, Y, None), parameters) for _ in range(25)]
        flat = torch.stack([torch.cat([g.flatten() for g in draw]) for draw in draws])
        gradients.append(mean_and_error(flat))
    (a, da), (b, db) = gradients
    noisy = (da > 0) & (db > 0)  # the upper triangle of a factor has no gradient at all
    assert torch.equal(a[~noisy], b[~noisy])
    deviation = (a - b)[noisy] / (da**2 + db**2).sqrt()[noisy]
    assert deviation.abs().max() < 5  # of a hundred components or more, 25 draws each
    assert deviation.square().mean() < 1.5


def test_the_papers_expert_factor_is_the_best_one_so_its_gradient_may_be_left_out() -> None:
    """The full gradient of the closed-form expert terms in E z equals the one with q(E) held fixed."""
    B, lambda_ = 4, 1.3
    loc = torch.randn(50, requires_grad=True)
    var = torch.rand(50) + 0.1
    nodes = torch.linspace(-8, 8, 801)
    weights = torch.exp(-(nodes**2) / 2) / torch.exp(-(nodes**2) / 2).sum()

    def free_terms(probs: Tensor) -> Tensor:
        z = loc.unsqueeze(-1) + var.sqrt().unsqueeze(-1) * nodes
        one = (torch.nn.functional.logsigmoid(lambda_ * z) * weights).sum(-1)
        zero = (torch.nn.functional.logsigmoid(-lambda_ * z) * weights).sum(-1)
        entropy = -(probs * probs.log() + (1 - probs) * (1 - probs).log())
        return (B - 1) * (probs * one + (1 - probs) * zero + entropy).sum()

    probs = torch.sigmoid(lambda_ * loc)
    through = torch.autograd.grad(free_terms(probs), loc)[0]
    held = torch.autograd.grad(free_terms(probs.detach()), loc)[0]
    assert torch.allclose(through, held, atol=1e-8)
    nearby = free_terms((probs.detach() + 0.01).clamp(max=0.999))
    assert free_terms(probs) > nearby


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_kl_against_torch(covariance: str) -> None:
    model, guide, _, _ = make(covariance, 3)
    for layer in model.layers:
        q_v = guide.q_v(layer)
        full = MultivariateNormal(guide.v_loc(layer), covariance_of(q_v))
        standard = MultivariateNormal(torch.zeros(M), torch.eye(M))
        assert torch.allclose(guide.kl(layer), kl_divergence(full, standard).sum())
        # and in the space of u, against the model's own marginal prior
        lw = layer.factor()
        q_u = MultivariateNormal(full.loc @ lw.mT, lw @ full.covariance_matrix @ lw.mT)
        p_u = MultivariateNormal(torch.zeros(M), lw @ lw.mT)
        assert torch.allclose(guide.kl(layer), kl_divergence(q_u, p_u).sum())


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_output_variance_is_that_of_q(covariance: str) -> None:
    model, guide, X, _ = make(covariance, 2)
    layer = model.layers[0]
    a = layer.features(X)
    q_v = guide.q_v(layer)
    by_hand = torch.einsum("nm,omk,nk->no", a, covariance_of(q_v), a)
    assert torch.allclose(guide.output_variance(layer, a).expand_as(by_hand), by_hand)


@guides
def test_u_means_are_the_means_of_the_draws(case: str) -> None:
    _, guide, _, _ = make(case)
    with torch.no_grad(), pyro.plate("particles", 2000, dim=-3):
        draws = guide.sample_globals()
    for mean, draw in zip(guide.u_means(), draws, strict=True):
        assert not mean.requires_grad
        assert agree((mean, torch.zeros(())), mean_and_error(draw.squeeze(1)))


def test_optimal_functions_are_the_best_q_f_given_q_u() -> None:
    """The bound with q(f) = p(f | E u) is above the bound with any other q(f), here free ones that were shaken."""
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    torch.manual_seed(3)
    best = PaperGuide(model, X, Y, functions="optimal")
    other = PaperGuide(model, X, Y)
    assert agree(elbo(model, best, X, Y), elbo(model, other, X, Y))  # both begin there
    for name in ("c", "z"):
        with torch.no_grad():
            other.get(name, "f_loc").add_(0.1 * torch.randn_like(other.get(name, "f_loc")))
    worse, error = elbo(model, other, X, Y)
    assert worse < elbo(model, best, X, Y)[0] - 4 * error
    assert not best.get("c", "f_loc").requires_grad


def test_row_parameters_follow_their_rows() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    guide = shake(PaperGuide(model, X, Y))
    rows = torch.tensor([10, 3])
    trace = poutine.trace(guide).get_trace(X, Y, rows)
    for site in ("c", "z"):
        assert torch.equal(trace.nodes[site]["fn"].base_dist.loc, guide.get(site, "loc")[rows])
        assert torch.equal(trace.nodes[site]["fn"].base_dist.scale, guide.get(site, "scale")[rows])


def test_guides_do_not_own_the_model() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y)
    for case in GUIDE_CASES:
        guide = GUIDE_CASES[case][1](model, X, Y)
        assert not {id(p) for p in guide.parameters()} & {id(p) for p in model.parameters()}
        assert guide.model is model


@pytest.mark.parametrize(
    ("guide", "options", "sentence"),
    [
        (PaperGuide, {"covariance": "shared"}, "covariance of the guide 'paper' must be one of .*; got 'shared'"),
        (PaperGuide, {"start": "random"}, r"start must be one of \['labels', 'zero'\]; got 'random'"),
        (PaperGuide, {"functions": "none"}, r"functions must be one of \['free', 'optimal'\]; got 'none'"),
        (DoublyStochasticGuide, {"covariance": "block"}, "covariance must be one of .*; got 'block'"),
        (DoublyStochasticGuide, {"start": "random"}, r"start must be one of \['labels', 'zero'\]; got 'random'"),
        (DoublyStochasticGuide, {"scale": 0.0}, "scale must be a number above 0; got 0.0"),
    ],
)  # fmt: skip
def test_bad_options_are_said(guide: type[Guide], options: dict[str, object], sentence: str) -> None:
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=sentence):
        guide(tiny_model(X, Y), X, Y, **options)


def test_a_guide_owes_two_methods() -> None:
    X, Y = tiny_data()
    nothing = Guide(tiny_model(X, Y, likelihood=Bernoulli()))
    for call in (nothing.sample_globals, nothing.u_means):
        with pytest.raises(TypeError, match=r"Guide must define \w+\("):
            call()
