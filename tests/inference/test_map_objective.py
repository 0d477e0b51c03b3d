"""The objective ``map``, Laplace's spread, frozen features, and the rules behind the default's label coupling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import shake, tiny_data, tiny_model

from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.models import EEOE, MPU, Bernoulli, Experts, Gaussian, Likelihood, rules
from esmc_pyro.objectives import MAP, CollapsedELBO, FrozenFeatures, laplace_spread

pytestmark = pytest.mark.usefixtures("double")


def _pair(depth: int = 2, likelihood: Likelihood | None = None, **options: Any) -> tuple[Any, Any, Any, Any]:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, likelihood)
    guide = DoublyStochasticGuide(model, X, Y, **options)
    return X, Y, model, shake(guide, 0.3)


def _log_joint(model: Any, guide: Any, X: Any, Y: Any) -> float:
    """``ln p(Y | z) + ln p(v)`` written out, entry by entry, up to the constant of ``N(0, I)``."""
    z = model.plug_in(X, guide.u_means())[-1]
    total = 0.0
    for n in range(len(Y)):
        for k in range(Y.shape[1]):
            if not torch.isnan(Y[n, k]):
                total += model.likelihood.log_prob(Y[n, k], z[n, k]).item()
    for layer, u in zip(model.layers, guide.u_means(), strict=True):
        cov = layer.factor() @ layer.factor().mT
        total -= 0.5 * sum((row @ torch.linalg.solve(cov, row)).item() for row in u)
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("likelihood", [Bernoulli(1.3), EEOE(3), Gaussian(0.4)])
def test_map_is_minus_the_log_joint(depth: int, likelihood: Likelihood) -> None:
    X, Y, model, guide = _pair(depth, likelihood)
    assert MAP()(model, guide)(X, Y).item() == pytest.approx(-_log_joint(model, guide, X, Y), rel=1e-9)


def test_map_of_minibatches_is_unbiased() -> None:
    X, Y, model, guide = _pair()
    loss = MAP()(model, guide)
    parts = [loss(X, Y, rows) for rows in torch.randperm(len(X)).split(1)]
    assert torch.stack(parts).mean().item() == pytest.approx(loss(X, Y).item(), rel=1e-9)


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_the_gradient_of_map_is_that_of_finite_differences(kl_weight: float) -> None:
    X, Y, model, guide = _pair()
    loss = MAP(kl_weight=kl_weight)(model, guide)
    (0.7 * loss(X, Y)).backward()
    step = 1e-5
    for layer in model.layers:
        v = guide.v_loc(layer)
        direction = torch.randn_like(v)
        ends = []
        for sign in (1, -1):
            v.data.add_(sign * step * direction)
            ends.append(loss(X, Y).item())
            v.data.add_(-sign * step * direction)
        slope = (v.grad * direction).sum().item() / 0.7
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_map_has_finite_gradients_with_unknown_labels() -> None:
    X, Y, model, guide = _pair()
    Y[0] = torch.nan
    MAP()(model, guide)(X, Y).backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters() if p.grad is not None)


def test_map_with_an_earlier_posterior_as_prior() -> None:
    X, Y, model, guide = _pair(covariance="common")
    prior = [(torch.randn_like(guide.v_loc(l)), torch.rand(1, l.pseudo_count) + 0.5) for l in model.layers]
    gap = sum(
        0.5 * (((guide.v_loc(l) - m) / s).square().sum() - guide.v_loc(l).square().sum())
        for l, (m, s) in zip(model.layers, prior, strict=True)
    )
    assert (MAP(prior)(model, guide)(X, Y) - MAP()(model, guide)(X, Y)).item() == pytest.approx(gap.item(), rel=1e-9)


def test_map_refuses_other_guides() -> None:
    from esmc_pyro.guides import PaperGuide

    X, Y, model, _ = _pair()
    with pytest.raises(ValueError, match="the objective 'map' needs the guide 'doubly_stochastic'; got PaperGuide"):
        MAP()(model, PaperGuide(model, X, Y))


def test_frozen_features_are_the_features() -> None:
    X, _, model, _ = _pair()
    layer, rows = model.layers[0], torch.tensor([4, 0, 9])
    kept = FrozenFeatures(layer)
    assert torch.allclose(kept(X, rows), layer.features(X[rows]))
    assert kept.kept is not None
    other = X + 1  # other data, other features
    assert torch.allclose(kept(other, rows), layer.features(other[rows]))


def test_frozen_features_of_the_pseudo_instances_themselves() -> None:
    _, _, model, _ = _pair()
    layer, rows = model.layers[0], torch.tensor([1, 0])
    X = layer.pseudo_instances.detach().clone()
    assert torch.allclose(FrozenFeatures(layer)(X, rows), layer.features(X[rows]))


@pytest.mark.parametrize("name", ["kernel", "pseudo_instances", "alpha"])
def test_features_are_not_frozen_while_they_are_learned(name: str) -> None:
    X, _, model, _ = _pair()
    layer = model.layers[0].learn(name)
    kept = FrozenFeatures(layer)
    assert kept(X, torch.tensor([1, 2])).requires_grad
    assert kept.kept is None


def test_features_beyond_the_budget_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, model, _ = _pair()
    monkeypatch.setattr(FrozenFeatures, "BUDGET", 10)
    kept = FrozenFeatures(model.layers[0])
    assert torch.allclose(kept(X, torch.tensor([3])), model.layers[0].features(X[[3]]))
    assert kept.kept is None


@pytest.mark.parametrize("likelihood", [Bernoulli(1.7), EEOE(4, 0.8), MPU(0.3), Gaussian(0.4), Experts(3)])
def test_information_against_finite_differences(likelihood: Likelihood) -> None:
    z, y = torch.linspace(-2, 2, 9), (torch.arange(9) % 2).double()
    step = 1e-4
    second = (
        likelihood.log_prob(y, z + step) - 2 * likelihood.log_prob(y, z) + likelihood.log_prob(y, z - step)
    ) / step**2
    assert torch.allclose(likelihood.information(y, z), (-second).clamp(min=0), atol=1e-5, rtol=1e-4)


class Straight(Bernoulli):
    """``ln p`` is a line in ``z``, whose slope may be learned."""

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.rise = torch.nn.Parameter(torch.tensor(0.3), requires_grad=learned)

    def log_prob(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.rise * (2 * y - 1) * z


@pytest.mark.parametrize("learned", [False, True])
def test_a_straight_line_tells_nothing(learned: bool) -> None:
    assert torch.equal(Straight(learned).information(torch.ones(3), torch.randn(3)), torch.zeros(3))


@pytest.mark.parametrize("likelihood", [Bernoulli(0.05), Gaussian(0.8)])
def test_laplace_spread_is_where_the_bound_is_stationary(likelihood: Likelihood) -> None:
    # with a small slope the Bernoulli is its second-order expansion; the Gaussian always is
    X, Y, model, guide = _pair(1, likelihood, covariance="common")
    laplace_spread(model, guide, X, Y)
    best = guide.z_v_scale.detach().clone()
    loss = CollapsedELBO()(model, guide)
    assert (best < 1).all()
    for m in range(best.shape[1]):
        values = []
        for factor in (0.99, 1.0, 1.01):
            moved = best.clone()
            moved[0, m] *= factor
            guide.z_v_scale = moved
            values.append(loss(X, Y).item())
        slope, bend = (values[2] - values[0]) / 2, values[2] - 2 * values[1] + values[0]
        assert bend > 0
        assert abs(slope / bend) < 0.05  # the minimum is within a twentieth of a step of one per cent


def test_laplace_spread_behind_a_linear_mean() -> None:
    from esmc_pyro.models import ESMC, Layer, make_kernel
    from esmc_pyro.models.means import Linear

    X, Y = tiny_data(unlabelled=0)
    W = torch.randn(2, 4)
    first = Layer("c", make_kernel("rbf", 3), X[:5], 2)
    last = Layer("z", make_kernel("rbf", 2, variance=1e-8), torch.zeros(1, 2), 4, plate="labels", mean=Linear(W))
    model = ESMC([first, last], Bernoulli())
    guide = shake(DoublyStochasticGuide(model, X, Y, covariance="common", start="zero"), 0.3)
    laplace_spread(model, guide, X, Y, block=3)
    z, a = model.plug_in(X, guide.u_means())[-1].detach(), first.features(X).detach()
    p = torch.sigmoid(z)
    total = torch.zeros(5)
    for n in range(len(Y)):
        for k in range(4):
            if not torch.isnan(Y[n, k]):
                total += (W[:, k] ** 2).mean() * p[n, k] * (1 - p[n, k]) * a[n] ** 2
    assert torch.allclose(guide.c_v_scale[0], (1 + total).rsqrt())
    at_z = last.features(model.plug_in(X, guide.u_means())[0]).detach()
    known = ~torch.isnan(Y)
    own = (at_z[: len(Y)].square() * (known * p[: len(Y)] * (1 - p[: len(Y)])).mean(1, keepdim=True)).sum(0)
    assert torch.allclose(guide.z_v_scale[0], (1 + own).rsqrt())


def test_laplace_spread_needs_a_common_covariance() -> None:
    X, Y, model, guide = _pair(covariance="diagonal")
    with pytest.raises(ValueError, match="covariance must be 'common' for a Laplace spread; got 'diagonal'"):
        laplace_spread(model, guide, X, Y)


@pytest.mark.parametrize(("depth", "mean"), [(2, "zero"), (2, "constant"), (3, "zero"), (3, "linear")])
def test_laplace_spread_needs_one_layer_or_a_linear_mean_on_the_second(depth: int, mean: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, mean=mean)
    guide = DoublyStochasticGuide(model, X, Y, covariance="common")
    with pytest.raises(ValueError, match=f"a second one with a linear mean, for a Laplace spread; got {depth} layers"):
        laplace_spread(model, guide, X, Y)


def _labels() -> torch.Tensor:
    Y = (torch.rand(50, 6) < 0.4).double()
    Y[:, 1] = Y[:, 0]
    Y[3, 2], Y[7, 0] = torch.nan, torch.nan
    Y[:, 5] = 0
    return Y


def test_standardised_labels() -> None:
    Y = _labels()
    standard = rules.standardised_labels(Y)
    assert torch.allclose(standard.mean(0), torch.zeros(6), atol=1e-12)
    assert torch.allclose(standard[:, :5].square().mean(0), torch.ones(5))
    assert (standard[:, 5] == 0).all()  # never varies
    assert standard[3, 2] == 0  # unknown is as frequent as the label
    assert standard[7, 0] == 0


@pytest.mark.parametrize(("rows", "exact"), [(50, 10**6), (50, 1), (9, 10**6), (3, 10**6)])
def test_directions_of_labels_are_those_of_their_correlations(
    rows: int, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fewer rows than labels too, and by a random projection (``exact = 1``), here of all that there is."""
    monkeypatch.setattr(rules, "EXACT", exact)
    labels = _labels()[:rows]
    Y = torch.cat([labels, labels.roll(1, 0)], 1)
    standard = rules.standardised_labels(Y)
    R = standard.mT @ standard / rows
    values, vectors = rules.label_directions(Y, 5)
    count = min(5, rows)
    assert values.shape == (count,)
    assert vectors.shape == (12, count)
    kept = vectors.any(0)
    assert kept.sum() == min(5, torch.linalg.matrix_rank(R, tol=1e-9))
    assert torch.allclose(R @ vectors, vectors * values, atol=1e-8)
    assert torch.allclose(vectors[:, kept].mT @ vectors[:, kept], torch.eye(int(kept.sum())), atol=1e-8)
    assert torch.allclose(values.sort(descending=True)[0], torch.linalg.eigvalsh(R).flip(0)[:count], atol=1e-8)


