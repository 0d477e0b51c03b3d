"""Is the posterior to be trusted, and which of several predicts best: R-hat, ESS, PSIS-LOO, WAIC and k-hat of ``q``.

All are about what is identified: ``z``, suitability, kernel scales, labels. ``c`` may turn and change its signs from
chain to chain without any label noticing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyro
import torch
from pyro import poutine
from scipy.special import logsumexp

from esmc_pyro.arviz_data import az, inference_data, to_arviz
from esmc_pyro.inference.importance import check_is_density, log_weights
from esmc_pyro.models import observed
from esmc_pyro.pointwise import log_likelihood
from esmc_pyro.posterior import Posterior
from esmc_pyro.randomness import seeded
from esmc_pyro.validation import check_choice, check_data, check_number

Array = npt.NDArray[np.floating[Any]]
SETTLED = 1.01  # R-hat above it: the chains do not agree yet
OVER = ("functions", "everything")


@dataclass(frozen=True)
class ELPD:
    """``sum_i ln p(y_i | all but y_i)``, estimated: the sum, its standard error and the effective number of parameters.

    ``pointwise`` has the terms of the sum. ``pareto_k`` (LOO only) tells how far each may be trusted: above ``good_k``
    it may not.
    """

    elpd: float
    se: float
    p: float
    pointwise: Array
    pareto_k: Array | None = None
    good_k: float = math.nan

    @property
    def bad(self) -> int:
        """How many terms are not to be trusted."""
        return 0 if self.pareto_k is None else int((self.pareto_k > self.good_k).sum())


@contextmanager
def _own_words() -> Iterator[None]:
    """Without ArviZ's warnings on what ``ELPD.bad`` says, and those that it causes itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")
        warnings.filterwarnings("ignore", message="The point-wise LOO is the same")
        warnings.filterwarnings("ignore", message="The inplace keyword")  # ArviZ 0.23 on pandas 3.1
        yield


def pointwise(data: Any) -> Array:
    """The log-likelihoods of ``to_arviz``: draws x units."""
    variable = next(iter(data["log_likelihood"].data_vars.values()))
    values: Array = np.asarray(variable.values, dtype=np.float64)
    return values.reshape(values.shape[0] * values.shape[1], -1)


def _relative_efficiency(data: Any) -> float:
    """Independent draws in one draw of the chains: ESS of ``z`` over their number; 1 for the draws of a guide."""
    z = data["posterior"]["z"]
    count = z.sizes["chain"] * z.sizes["draw"]
    if z.sizes["chain"] == 1 and "sample_stats" not in data:
        return 1.0
    return float(min(1.0, convergence(data, entries=50)["ess"].mean() / count))


def _az_loo(data: Any, reff: float) -> Any:
    with _own_words():
        result = az.loo(data, pointwise=True, reff=reff)
    # draws that a term cannot tell apart have equal weights: no tail, which ArviZ calls one of infinite shape
    same = (np.ptp(pointwise(data), axis=0) == 0).reshape(result.pareto_k.shape)
    result.pareto_k = result.pareto_k.where(~same, -math.inf)
    return result


def _take(result: Any, *names: str) -> Any:
    """The first of these attributes that a result of ``az.loo`` has: 1.x renamed them."""
    return next(getattr(result, name) for name in names if hasattr(result, name))


def loo(data: Any) -> ELPD:
    """PSIS-LOO of what ``Posterior.to_arviz`` gave, over its unit: known entries, or instances."""
    result = _az_loo(data, _relative_efficiency(data))
    return ELPD(
        float(_take(result, "elpd", "elpd_loo")),
        float(result.se),
        float(_take(result, "p", "p_loo")),
        np.asarray(_take(result, "elpd_i", "loo_i")).ravel(),
        np.asarray(result.pareto_k).ravel(),
        float(result.good_k),
    )


