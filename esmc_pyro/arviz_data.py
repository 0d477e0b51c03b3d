"""A posterior as ArviZ data: every group with named dimensions, whichever algorithm made the posterior.

Dimensions: ``instances``, ``labels``, ``latent`` (``latent1``, ... in deeper models), ``pseudo`` of the first layer and
``pseudo_z`` of the last, ``known`` for the known entries of ``Y``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyro
import torch
from pyro import poutine
from torch import Tensor

from esmc_pyro.guides import Guide
from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.models import ESMC, Likelihood, observed
from esmc_pyro.pointwise import UNITS, log_likelihood
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_labels, check_number

if TYPE_CHECKING:
    from esmc_pyro.posterior import Posterior

LIMIT = 1e7  # numbers in the largest tensor of draws made at once
LARGEST = 3e8  # numbers in all groups together
# what the chains keep, by ArviZ's names; their energy is the potential one
STATS = {"accept": "acceptance_rate", "step_size": "step_size", "steps": "n_steps", "diverging": "diverging"}

with warnings.catch_warnings():
    # ArviZ 0.23 announces its 1.x line once a day, at import
    warnings.filterwarnings("ignore", message=r"[\s\S]*ArviZ is undergoing", category=FutureWarning)
    import arviz as az

Draws = dict[str, Tensor]


def inference_data(groups: Mapping[str, Mapping[str, Any]], coords: Any = None, dims: Any = None) -> Any:
    """``groups`` (by name, arrays chain x draw x ... by variable) as ArviZ holds them.

    ArviZ 0.x takes a keyword for each group and gives ``InferenceData``, 1.x takes one mapping and gives ``DataTree``.
    """
    if int(az.__version__.split(".")[0]) < 1:
        return az.from_dict(**groups, coords=coords, dims=dims)
    return az.from_dict(groups, coords=coords, dims=dims)


@torch.no_grad()
def to_arviz(
    posterior: Posterior,
    X: Any,
    Y: Any,
    *,
    draws: int = 500,
    unit: str = "entries",
    inner: int = 30,
    rows: Sequence[int] | None = None,
    functions: bool = True,
    label_names: Sequence[str] | None = None,
    seed: int | None = 0,
) -> Any:
    """Draws of ``posterior`` on the data it was fitted to, as ``InferenceData`` (ArviZ 0.x) or ``DataTree`` (1.x).

    ``X`` (N + I) x F and ``Y`` N x K are those of the fit, unlabelled rows last; a guide that keeps nothing for each
    row takes any data. ``rows`` are the positions in ``X`` that enter the groups, all if None. ``functions=False``
    leaves out ``f`` and ``u``, which take most of the room in models with many pseudo-instances.

    ``posterior``, ``prior``       ``f_c``, ``u_c``, ``c``, ..., ``z``, ``suitability`` (``sigma(lambda z)``)
    ``posterior_predictive``       ``y``, drawn given that it is 0 or 1 (a density: as it comes)
    ``log_likelihood``             ``y_known``: a number for each known entry of ``Y``, unknown ones are not in it, or,
                                   with ``unit="instances"``, ``y_instance``: one for each row with a known entry. What
                                   lies between functions and labels is integrated out (``esmc_pyro.pointwise``,
                                   ``inner`` is its argument)
    ``observed_data``              ``y``, NaN where unknown
    ``constant_data``              ``known_instance``, ``known_label``: where the entries of ``y_known`` stand
    ``sample_stats``               of chains: what the sampler kept

    Entries are the default unit: leaving out one label is what completing labels is about. Instances ask how well a new
    row would be predicted. Chains give all their draws; other guides give one chain of ``draws``.
    """
    x, y = _check(posterior, X, Y)
    check_number(draws, "draws", low=1, whole=True)
    check_number(inner, "inner", low=1, whole=True)
    check_choice(unit, UNITS, "unit")
    places = _check_rows(rows, len(x))
    names = _check_names(label_names, posterior.model.labels)
    model, guide = posterior.model, posterior.guide
    chains, length = guide.draws["z"].shape[:2] if isinstance(guide, DrawsGuide) else (1, draws)
    _check_size(model, chains * length, len(places), functions)
    y_here, known = observed(y, places)
    with seeded(seed):
        parts, fits = [], []
        for values, parameters in _pieces(posterior, x, y, places, draws):
            us, c = [values[f"u_{layer.site}"] for layer in model.layers], _own_c(guide, values)
            with parameters:
                fits.append(log_likelihood(model, x[places], y_here, known, us, c, unit=unit, inner=inner))
            parts.append(values if functions else _without_functions(model, values))
        drawn = _join(parts)
        prior = _prior_draws(model, x[places], chains * length, functions)
        replicated = replicate(model.likelihood, drawn["z"])
    for part in (drawn, prior):
        part["suitability"] = model.likelihood.suitability(part["z"])
    kept = known.any(1) if unit == "instances" else known
    fit = torch.cat(fits)[:, kept]
    groups: dict[str, dict[str, npt.NDArray[Any]]] = {
        "posterior": _by_chain(drawn, chains),
        "prior": _by_chain(prior, chains),
        "posterior_predictive": _by_chain({"y": replicated}, chains),
        "log_likelihood": _by_chain({"y_instance" if unit == "instances" else "y_known": fit}, chains),
        "observed_data": {"y": torch.where(known, y_here, torch.nan).numpy()},
        "constant_data": dict(zip(("known_instance", "known_label"), _where(known, places), strict=True)),
    }
    if isinstance(guide, DrawsGuide) and guide.stats:
        groups["sample_stats"] = {new: guide.stats[old].numpy() for old, new in STATS.items() if old in guide.stats}
        groups["sample_stats"]["lp"] = -guide.stats["energy"].numpy()
    coords = {"instances": places.numpy(), "labels": names, "known": np.arange(int(known.sum()))}
    coords["known_instances"] = places[known.any(1)].numpy()
    return inference_data(groups, coords=coords, dims=dimensions(model))


def dimensions(model: ESMC) -> dict[str, list[str]]:
    """The names of the dimensions of every variable, without chain and draw."""
    dims = {
        "suitability": ["instances", "labels"],
        "y": ["instances", "labels"],
        "y_known": ["known"],
        "y_instance": ["known_instances"],
        "known_instance": ["known"],
        "known_label": ["known"],
    }
    for depth, layer in enumerate(model.layers):
        pseudo = f"pseudo_{layer.site}" if depth else "pseudo"
        dims |= {f"{letter}_{layer.site}": [layer.plate, pseudo] for letter in "fu"}
        dims[layer.site] = ["instances", layer.plate]
    return dims


def replicate(likelihood: Likelihood, z: Tensor) -> Tensor:
    """Labels drawn given ``z``, and given that they are 0 or 1, as in data; of a density as they come."""
    if likelihood.is_density:
        return likelihood.distribution(z).sample()
    odds = likelihood.log_prob(torch.ones_like(z), z) - likelihood.log_prob(torch.zeros_like(z), z)
    return torch.bernoulli(torch.sigmoid(odds))


def _check(posterior: Posterior, X: Any, Y: Any) -> tuple[Tensor, Tensor]:
    x = posterior._check(X)
    y = check_labels(Y, len(x)).to(x.dtype)
    if y.shape[1] != posterior.model.labels:
        raise ValueError(f"Y must have the {posterior.model.labels} labels of the model; got {y.shape[1]}")
    if posterior.guide.rows not in (None, len(x)):
        raise ValueError(
            f"X must be the {posterior.guide.rows} rows of the fit, unlabelled ones last, for which the guide keeps "
            f"parameters; got {len(x)} rows"
        )
    if posterior.model.has_priors and not isinstance(posterior.guide, DrawsGuide):
        raise ValueError(
            "the posterior of a model with priors on its parameters must hold draws of these, as that of NUTS does; "
            f"got the guide {type(posterior.guide).__name__}"
        )
    return x, y


def _check_rows(rows: Sequence[int] | None, count: int) -> Tensor:
    if rows is None:
        return torch.arange(count)
    places = torch.as_tensor(rows)
    if places.dim() != 1 or not len(places) or places.is_floating_point() or places.min() < 0 or places.max() >= count:
        raise ValueError(f"rows must be positions among the {count} rows of X; got {rows!r}")
    return places.long()


def _check_names(names: Sequence[str] | None, labels: int) -> npt.NDArray[Any]:
    if names is None:
        return np.arange(labels)
    if len(names) != labels or len(set(names)) != labels:
        raise ValueError(f"label_names must be {labels} different names; got {len(names)}, {len(set(names))} different")
    return np.asarray([str(name) for name in names])


def _check_size(model: ESMC, draws: int, rows: int, functions: bool) -> None:
    local = rows * (5 * model.labels + sum(2 * layer.outputs for layer in model.layers[:-1]))
    shared = sum(4 * layer.outputs * layer.pseudo_count for layer in model.layers) if functions else 0
    numbers = draws * (local + shared)
    if numbers > LARGEST:
        raise ValueError(
            f"draws and rows must give at most {LARGEST:.0e} numbers; got {numbers:.0e}, {draws} draws of {rows} rows "
            "(pass fewer draws, or some of the rows as rows=)"
        )


def _own_c(guide: Guide, values: Draws) -> Tensor | None:
    """Draws of the last hidden layer given the labels of their rows, where the guide looks at these."""
    hidden = list(guide.model.layers)[:-1]
    # what is not its own is the model's, which knows no label; chains have drawn c with all the rest
    is_blind = type(guide).sample_locals is Guide.sample_locals and not isinstance(guide, DrawsGuide)
    return values[hidden[-1].site] if hidden and not is_blind else None


def _pieces(
    posterior: Posterior, x: Tensor, y: Tensor, places: Tensor, draws: int
) -> Iterator[tuple[Draws, AbstractContextManager[Any]]]:
    """Some draws at a time, ``f``, ``u`` (S x O x M) and local sites (S x n x O) by name, and the context in which the
    model's parameters are those of the draws."""
    model, guide = posterior.model, posterior.guide
    if isinstance(guide, DrawsGuide):
        yield from _chain_pieces(guide, places)
        return
    # all of them in another order are drawn in order and then put in theirs: some guides want that
    rows = None if guide.needs_all_rows or len(places) >= len(x) else places
    experts = getattr(model.likelihood, "B", 1) if getattr(model.likelihood, "explicit", False) else 1
    seen = len(x) if rows is None else len(places)
    for some in _portions(draws, max(int(experts) * model.labels, *_pseudo_counts(model), 1) * seen):
        with pyro.plate("draws", some, dim=-3):
            nodes = poutine.trace(guide).get_trace(x, y, rows).nodes
        values = {name: node["value"] for name, node in nodes.items() if node["type"] == "sample"}
        drawn = _complete(model, values, some)
        if rows is None:
            drawn |= {layer.site: drawn[layer.site][:, places] for layer in model.layers}
        yield drawn, nullcontext()