def test_a_projection_finds_directions_nearly_as_good_as_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = (torch.rand(300, 400) < 0.1).double()  # its spectrum hardly falls, which is the hardest
    values, _ = rules.label_directions(Y, 40)
    monkeypatch.setattr(rules, "EXACT", 1)
    monkeypatch.setattr(rules, "OVER", 10)
    found, others = rules.label_directions(Y, 40)
    assert torch.allclose(others.mT @ others, torch.eye(40), atol=1e-9)
    assert 0.93 * values.sum() < found.sum() <= values.sum()


def _best_of_rank(prior: torch.Tensor, rank: int) -> torch.Tensor:
    """The nearest matrix of this rank (Eckart and Young), scaled to a diagonal of ones where there is one."""
    values, vectors = torch.linalg.eigh(prior)
    best = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].mT
    scale = torch.where(best.diagonal() > 1e-6, best.diagonal(), 1.0).rsqrt()
    return scale * best * scale.unsqueeze(1)


@pytest.mark.parametrize("labels", [12, 7])
def test_coupling_of_labels_up_to_twice_the_width_is_the_best_of_that_rank(labels: int) -> None:
    """Also of fewer rows than labels, where many directions do not vary."""
    Y = (torch.rand(5, labels) < 0.5).double()
    standard = rules.standardised_labels(Y)
    prior = 0.3 * torch.eye(labels) + 0.7 * standard.mT @ standard / len(Y)
    rank = int(torch.linalg.matrix_rank(standard))  # beyond it all directions are alike
    W = rules.label_coupling(rules.label_directions(Y, rank), 0.7)
    assert torch.allclose(W.mT @ W, _best_of_rank(prior, rank), atol=1e-8)
    varies = standard.any(0)
    assert torch.allclose(W.norm(dim=0)[varies], torch.ones(int(varies.sum())), atol=1e-9)


