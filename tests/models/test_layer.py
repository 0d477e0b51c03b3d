"""The layer against brute-force Gaussian algebra, and its caches."""

import copy
import pickle
from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from torch import Tensor

from esmc_pyro.models import Layer, NotPositiveDefiniteError, make_kernel

O, M, D = 2, 6, 3
pytestmark = pytest.mark.usefixtures("double")


def make_layer(alpha: float = 0.3, kernel: str = "rbf", pseudo: Tensor | None = None, **options: object) -> Layer:
    points = torch.randn(M, D) if pseudo is None else pseudo
    return Layer("c", make_kernel(kernel, D, lengthscale=1.3, variance=1.7), points, O, alpha=alpha, **options)


def test_features_and_prediction_are_the_papers() -> None:
    layer, x, u = make_layer(), torch.randn(5, D), torch.randn(O, M)
    K, k = layer.covariance(), layer.kernel(x, layer.pseudo_instances)
    D_x = k @ torch.linalg.inv(K + 0.09 * torch.eye(M))
    assert torch.allclose(layer.predict(x, u), D_x @ u.mT)
    lw = layer.factor()
    assert torch.allclose(lw @ lw.mT, K + 0.09 * torch.eye(M))
    assert torch.allclose(layer.features(x), k @ torch.linalg.inv(lw).mT)
    v = layer.whiten(u)
    assert torch.allclose(v @ lw.mT, u)
    assert torch.allclose(layer.features(x) @ v.mT, layer.predict(x, u))


@pytest.mark.parametrize("kernel", ["matern12", "rbf+matern12", "matern32", "laplacian"])
def test_a_pseudo_instance_is_predicted_alike_alone_and_among_others_in_single_precision(kernel: str) -> None:
    exact = make_layer(kernel=kernel, pseudo=3 * torch.randn(60, D))
    v = torch.randn(O, 60)
    expected = exact.predict_whitened(exact.pseudo_instances, v)
    layer = copy.deepcopy(exact).float()
    x = layer.pseudo_instances.detach()
    together = layer.predict_whitened(x, v.float())
    alone = torch.cat([layer.predict_whitened(row, v.float()) for row in x.split(1)])
    for found in (together, alone):  # with distances in single precision Matern-1/2 is off by up to 3e-3
        assert torch.allclose(found.double(), expected, atol=1e-4)


@pytest.mark.parametrize("block", [1, 4, 1024])
@pytest.mark.parametrize("alpha", [0.3, 1e-3])
def test_own_features_are_the_features_of_the_pseudo_instances(alpha: float, block: int) -> None:
    layer = make_layer(alpha)
    assert torch.allclose(layer.own_features(block), layer.features(layer.pseudo_instances))


