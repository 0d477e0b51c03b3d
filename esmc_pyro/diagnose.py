"""``write_diagnosis``: one page about a posterior, for whoever has to decide whether to believe it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from esmc_pyro import diagnose_figures as drawn
from esmc_pyro import diagnostics
from esmc_pyro.arviz_data import to_arviz
from esmc_pyro.files import write_atomic
from esmc_pyro.guides.draws import DrawsGuide
from esmc_pyro.page import both_themes, render_page
from esmc_pyro.posterior import Posterior
from esmc_pyro.validation import check_number

__all__ = ["write_diagnosis"]

Array = npt.NDArray[Any]

TERMS = 4000  # entries of Y at most that are looked at
TRACED, LISTED = 3, 12  # entries of z that are drawn, and listed
REPLICAS = 200  # draws of the posterior predictive that are counted
KHAT: dict[str, Any] = {"draws": 400, "inner": 10}
KHAT_BUDGET = 1e9  # entries x draws x inner draws for which k-hat is computed
# of a verdict, what it may lack
NOTHING = {"khat": None, "over": "", "rhat": None, "ess": None, "divergences": None, "entries": 0, "scales": False}
UNSURE = 0.4  # variance of a log-likelihood above which a term of WAIC is not to be trusted


def write_diagnosis(
    posterior: Posterior,
    X: Any,
    Y: Any,
    path: str | PathLike[str],
    *,
    name: str = "posterior",
    label_names: Sequence[str] | None = None,
    draws: int = 400,
    unit: str = "entries",
    seed: int = 0,
) -> Path:
    """Write a self-contained HTML page about ``posterior`` on ``X``, ``Y`` to ``path``, and return the path.

    k-hat of ``q`` with a verdict (or R-hat, ESS and divergences of chains), PSIS-LOO and WAIC with Pareto k, posterior
    predictive checks, trace, rank and forest plots of ``z``. The data are those of the fit, as for ``to_arviz``. Of
    large data some rows are looked at, picked at random with ``seed``, so that there are at most ``TERMS`` entries.
    """
    if not isinstance(posterior, Posterior):
        raise ValueError(f"posterior must be a Posterior; got {type(posterior).__name__}")
    check_number(draws, "draws", low=100, whole=True)
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"path must be the name of a file; got the folder {str(target)!r}")
    content = diagnosis(posterior, X, Y, name, label_names, draws, unit, seed)
    return write_atomic(target, render_page("diagnose.html", **content))


def diagnosis(
    posterior: Posterior,
    X: Any,
    Y: Any,
    name: str,
    label_names: Sequence[str] | None,
    draws: int,
    unit: str,
    seed: int,
) -> dict[str, Any]:
    """What stands on the page."""
    known_rows = np.flatnonzero(~np.isnan(np.asarray(Y, dtype=float)).all(axis=1))
    rng = np.random.default_rng(seed)
    most = max(1, TERMS // posterior.model.labels)
    rows = np.sort(rng.permutation(known_rows)[:most])
    data = to_arviz(
        posterior, X, Y, draws=draws, unit=unit, rows=rows.tolist(), functions=False, label_names=label_names, seed=seed
    )
    z: Array = data["posterior"]["z"].values
    chains, length = z.shape[:2]
    loo, waic = diagnostics.loo(data), diagnostics.waic(data)
    entries = _entries(data, rng)
    names = [_name(data, row, label) for row, label in entries]
    values = np.stack([z[:, :, row, label] for row, label in entries]).astype(float)
    known = int(data["constant_data"]["known_label"].size)
    images = {
        "pareto": both_themes(drawn.pareto, loo.pareto_k, loo.good_k),
        "trace": both_themes(drawn.trace, values[:TRACED], names[:TRACED], reader_fonts=True),
        "ranks": both_themes(drawn.ranks, values[:TRACED], names[:TRACED], reader_fonts=True) if chains > 1 else None,
        "forest": both_themes(drawn.forest, _quantiles(values), names, reader_fonts=True),
        **_replicas(data),
    }
    return {
        "name": name,
        "kind": "NUTS or HMC" if isinstance(posterior.guide, DrawsGuide) else type(posterior.guide).__name__,
        "draws": chains * length,
        "chains": chains,
        "rows": len(rows),
        "all_rows": len(X),
        "labels": posterior.model.labels,
        "likelihood": type(posterior.model.likelihood).__name__,
        "unit": unit,
        "verdict": _chains_verdict(data) if chains > 1 else _q_verdict(posterior, X, Y, seed),
        "elpds": [
            {"name": "PSIS-LOO", "bad": loo.bad} | _numbers(loo),
            {"name": "WAIC", "bad": int((_variances(data) > UNSURE).sum())} | _numbers(waic),
        ],
        "probability": math.exp(loo.elpd / known),
        "good_k": loo.good_k,
        "images": images,
        "traced": names[:TRACED],
        "table": _table(data, entries, names, values),
    }


def _numbers(elpd: diagnostics.ELPD) -> dict[str, Any]:
    return {"elpd": elpd.elpd, "se": elpd.se, "p": elpd.p, "terms": len(elpd.pointwise)}


def _variances(data: Any) -> Array:
    return diagnostics.pointwise(data).var(axis=0)


def _entries(data: Any, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Positions of entries of ``z`` to look at: ones and zeros in turn, so that rare labels are among them."""
    y: Array = data["observed_data"]["y"].values
    kinds = [rng.permutation(np.argwhere(y == value)) for value in (1, 0)]
    mixed = [tuple(kind[i]) for i in range(max(len(kind) for kind in kinds)) for kind in kinds if i < len(kind)]
    return [(int(row), int(label)) for row, label in mixed[:LISTED]]