def test_labels_that_never_vary_are_not_made_larger() -> None:
    """Also where directions in which nothing varies are among those that are kept."""
    Y = torch.cat([(torch.rand(6, 10) < 0.5).double(), torch.ones(6, 8)], 1)
    directions = rules.label_directions(Y, 14)
    varies = rules.standardised_labels(Y).any(0)
    W = rules.label_coupling(directions, 0.8)
    assert torch.allclose(W.norm(dim=0)[varies], torch.ones(int(varies.sum())), atol=1e-9)
    values, vectors = directions
    assert torch.allclose(W[:, ~varies], (vectors * (0.2 + 0.8 * values).sqrt()).mT[:, ~varies], atol=1e-12)
    assert (W.norm(dim=0)[~varies] < 0.5).all()


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_label_coupling_is_a_root_of_the_formula(strength: float) -> None:
    Y = _labels()
    standard = rules.standardised_labels(Y)
    prior = (1 - strength) * torch.eye(6) + strength * standard.mT @ standard / len(Y)
    W = rules.label_coupling(rules.label_directions(Y, 6), strength)
    assert torch.allclose(W.mT @ W, prior, atol=1e-9)
    narrow = rules.label_coupling(rules.label_directions(Y, 2), strength)
    assert narrow.shape == (2, 6)
    varies = standard.any(0)
    assert not varies.all()  # one label never does, and is in no direction
    if strength:  # without correlations, no direction is better than another
        assert torch.allclose(narrow.mT @ narrow, _best_of_rank(prior, 2), atol=1e-8)
        assert torch.allclose(narrow.norm(dim=0), varies.double(), atol=1e-7)  # the variance of all directions
