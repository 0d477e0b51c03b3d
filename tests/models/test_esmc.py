"""The model: sites, shapes and plates of its traces, what observing adds, sizes from data."""

from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.contrib.gp.kernels import RBF, Exponential, Sum
from tiny import LIKELIHOOD_CASES, WIDTHS, F, I, K, M, N, tiny_data, tiny_model

from esmc_pyro.models import ESMC, Bernoulli, Experts, Gaussian, Layer, LearnedEEOE, Probit, make_kernel, observed
from esmc_pyro.models.means import Constant, Linear

LATENT = {1: {}, 2: {"c": ("latent", 2)}, 3: {"c1": ("latent1", 3), "c2": ("latent2", 2)}}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("rows", [None, torch.tensor([9, 0, 4])], ids=["all rows", "a batch"])
def test_sites_shapes_and_plates(depth: int, rows: torch.Tensor | None) -> None:
    X, Y = tiny_data()
    B = 3
    model = tiny_model(X, Y, depth, Experts(B))
    trace = poutine.trace(model).get_trace(X, None, rows)
    trace.compute_log_prob()
    n = N + I if rows is None else 3
    sites = {name: node for name, node in trace.nodes.items() if node["type"] == "sample" and "_INPUT" not in name}
    plates = {name for name, node in sites.items() if type(node["fn"]).__name__ == "_Subsample"}

    expected = {}
    for name, (plate, width) in {**LATENT[depth], "z": ("labels", K)}.items():
        expected |= {f"{s}_{name}": ((width, M), {plate}) for s in "fu"}
        expected |= {s: ((n, width), {"instances"}) for s in (f"{name}_hat", name)}
    expected |= {"experts": ((B, n, K), {"experts_plate", "instances"}), "y": ((n, K), {"instances"})}
    assert set(sites) - plates == set(expected)
    for name, (shape, frames) in expected.items():
        node = sites[name]
        assert node["value"].shape == shape, name
        assert {frame.name for frame in node["cond_indep_stack"]} == frames, name
        for frame in node["cond_indep_stack"]:
            assert frame.dim == (-2 if frame.name == "experts_plate" else -1)
        scale = (N + I) / n if "instances" in frames else 1.0
        assert node["scale"] == pytest.approx(scale), name
        assert node["log_prob"].shape == shape[: len(shape) - 1], name


def test_deterministic_y_is_the_papers_equation() -> None:
    X, Y = tiny_data()
    trace = poutine.trace(tiny_model(X, Y, 2, Experts(4))).get_trace(X)
    E = trace.nodes["experts"]["value"]
    assert torch.equal(trace.nodes["y"]["value"], E[0] * E.sum(0) / 4)


@pytest.mark.parametrize("case", LIKELIHOOD_CASES)
def test_observed_y_is_observed_and_drawn_y_is_drawn(case: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, LIKELIHOOD_CASES[case][1]())
    seen = poutine.trace(model).get_trace(X, Y).nodes["y"]
    assert seen["is_observed"]
    assert seen["value"].shape == (N + I, K)
    drawn = poutine.trace(model).get_trace(X).nodes["y"]["value"]
    assert drawn.shape == (N + I, K)
    assert torch.isfinite(drawn).all()


@pytest.mark.parametrize("case", LIKELIHOOD_CASES)
def test_unknown_entries_and_unlabelled_rows_add_exactly_nothing(case: str) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, LIKELIHOOD_CASES[case][1]())
    trace = poutine.trace(model).get_trace(X, Y)
    # experts that agree with the labels, as a guide would have them
    data = {name: node["value"] for name, node in trace.nodes.items() if name in ("z", "z_hat", "c", "c_hat")}
    if "experts" in trace.nodes:
        filled = torch.cat([torch.nan_to_num(Y), torch.zeros(I, K)])
        data["experts"] = filled.expand(3, N + I, K).clone()

    def likelihood(labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """``ln p`` of the sites ``y`` and ``experts``, a number for each row."""
        held = poutine.condition(model, data=data if rows is None else {k: v[..., rows, :] for k, v in data.items()})
        nodes = poutine.trace(held).get_trace(X, labels, rows).nodes
        sites = [nodes[name]["fn"].log_prob(nodes[name]["value"]) for name in ("y", "experts") if name in nodes]
        return sum(site.sum(0) if site.dim() == 2 else site for site in sites)

    given = likelihood(Y)
    assert torch.isfinite(given).all()
    # by hand, entry by entry, leaving out what is not known; explicit experts all agree, also where y = 0
    y, known = observed(Y, torch.arange(N + I))
    weight = torch.where(y > 0, 1.0, 3.0) if "experts" in data else torch.ones_like(y)
    by_hand = torch.where(known, weight * model.likelihood.log_prob(y, data["z"]), torch.zeros(())).sum(-1)
    assert torch.allclose(given, by_hand, atol=1e-5)
    assert likelihood(Y, torch.tensor([N, N + 1])).tolist() == [0, 0]  # rows without labels, exactly
    other = Y.clone()
    other[0, 0] = torch.nan  # one more unknown entry changes its own row only
    assert (likelihood(other) != given).tolist() == [True] + [False] * (N + I - 1)


def test_unknown_entries_leave_finite_gradients() -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, 2, Bernoulli(), learn=Layer.LEARNABLE)
    trace = poutine.trace(model).get_trace(X, Y)
    trace.log_prob_sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) > 5
    assert all(torch.isfinite(g).all() for g in gradients)