def _chain_pieces(guide: DrawsGuide, places: Tensor) -> Iterator[tuple[Draws, AbstractContextManager[Any]]]:
    """The draws of all chains, one chain after the other; one by one if the model's parameters were drawn too."""
    total = len(guide.flat("z"))
    step = 1 if guide.drawn_parameters else total
    for start in range(0, total, step):
        values = {name: guide.flat(name)[start : start + step] for name in guide.draws}
        with _parameters_of(guide, start):
            drawn = _complete(guide.model, values, step)
        drawn |= {layer.site: drawn[layer.site][:, places] for layer in guide.model.layers}
        yield drawn | {name: values[name] for name in guide.drawn_parameters}, _parameters_of(guide, start)


@contextmanager
def _parameters_of(guide: DrawsGuide, draw: int) -> Iterator[None]:
    """Inside, parameters with priors have the values of this draw."""
    values = {name: guide.flat(name)[draw] for name in guide.drawn_parameters}
    with guide.model._pyro_context, poutine.condition(data=values):
        guide.model.draw_priors()
        yield


def _portions(draws: int, size: int) -> Iterator[int]:
    """``draws`` in portions, so that one with ``size`` numbers a draw stays within ``LIMIT``."""
    together = max(1, int(LIMIT // size))
    for done in range(0, draws, together):
        yield min(together, draws - done)


def _without_functions(model: ESMC, draws: Draws) -> Draws:
    gone = {f"{letter}_{layer.site}" for layer in model.layers for letter in "fu"}
    return {name: value for name, value in draws.items() if name not in gone}


def _join(parts: list[Draws]) -> Draws:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _pseudo_counts(model: ESMC) -> list[int]:
    return [layer.pseudo_count for layer in model.layers]


def _complete(model: ESMC, values: Draws, count: int) -> Draws:
    """The sites of every layer, in the model's order; ``u`` follows from ``v`` and ``f`` from ``p(f | u)``."""
    drawn: Draws = {}
    for layer in model.layers:
        u, f, v = (values.get(f"{letter}_{layer.site}") for letter in "ufv")
        u = v @ layer.factor().mT if u is None else u
        f = layer.functions_given(u).sample() if f is None else f
        drawn |= {f"f_{layer.site}": f, f"u_{layer.site}": u, layer.site: values[layer.site]}
    return {name: value.reshape(count, *value.shape[-2:]) for name, value in drawn.items()}


def _prior_draws(model: ESMC, x: Tensor, draws: int, functions: bool) -> Draws:
    """As many draws of the model without data."""
    parts = []
    widest = max(model.labels, *_pseudo_counts(model), 1)
    # parameters with priors are drawn outside all plates, so with them every draw is a run of its own
    for some in [1] * draws if model.has_priors else _portions(draws, widest * len(x)):
        with model._pyro_context, poutine.trace() as recorded:
            model.draw_priors()
            with pyro.plate("draws", some, dim=-3):
                us = [layer.sample_functions() for layer in model.layers]
                with pyro.plate("instances", len(x), dim=-1):
                    h = x
                    for layer, u in zip(model.layers, us, strict=True):
                        h = layer(h, u)
        nodes = recorded.trace.nodes
        values = {name: node["value"] for name, node in nodes.items() if node["type"] == "sample"}
        drawn = _complete(model, values, some)
        drawn = drawn if functions else _without_functions(model, drawn)
        # only a parameter's name has a dot: the path to it
        parts.append(drawn | {name: value.unsqueeze(0) for name, value in values.items() if "." in name})
    return _join(parts)


def _by_chain(draws: Draws, chains: int) -> dict[str, npt.NDArray[Any]]:
    return {name: value.unflatten(0, (chains, -1)).numpy() for name, value in draws.items()}


def _where(known: Tensor, places: Tensor) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    row, label = known.nonzero(as_tuple=True)
    return places[row].numpy(), label.numpy()