def _name(data: Any, row: int, label: int) -> str:
    z = data["posterior"]["z"]
    return f"{z['instances'].values[row]}, {z['labels'].values[label]}"


def _quantiles(values: Array) -> Array:
    return np.quantile(values.reshape(len(values), -1), [0.05, 0.25, 0.5, 0.75, 0.95], axis=1).T


def _replicas(data: Any) -> dict[str, Any]:
    """Labels of an instance and share of each label, in the data and in replicas; known entries only."""
    y: Array = data["observed_data"]["y"].values
    known = ~np.isnan(y)
    given = np.where(known, y, 0)
    replicas: Array = data["posterior_predictive"]["y"].values.reshape(-1, *y.shape)
    step = max(1, len(replicas) // REPLICAS)
    replicas = np.where(known, replicas[::step], 0)
    seen = known.any(axis=0)
    totals = np.maximum(known.sum(axis=0), 1)
    return {
        "counts": both_themes(drawn.label_counts, given.sum(axis=1), replicas.sum(axis=2)),
        "shares": both_themes(
            drawn.label_shares, (given.sum(axis=0) / totals)[seen], (replicas.sum(axis=1) / totals)[:, seen]
        ),
    }


def _table(data: Any, entries: list[tuple[int, int]], names: list[str], values: Array) -> list[dict[str, Any]]:
    y: Array = data["observed_data"]["y"].values
    lines = []
    for (row, label), name, draws in zip(entries, names, values, strict=True):
        low, high = np.quantile(draws, [0.05, 0.95])
        lines.append(
            {"name": name, "known": f"{y[row, label]:g}", "low": low, "high": high} | diagnostics.summarise(draws)
        )
    return lines


def _chains_verdict(data: Any) -> dict[str, Any]:
    found = diagnostics.convergence(data)
    worst, least = float(found["rhat"].max()), float(found["ess"].min())
    diverged = int(data["sample_stats"]["diverging"].values.sum()) if hasattr(data, "sample_stats") else None
    good = worst < diagnostics.SETTLED and not diverged
    if good:
        sentence = "The chains agree: their draws can be used as draws of the posterior."
    elif worst >= diagnostics.SETTLED:
        sentence = "The chains do not agree yet: run them longer before reading anything off their draws."
    else:
        sentence = "Some draws diverged, so parts of the posterior may be missing: raise target_accept."
    is_z = found["name"] == "z"
    return NOTHING | {
        "good": good, "sentence": sentence, "rhat": worst, "ess": least, "divergences": diverged,
        "entries": int(is_z.sum()), "scales": not is_z.all(),
    }  # fmt: skip


def _q_verdict(posterior: Posterior, X: Any, Y: Any, seed: int) -> dict[str, Any]:
    if isinstance(posterior.guide, DrawsGuide):
        return NOTHING | {"good": False, "sentence": "One chain cannot be compared with others: run several."}
    if posterior.guide.is_point:
        return NOTHING | {"good": False, "sentence": "A single point has no spread that could be the posterior's."}
    hidden = len(posterior.model.layers) > 1
    work = np.asarray(Y).size * KHAT["draws"] * (KHAT["inner"] if hidden else 1)
    if work > KHAT_BUDGET:
        return NOTHING | {
            "good": False,
            "sentence": "Whether q is the posterior was not looked at: k-hat weighs all rows at once, and these are "
            "too many. Fit the same model to some hundred rows to see it.",
        }
    labelled = len(Y)
    unlabelled = X[labelled:] if len(X) > labelled else None
    apart = posterior.guide.joint is posterior.guide.model
    k = diagnostics.khat(posterior, X[:labelled], Y, unlabelled, seed=seed, **KHAT)
    over = "of all functions, the sites of single rows integrated out" if apart else "of everything it draws"
    return NOTHING | {"khat": k, "over": over, "good": k < 0.7, "sentence": diagnostics.verdict(k)}