def test_observed_labels() -> None:
    Y = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
    y, known = observed(Y, torch.tensor([1, 5, 0]))
    assert y.tolist() == [[0, 1], [0, 0], [1, 0]]
    assert known.tolist() == [[True, True], [False, False], [True, False]]


def test_from_data_follows_the_papers_rules() -> None:
    X, Y = torch.randn(200, F), torch.zeros(200, 10)
    Y[:, 0] = 1
    Y[:100, 1] = 1  # 1700 zeros, 300 ones
    model = ESMC.from_data(X, Y)
    assert [layer.outputs for layer in model.layers] == [3, 10]
    assert [layer.pseudo_count for layer in model.layers] == [20, 20]
    assert model.likelihood.B == 5
    distances = torch.pdist(X)
    assert model.layers[0].kernel.lengthscale.item() == pytest.approx(2 * distances.mean().item(), rel=1e-4)
    assert all((point == X).all(1).any() for point in model.layers[0].pseudo_instances)
    assert model.labels == 10


def test_from_data_takes_kernels_means_and_sizes_a_layer() -> None:
    X, Y = tiny_data()
    model = ESMC.from_data(
        X, Y, [2], likelihood="bernoulli", kernel=["rbf+matern12", RBF(2)], lengthscale=[2.5, "authors"], variance=4.0,
        ard=[True, False], mean=["linear", "constant"], pseudo=[4, 6], alpha=[0.1, 0.2], fitc=[True, False],
    )  # fmt: skip
    first, last = model.layers
    assert isinstance(first.kernel, Sum)
    assert first.kernel.kern0.lengthscale.tolist() == pytest.approx([2.5] * F)
    assert first.kernel.kern0.variance.item() == pytest.approx(2.0)
    assert (first.pseudo_count, last.pseudo_count) == (4, 6)
    assert (first.alpha.item(), last.alpha.item()) == pytest.approx((0.1, 0.2))
    assert (first.fitc, last.fitc) == (True, False)
    assert isinstance(first.mean, Linear)
    assert isinstance(last.mean, Constant)
    known = ~torch.isnan(Y)
    p = (torch.nan_to_num(Y).sum(0) + 0.5) / (known.sum(0) + 1)
    assert torch.allclose(last.mean.offset, torch.logit(p), atol=1e-3)
    assert torch.isfinite(poutine.trace(model).get_trace(X, Y).log_prob_sum())


def test_the_gaussian_constant_starts_at_the_label_mean() -> None:
    X, Y = torch.randn(100, F), (torch.rand(100, K) < 0.3).float()
    model = ESMC.from_data(X, Y, [], likelihood="gaussian", mean="constant")
    assert torch.allclose(model.layers[0].mean.offset, Y.mean(0), atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_has_the_datas_dtype(dtype: torch.dtype) -> None:
    X, Y = tiny_data()
    model = tiny_model(X.to(dtype), Y, 2, Gaussian(learn_noise=True), mean="linear")
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"widths": [0]}, "widths must be a whole number of at least 1; got 0"),
        ({"widths": [1.5]}, "widths must be a whole number of at least 1; got 1.5"),
        ({"kernel": ["rbf"]}, r"kernel must be one for all layers or a list with one for each of \['c', 'z'\]; got 1"),
        ({"kernel": RBF(3)}, r"kernel must be a list with an object for each of \['c', 'z'\]; got one object"),
        ({"kernel": "cosine"}, "kernel must be a Pyro kernel or .*; got 'cosine'"),
        ({"pseudo": 0}, "pseudo must be a whole number of at least 1; got 0"),
        ({"pseudo_method": "grid"}, "pseudo-instances must be chosen by 'random' or 'kmeans'; got 'grid'"),
        ({"lengthscale": -1.0}, "lengthscale must be a number above 0; got -1.0"),
        ({"lengthscale": "mean"}, "rule must be 'paper' or 'authors'; got 'mean'"),
        ({"variance": 0}, "variance must be a number above 0; got 0"),
        ({"mean": "cubic"}, "mean must be one of .*; got 'cubic'"),
        ({"likelihood": "cauchy"}, "likelihood must be a Likelihood or one of .*; got 'cauchy'"),
        ({"learn": ["everything"]}, r"learn must name some of .*; got \['everything'\]"),
        ({"alpha": [0.1, 0.0]}, "alpha must be a number above 0; got 0.0"),
    ],
)
def test_from_data_says_what_is_wrong(options: dict[str, Any], sentence: str) -> None:
    X, Y = tiny_data()
    with pytest.raises(ValueError, match=sentence):
        ESMC.from_data(X, Y, **({"widths": [2]} | options))