def waic(data: Any) -> ELPD:
    """The widely applicable information criterion, ``sum_i ln E p(y_i | draw) - Var ln p(y_i | draw)``.

    ArviZ 1.x has none. Where a term of ``p`` is above 0.4 it is not to be trusted; PSIS-LOO says so of itself.
    """
    values = pointwise(data)
    lppd = logsumexp(values, axis=0) - math.log(len(values))
    p = values.var(axis=0)
    terms = lppd - p
    return ELPD(float(terms.sum()), float(math.sqrt(len(terms) * terms.var())), float(p.sum()), terms)


def convergence(data: Any, names: Sequence[str] = ("z",), entries: int = 200, seed: int = 0) -> pd.DataFrame:
    """``mean``, ``sd``, ``rhat`` and ``ess`` (bulk) of entries of ``names``, and of every drawn kernel scale.

    At most ``entries`` of each variable, picked at random with ``seed``. R-hat takes more than one chain, else it is
    NaN; draws of a guide are independent, so their ESS is their number, give or take.
    """
    posterior = data["posterior"]
    rng = np.random.default_rng(seed)
    lines = []
    for name in [*names, *(str(name) for name in posterior.data_vars if "." in str(name))]:
        values = np.asarray(posterior[name].values, dtype=np.float64)
        flat = values.reshape(*values.shape[:2], -1)
        coords = [posterior[dim].values for dim in posterior[name].dims[2:]]
        places = rng.permutation(flat.shape[2])[:entries]
        for place in np.sort(places):
            where = np.unravel_index(place, values.shape[2:])
            at = ", ".join(str(coord[i]) for coord, i in zip(coords, where, strict=True))
            lines.append({"name": name, "at": at} | summarise(flat[:, :, place]))
    return pd.DataFrame(lines)


def summarise(draws: Array) -> dict[str, float]:
    """``mean``, ``sd``, ``rhat`` (NaN for one chain) and ``ess`` of one number: chains x draws."""
    return {
        "mean": float(draws.mean()),
        "sd": float(draws.std()),
        "rhat": float(az.rhat(draws)) if len(draws) > 1 else math.nan,
        "ess": float(az.ess(draws)),
    }


def compare(
    candidates: Mapping[str, Any], X: Any = None, Y: Any = None, *, method: str = "stacking", **options: Any
) -> pd.DataFrame:
    """``az.compare`` of posteriors: of likelihoods, guides, kernels, or whatever sets them apart. Best first.

    ``candidates`` holds a ``Posterior`` for each name, whose ``to_arviz(X, Y, **options)`` is taken, or the data that
    this gave. Columns have the names of ArviZ 1.x (``rank``, ``elpd``, ``p``, ``elpd_diff``, ``dse``, ``weight``);
    ``bad_k`` is the share of terms whose Pareto k says not to trust them.
    """
    if len(candidates) < 2:
        raise ValueError(f"candidates must be at least two; got {len(candidates)}")
    posteriors = [c for c in candidates.values() if isinstance(c, Posterior)]
    if posteriors and (X is None or Y is None):
        raise ValueError("X and Y must be given to compare posteriors; got None")
    densities = {c.model.likelihood.is_density for c in posteriors}
    if len(densities) > 1:
        raise ValueError(
            "candidates must all have a density of y (Gaussian) or all a probability: no common scale; got both"
        )
    data = {n: to_arviz(c, X, Y, **options) if isinstance(c, Posterior) else c for n, c in candidates.items()}
    sizes = {name: pointwise(d).shape[1] for name, d in data.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"candidates must be of the same data and unit; got {sizes} terms")
    results = {name: _az_loo(d, _relative_efficiency(d)) for name, d in data.items()}
    with _own_words():
        table = az.compare(results, method=method).rename(columns={"elpd_loo": "elpd", "p_loo": "p"})
    shares = {name: float(np.mean(np.asarray(r.pareto_k) > r.good_k)) for name, r in results.items()}
    table["bad_k"] = [shares[str(name)] for name in table.index]
    return table


