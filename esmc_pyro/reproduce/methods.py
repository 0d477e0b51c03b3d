"""The methods that are compared: how each chooses its settings on held-out training rows, and how it is fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esmc_pyro import default, judge, search
from esmc_pyro.baselines import BASELINES, best_setting
from esmc_pyro.feature_map import FeatureMap, candidate_kinds, choose_kind
from esmc_pyro.frames import stack
from esmc_pyro.inference import PRESETS
from esmc_pyro.metrics import held_out_score
from esmc_pyro.posterior import Posterior
from esmc_pyro.reproduce.experiments import BASELINE_NAMES, EXPERTS, OURS, PAPER, PLAIN

Array = npt.NDArray[Any]
Chosen = Mapping[str, Any]  # settings as JSON can hold them
Scorer = Callable[[Any], Array]  # features of new rows -> scores, rows x K
Fitted = TypeVar("Fitted", Posterior, judge.Search)


class Rows(NamedTuple):
    """Training rows: features (N x F, dense or sparse), labels (N x K of 0 and 1), features without labels or None."""

    X: Any
    Y: npt.NDArray[np.float32]
    X_unlabeled: Any = None

    @property
    def all_X(self) -> Any:
        return self.X if self.X_unlabeled is None else stack(self.X, self.X_unlabeled)


@dataclass(frozen=True)
class Method:
    """``choose`` finds settings for training rows, ``fit`` fits with them; both take a seed."""

    title: str
    choose: Callable[[Rows, int], Chosen]
    fit: Callable[[Chosen, Rows, int], Scorer]


def _whole(fitted: Fitted) -> Fitted:
    """What was fitted, if Ctrl-C did not end it early: half a fit is no result."""
    if fitted.interrupted:
        raise KeyboardInterrupt
    return fitted


# --- the baselines ----------------------------------------------------------------------------------------------------


def _baseline(name: str) -> Method:
    kind = BASELINES[name]
    seeded = "random_state" in kind().get_params()

    def mapped(rows: Rows, features: str) -> tuple[FeatureMap, Rows]:
        made = FeatureMap.from_data(rows.all_X, features)
        more = None if rows.X_unlabeled is None else made(rows.X_unlabeled).numpy()
        return made, Rows(made(rows.X).numpy(), rows.Y, more)

    def choose(rows: Rows, seed: int) -> Chosen:
        found: dict[str, tuple[dict[str, Any], float]] = {}
        for features in candidate_kinds(rows.all_X):  # as ours
            _, (X, Y, more) = mapped(rows, features)
            found[features] = best_setting(name, X, Y, seed, X_unlabeled=more)
        features = max(found, key=lambda features: found[features][1])
        chosen = {key: value for key, value in found[features][0].items() if key != "random_state"}
        return {"features": features} | chosen

    def fit(chosen: Chosen, rows: Rows, seed: int) -> Scorer:
        settings = dict(chosen)
        made, (X, Y, more) = mapped(rows, settings.pop("features", "auto"))
        fitted = kind(**settings, **({"random_state": seed} if seeded else {})).fit(X, Y, more)
        return lambda new: fitted.decision_function(made(new).numpy())

    return Method(name, choose, fit)


# --- the paper's method as published: its settings, on its features or on mapped ones, as held-out rows say -----------


def _preset(title: str, preset: str, semisupervised: str | None = None) -> Method:
    def fit(chosen: Chosen, rows: Rows, seed: int) -> Scorer:
        made = FeatureMap.from_data(rows.all_X, chosen["features"])
        more = None if rows.X_unlabeled is None else made(rows.X_unlabeled)
        make = PRESETS[preset if more is None else semisupervised or preset]
        data: tuple[Tensor, Tensor, Tensor | None] = made(rows.X), torch.as_tensor(rows.Y), more
        posterior = _whole(make(*data, seed=seed).fit(*data, history="sweeps", progress=False))
        return lambda new: posterior.predict(made(new)).numpy()

    def choose(rows: Rows, seed: int) -> Chosen:
        kinds = tuple(dict.fromkeys(("identity", choose_kind(rows.X))))
        held, rest = search.hold_out(len(rows.Y), seed)
        if len(kinds) == 1 or not len(held):
            return {"features": kinds[0]}
        some = Rows(rows.X[rest], rows.Y[rest], rows.X_unlabeled)
        scores = [held_out_score(rows.Y[held], fit({"features": k}, some, seed)(rows.X[held])) for k in kinds]
        return {"features": kinds[int(np.argmax(scores))]}

    return Method(title, choose, fit)


# --- ours: what ``ESMCClassifier()`` does, the search and the fit apart -----------------------------------------------


def _choose_default(rows: Rows, seed: int) -> Chosen:
    found = _whole(search.choose(rows.X, torch.as_tensor(rows.Y), None, {}, candidate_kinds(rows.all_X), seed=seed))
    return {"members": [{"weight": weight} | asdict(settings) for settings, weight in found.members]}


def _fit_default(chosen: Chosen, rows: Rows, seed: int) -> Scorer:
    members = []
    for member in chosen.get("members", [chosen]):  # records of before there were stacks have one
        settings = {name: value for name, value in member.items() if name != "weight"}
        members.append((default.Settings(**settings), member.get("weight", 1.0)))
    # as of the baselines, scores are asked for, and they need no spread
    stack = default.fit_stack(rows.all_X, torch.as_tensor(rows.Y), members, seed=seed, spread=False)
    _whole(stack.lead.posterior)
    return lambda new: stack.predict(new).numpy()


METHODS: dict[str, Method] = {
    OURS: Method("ESMC, ours", _choose_default, _fit_default),
    EXPERTS: _preset("ESMC, authors’ experts", "authors_experts", "authors_semisupervised"),
    PLAIN: _preset("ESMC, authors’ B = 0", "authors_b0"),
    PAPER: _preset("ESMC, the paper’s rules", "paper"),
    **{name: _baseline(name) for name in BASELINE_NAMES},
}