def test_layers_must_have_their_names() -> None:
    layer = Layer("c", make_kernel("rbf", F), torch.randn(M, F), K)
    with pytest.raises(ValueError, match=r"layers must be named \['z'\]; got \['c'\]"):
        ESMC([layer], Bernoulli())
    with pytest.raises(ValueError, match=r"layers must be named \['z'\]; got \[\]"):
        ESMC([], Bernoulli())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_plug_in_is_layer_after_layer(depth: int) -> None:
    X, Y = tiny_data()
    model = tiny_model(X, Y, depth, mean="linear")
    us = [torch.randn(layer.outputs, layer.pseudo_count) for layer in model.layers]
    outputs = model.plug_in(X, us)
    assert [o.shape for o in outputs] == [(N + I, width) for width in [*WIDTHS[depth], K]]
    h = X
    for layer, u, output in zip(model.layers, us, outputs, strict=True):
        h = layer.conditional(h, u).loc
        assert torch.allclose(h, output, atol=1e-5)


def test_two_models_share_nothing_and_the_store_stays_empty() -> None:
    X, Y = tiny_data()
    one, two = tiny_model(X, Y), tiny_model(X, Y)
    for model in (one, two):
        poutine.trace(model).get_trace(X, Y)
    assert not {p.data_ptr() for p in one.parameters()} & {p.data_ptr() for p in two.parameters()}
    with torch.no_grad():
        one.layers[0].pseudo_instances.zero_()
    assert two.layers[0].pseudo_instances.abs().sum() > 0
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": Gaussian(0.4, learn_noise=True)},
        {"likelihood": LearnedEEOE([1.2, 2.0, 3.0, 4.0])},
        {"kernel": RBF(F)},
        {"kernel": [Sum(RBF(F), RBF(F)), RBF(2)], "depth": 2},
    ],
    ids=["noise", "a likelihood that learns", "a kernel", "a kernel a layer"],
)
def test_two_models_of_the_same_likelihood_or_kernel_share_no_parameter(options: dict[str, Any]) -> None:
    X, Y = tiny_data()
    one, two = (tiny_model(X, Y, **({"depth": 1} | options)) for _ in range(2))
    assert not {p.data_ptr() for p in one.parameters()} & {p.data_ptr() for p in two.parameters()}


def test_parts_that_were_used_before_are_copied() -> None:
    X, Y = tiny_data()
    kernel = Sum(RBF(X.shape[1]), Exponential(X.shape[1]))
    kernel(X)
    first = ESMC.from_data(X, Y, [], kernel=kernel, likelihood="bernoulli")
    first(X, Y)
    other = ESMC(list(first.layers), Probit())
    again = ESMC.from_data(X, Y, [], kernel=other.layers[0].kernel, likelihood=first.likelihood)
    for model in (other, again):
        poutine.trace(model).get_trace(X, Y).log_prob_sum()
        mine, its = (dict(one.named_parameters()) for one in (first, model))
        assert not {p.data_ptr() for p in mine.values()} & {p.data_ptr() for p in its.values()}
    for name, value in first.layers.named_parameters():
        assert torch.equal(value, dict(other.layers.named_parameters())[name])


def test_parts_that_are_new_stay_themselves() -> None:
    X, _ = tiny_data()
    layer, likelihood = Layer("z", RBF(X.shape[1]), X[:4], 3), Bernoulli()
    model = ESMC([layer], likelihood)
    assert model.layers[0] is layer
    assert model.likelihood is likelihood
