"""Data that is poor in one way or another goes through a short fit, prediction and draws."""

from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import ELBO, JitTrace_ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.nn import PyroSample
from torch import Tensor

from esmc_pyro.inference import fit_svi
from esmc_pyro.models import ESMC


def plain(N: int = 30, F: int = 3, K: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(N, F), (torch.rand(N, K) < 0.3).float()


def duplicated() -> tuple[Tensor, Tensor]:
    X, Y = plain(6)
    return X.repeat(5, 1), Y.repeat(5, 1)


def constant_features() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    X[:, 1] = 7.0
    return X, Y


def all_features_constant() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    return torch.full_like(X, 3.0), Y


def without_ones() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    Y[4], Y[:, 2] = 0, 0
    return X, Y


def only_ones() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    return X, torch.ones_like(Y)


def only_zeros() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    return X, torch.zeros_like(Y)


def mostly_unknown() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    Y[torch.rand_like(Y) < 0.8] = torch.nan
    Y[3], Y[:, 1] = torch.nan, torch.nan
    Y[0, 0] = 1
    return X, Y


def huge_features() -> tuple[Tensor, Tensor]:
    X, Y = plain()
    return X * 1e6 + 1e7, Y


DATA: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "duplicated rows": duplicated,
    "a constant feature": constant_features,
    "all features constant": all_features_constant,
    "a row and a column without a one": without_ones,
    "only ones": only_ones,
    "only zeros": only_zeros,
    "mostly unknown": mostly_unknown,
    "one label": lambda: plain(K=1),
    "one feature": lambda: plain(F=1),
    "one row": lambda: plain(N=1),
    "two rows": lambda: plain(N=2),
    "huge features": huge_features,
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(
    ("guide", "objective"),
    [("paper", "trace"), ("doubly_stochastic", "trace"), ("doubly_stochastic", "collapsed")],
)
def test_poor_data_works_end_to_end(data: str, guide: str, objective: str) -> None:
    X, Y = DATA[data]()
    model = ESMC.from_data(X, Y, pseudo=8, learn=["kernel", "pseudo_instances"])
    posterior = fit_svi(model, X, Y, guide=guide, objective=objective, epochs=2, batch_size=16, progress=False)
    assert torch.isfinite(torch.tensor(posterior.history["elbo"].to_numpy())).all()
    assert torch.isfinite(posterior.predict(X)).all()
    draws = posterior.sample(X, draws=2, seed=0)
    assert all(torch.isfinite(value).all() for value in draws.values())


@pytest.mark.parametrize("method", ["random", "kmeans"])
def test_more_pseudo_instances_than_rows(method: str) -> None:
    X, Y = plain(N=6)
    model = ESMC.from_data(X, Y, [2], pseudo=15, pseudo_method=method)
    posterior = fit_svi(model, X, Y, guide="doubly_stochastic", epochs=2, progress=False)
    assert model.layers[0].pseudo_count == 15
    assert torch.isfinite(posterior.predict(X)).all()


@pytest.mark.parametrize("widths", [[], [7], [4, 3, 2]], ids=["one layer", "wider than K", "four layers"])
def test_any_depth(widths: list[int]) -> None:
    X, Y = plain()
    model = ESMC.from_data(X, Y, widths, pseudo=6)
    for guide in ("paper", "doubly_stochastic"):
        posterior = fit_svi(model, X, Y, torch.randn(4, 3), guide=guide, epochs=1, progress=False)
        assert [z.shape for z in posterior.predict_layers(X)] == [(30, width) for width in [*widths, 5]]


@pytest.mark.parametrize("guide", ["paper", "doubly_stochastic", "auto_normal"])
def test_priors_on_parameters_are_refused_and_fit_nuts_is_named(guide: str) -> None:
    X, Y = plain()
    model = ESMC.from_data(X, Y, [], pseudo=6)
    model.layers[0].kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"model must have plain parameters for SVI.*use fit_nuts"):
        fit_svi(model, X, Y, guide=guide, epochs=1, progress=False)


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites configured for enumeration")
@pytest.mark.parametrize("guide", ["paper", "doubly_stochastic", "auto_normal"])
def test_trace_enum_elbo_fits_as_trace_elbo_does_where_nothing_is_enumerated(guide: str) -> None:
    X, Y = plain()
    bounds = []
    for objective in (Trace_ELBO(), TraceEnum_ELBO(max_plate_nesting=2)):
        model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", pseudo=6)
        posterior = fit_svi(model, X, Y, guide=guide, objective=objective, epochs=3, batch_size=16, progress=False)
        bounds.append(posterior.history["elbo"].tolist())
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-4)


@pytest.mark.parametrize("elbo", [TraceGraph_ELBO, JitTrace_ELBO])
def test_elbos_of_pyro_without_a_module_form_are_refused(elbo: type[ELBO]) -> None:
    X, Y = plain()
    model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", pseudo=6)
    sentence = rf"objective must be a Trace_ELBO, .* or TraceTMC_ELBO, if it is one of Pyro's; got {elbo.__name__}"
    with pytest.raises(ValueError, match=sentence):
        fit_svi(model, X, Y, objective=elbo(), epochs=1, progress=False)


def test_the_class_of_an_elbo_is_no_objective() -> None:
    X, Y = plain()
    model = ESMC.from_data(X, Y, [2], likelihood="bernoulli", pseudo=6)
    with pytest.raises(ValueError, match=r"objective must be an object, TraceGraph_ELBO\(\); got the class"):
        fit_svi(model, X, Y, objective=TraceGraph_ELBO, epochs=1, progress=False)