@pytest.mark.parametrize("alpha", [0.1, 1e-4])
def test_a_large_factor_is_as_good_in_single_precision_where_noise_allows(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(300, D, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    made = []
    for large in (100, 1000):
        monkeypatch.setattr("esmc_pyro.models.layer.LARGE", large)
        kernel = make_kernel("matern12", D, lengthscale=2.0).float()
        made.append(Layer("c", kernel, x, O, alpha=alpha).features(x + 0.1))
    single, double = made
    # noise of 0.01 bears float32, 1e-8 does not: the same, to the bit, as of few pseudo-instances
    assert torch.equal(single, double) == (alpha < 0.01)
    assert torch.allclose(single, double, atol=1e-4)


def test_own_features_of_a_factor_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esmc_pyro.models.layer.LARGE", 100)
    x = torch.randn(300, D, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    single, double = (
        Layer("c", make_kernel("matern12", D, lengthscale=2.0).to(kind), x.to(kind), O, alpha=0.1).own_features()
        for kind in (torch.float32, torch.float64)
    )
    assert torch.allclose(single.double(), double, atol=1e-4)


def test_own_features_lie_in_rows() -> None:
    assert make_layer(0.1).own_features().is_contiguous()


def test_own_features_count_the_jitter_of_identical_pseudo_instances() -> None:
    layer = make_layer(1e-9, pseudo=torch.ones(M, D))
    assert torch.allclose(layer.own_features(), layer.features(layer.pseudo_instances), atol=1e-4)


def test_variance_is_beta_or_the_exact_conditional() -> None:
    x, u = torch.randn(5, D), torch.randn(O, M)
    plain, fitc = make_layer(beta=0.2), make_layer(beta=0.2, fitc=True)
    assert torch.allclose(plain.conditional(x, u).variance, torch.full((5, O), 0.04))
    K, k = fitc.covariance(), fitc.kernel(x, fitc.pseudo_instances)
    # f(x) given u: k(x, x) - k(x, S) [K + alpha^2]^-1 k(S, x)
    left = 1.7 - (k @ torch.linalg.inv(K + 0.09 * torch.eye(M)) * k).sum(1)
    assert torch.allclose(fitc.conditional(x, u).variance, (0.04 + left).unsqueeze(1).expand(5, O))
    far = fitc.conditional(torch.full((1, D), 100.0), u)
    assert torch.allclose(far.variance, torch.full((1, O), 0.04 + 1.7))


def joint_conditioning(K: Tensor, a2: float, u: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of f given u, from the joint covariance [[K, K], [K, K + a2 I]] of (f, u)."""
    size = len(K)
    joint = torch.cat([torch.cat([K, K], 1), torch.cat([K, K + a2 * torch.eye(size)], 1)])
    gain = joint[:size, size:] @ torch.linalg.inv(joint[size:, size:])
    return u @ gain.mT, joint[:size, :size] - gain @ joint[size:, :size]


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.01])
def test_functions_given_u_against_brute_force_conditioning(alpha: float) -> None:
    layer, u = make_layer(alpha), torch.randn(7, O, M)
    loc, covariance = joint_conditioning(layer.covariance(), alpha**2, u)
    given = layer.functions_given(u)
    assert torch.allclose(given.loc, loc, atol=1e-8)
    assert torch.allclose(given.covariance_matrix, covariance.expand(7, O, M, M), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.1, 1e-2, 1e-3])
def test_bayes_rule_holds_for_f_and_u(alpha: float, dtype: torch.dtype) -> None:
    """ln p(f) + ln p(u|f) - ln p(f|u) = ln p(u) at any f that p(f|u) gives, also when K is close to singular."""
    points = torch.linspace(0, 1, 12).unsqueeze(1).expand(12, D)
    layer = make_layer(alpha, pseudo=points).to(dtype)
    L = layer.prior_factor()
    u = torch.randn(O, 12, dtype=dtype) @ layer.factor().mT
    given = layer.functions_given(u)
    f = given.sample()
    log_p = dist.MultivariateNormal(torch.zeros(12, dtype=dtype), scale_tril=L).log_prob(f)
    log_p = log_p + dist.Normal(f, layer.alpha).to_event(1).log_prob(u) - given.log_prob(f)
    marginal = (L @ L.mT).double() + alpha**2 * torch.eye(12)
    log_u = dist.MultivariateNormal(torch.zeros(12), covariance_matrix=marginal).log_prob(u.double())
    assert torch.allclose(log_p.double(), log_u, rtol=1e-6 if dtype == torch.float64 else 2e-2, atol=1e-3)


CHANGES: dict[str, Callable[[Layer], object]] = {
    "optimizer step": lambda layer: step(layer),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 0.5 for name, value in layer.state_dict().items()}
    ),
    "alpha assigned": lambda layer: setattr(layer, "alpha", torch.tensor(0.9)),
    "lengthscale assigned": lambda layer: setattr(layer.kernel, "lengthscale", torch.tensor(0.9)),
    "data overwritten": lambda layer: layer.pseudo_instances.data.mul_(2.0),
    "another kernel of the same values": lambda layer: swap_kernel(layer),
    "float": lambda layer: layer.float(),
}


def swap_kernel(layer: Layer) -> None:
    layer.kernel = make_kernel("matern32", D, lengthscale=1.3, variance=1.7)
    layer.learn()  # a new kernel comes with parameters that are learned


def step(layer: Layer) -> None:
    layer.learn("kernel", "pseudo_instances", "alpha")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer.factor().sum().backward()
    optimizer.step()
    layer.learn()


@pytest.mark.parametrize("change", CHANGES)
def test_factors_are_made_anew_when_their_parameters_change(change: str) -> None:
    layer = make_layer()
    before = (layer.factor(), layer.prior_factor(), layer.functions_given(torch.zeros(O, M)).scale_tril)
    assert layer.factor() is before[0]  # kept while nothing changes
    CHANGES[change](layer)
    fresh = copy.deepcopy(layer)
    fresh._cache.clear()
    after = (
        layer.factor(),
        layer.prior_factor(),
        layer.functions_given(layer.pseudo_instances.new_zeros(O, M)).scale_tril,
    )
    assert after[0] is not before[0]
    assert torch.equal(after[0], fresh.factor())
    assert torch.equal(after[1], fresh.prior_factor())
    assert torch.equal(after[2], fresh.functions_given(layer.pseudo_instances.new_zeros(O, M)).scale_tril)


def test_copies_keep_the_factor_and_pickles_do_not() -> None:
    layer = make_layer()
    factor = layer.factor()
    copied, pickled = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    kept = copied._cache["factor"].value
    assert copied.factor() is kept  # it belongs to the copy's kernel and pseudo-instances
    assert torch.equal(kept, factor)
    assert not pickled._cache
    assert torch.equal(pickled.factor(), factor)


def test_setting_a_parameter_twice_between_calls_is_seen() -> None:
    layer = make_layer()
    layer.alpha = torch.tensor(0.2)
    layer.factor()
    for value in (0.3, 0.4, 0.5):  # memory of the first value may come back at the same address
        layer.alpha = torch.tensor(value)
    lw = layer.factor()
    assert torch.allclose(lw @ lw.mT, layer.covariance() + 0.25 * torch.eye(M))


def test_a_prior_on_a_kernel_parameter_is_never_cached() -> None:
    layer = make_layer()
    layer.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    assert not torch.equal(layer.factor(), layer.factor())


def test_learned_factors_carry_gradients_and_kept_ones_do_not() -> None:
    layer = make_layer(learn=["kernel"])
    assert layer.factor().requires_grad
    with torch.no_grad():
        assert not layer.factor().requires_grad
    assert layer.factor().requires_grad
    layer.learn()
    assert not layer.factor().requires_grad


@pytest.mark.parametrize("name", Layer.LEARNABLE)
def test_learn_names_exactly_what_has_gradients(name: str) -> None:
    layer = make_layer(mean=torch.nn.Linear(D, O), learn=[name])
    learned = {
        path.split(".")[0].removesuffix("_unconstrained") for path, p in layer.named_parameters() if p.requires_grad
    }
    assert learned == {name}
    assert layer.learn() is layer
    assert not any(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("points", [torch.zeros(M, D), torch.ones(M, D) * 1e3], ids=["zeros", "far"])
def test_identical_pseudo_instances_work(points: Tensor) -> None:
    layer = make_layer(pseudo=points.double())
    u, x = torch.randn(O, M), points[:2].double()
    assert torch.isfinite(layer.functions_given(u).rsample()).all()
    assert torch.isfinite(layer.predict(x, u)).all()


def test_float32_needs_no_large_jitter() -> None:
    points = torch.randn(200, D)
    layer = make_layer(kernel="matern12", pseudo=points).float()
    exact = make_layer(kernel="matern12", pseudo=points.float().double())
    L = layer.prior_factor().double()
    assert (L @ L.mT - exact.covariance()).abs().max() < 1e-5  # FLOAT32_JITTER and rounding


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": 0.0}, "alpha must be a number above 0; got 0.0"),
        ({"beta": -1.0}, "beta must be a number above 0; got -1.0"),
        ({"gamma": float("nan")}, "gamma must be a number above 0; got nan"),
        ({"learn": ["lengthscale"]}, r"learn must name some of \['kernel', .*\]; got \['lengthscale'\]"),
    ],
)
def test_bad_options_are_said(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_layer(**options)


def test_a_broken_kernel_names_the_layer() -> None:
    layer = make_layer()
    with torch.no_grad():
        layer.pseudo_instances[0, 0] = torch.nan
    with pytest.raises(
        NotPositiveDefiniteError, match="the kernel matrix of layer 'c' has entries that are not finite"
    ):
        layer.factor()