def khat(
    posterior: Posterior,
    X: Any,
    Y: Any,
    X_unlabeled: Any = None,
    *,
    over: str | None = None,
    draws: int = 1000,
    inner: int = 30,
    seed: int | None = 0,
) -> float:
    """PSIS k-hat of the variational posterior itself: the tail of the weights ``p(., y) / q(.)`` of draws of ``q``.

    ``over="functions"``    ``q(f, u)`` against ``p(f, u | y)``, every local site integrated out (by ``inner`` draws of
                            ``c`` if there is a latent layer, whose noise can only raise k-hat)
    ``over="everything"``   all that the guide draws, local sites of all rows included: some hundred numbers are enough
                            for a k-hat above 1 from the slightest misfit of each

    None is "functions", which is what predictions are made of, for guides that draw them by themselves; autoguides
    draw everything together.
    """
    x, y = check_data(X, Y, X_unlabeled)
    check_number(draws, "draws", low=100, whole=True)
    guide = posterior.guide
    check_is_density(guide)
    apart = guide.joint is guide.model
    over = ("functions" if apart else "everything") if over is None else over
    check_choice(over, OVER, "over")
    if over == "functions" and not apart:
        raise ValueError(f"over must be 'everything' for {type(guide).__name__}, which draws all sites together")
    if over == "everything":
        weights = log_weights(posterior, X, Y, draws, X_unlabeled=X_unlabeled, seed=seed)
    else:
        like = posterior.model.layers[0].pseudo_instances
        weights = _function_weights(posterior, x.to(like), y.to(like), draws, inner, seed)
    return pareto_k(weights.double().numpy())


@torch.no_grad()
def _function_weights(
    posterior: Posterior, x: torch.Tensor, y: torch.Tensor, draws: int, inner: int, seed: int | None
) -> torch.Tensor:
    """``ln p(f, u) - ln q(f, u) + sum_n ln p(y_n | u)``: (draws,)."""
    model = posterior.model
    with seeded(seed):
        with pyro.plate("draws", draws, dim=-3):
            q = poutine.trace(posterior.guide.sample_globals).get_trace()
            p = poutine.trace(
                poutine.replay(lambda: [layer.sample_functions() for layer in model.layers], trace=q)
            ).get_trace()
        labelled = x[: len(y)]
        values, known = observed(y, torch.arange(len(y)))
        us = [q.nodes[f"u_{layer.site}"]["value"].squeeze(1) for layer in model.layers]
        fit = log_likelihood(model, labelled, values, known, us, unit="instances", inner=inner)
    total = fit.double().sum(1)
    for trace, sign in ((p, 1), (q, -1)):
        trace.compute_log_prob()
        for layer in model.layers:
            for site in (f"f_{layer.site}", f"u_{layer.site}"):
                total += sign * trace.nodes[site]["log_prob"].double().reshape(draws, -1).sum(1)
    return total


def pareto_k(log_weights: Array) -> float:
    """The shape of the tail of importance weights, as PSIS fits it: (draws,) -> a number.

    ``az.loo`` weighs draws by one over a likelihood, so with ``-log_weights`` for a log-likelihood its k is theirs;
    ArviZ 1.x has no other door to it.
    """
    if np.ptp(log_weights) < 1e-9 * max(1.0, float(np.abs(log_weights).max())):
        return -math.inf  # all the same: no tail
    values = -np.asarray(log_weights, dtype=np.float64)[None, :, None]
    data = inference_data({"posterior": {"none": np.zeros(values.shape[:2])}, "log_likelihood": {"weight": values}})
    return float(np.asarray(_az_loo(data, 1.0).pareto_k).ravel()[0])


def verdict(k: float) -> str:
    """What k-hat of ``q`` says, in a sentence (Yao, Vehtari, Simpson and Gelman 2018)."""
    if k < 0.5:
        return "q is close to the posterior: its means and spreads can be used as they are."
    if k < 0.7:
        return "q is usable: its means are good, its spreads roughly so; importance weights can mend the rest."
    return (
        "q is far from the posterior somewhere: its predictions may still be good, but do not read its spreads as the "
        "posterior's. Try a guide with more covariance, more epochs, or NUTS on fewer rows."
    )
