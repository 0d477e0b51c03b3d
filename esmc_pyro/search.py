"""The search for the default's settings: candidates are fitted to a few training rows and judged by others held out.

It climbs: each change that raises the score is made. Then those that were tried get weights, as members of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro import default, relevance, stack
from esmc_pyro.default import Settings
from esmc_pyro.feature_map import is_wide
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.metrics import held_out_score
from esmc_pyro.models import Likelihood
from esmc_pyro.search_memory import SearchMemory

SEARCH_ROWS, SEARCH_PSEUDO = 3000, 1000  # the search fits small models to few rows
LARGE_ROWS, LARGE_PSEUDO = 8000, 4000  # and asks more rows, where there are more, what more rows are good for
LARGE_MEMBERS = 2  # of the stack at most, where there are so many rows
NARROW = 1024  # features up to which kernels of other distances than the Euclidean are quick enough to be tried
LEAST_ROWS = 10  # fewer labelled rows are not split
SHORTER = 0.25  # as pseudo-instances get denser, the length-scale shrinks with this power of their number
JUDGES = 500  # rows that judge a candidate at least, if there are so many: few rows are held out in turn


class Times(float):
    """So many times the best value so far."""

    def __repr__(self) -> str:
        return f"Times({super().__repr__()})"


# kernels by length-scale and amplitude: a long one needs a large amplitude to vary as much between neighbours, and is
# nearly linear then
KERNEL_GRID: dict[str, tuple[tuple[float, float], ...]] = {
    "matern12": ((0.5, 4.0), (1.0, 4.0), (2.0, 6.0), (4.0, 8.0)),
    "matern32": ((1.0, 4.0), (4.0, 16.0)),
    "rbf": ((1.0, 4.0), (4.0, 16.0)),
    "laplacian": ((0.25, 4.0), (0.35, 4.0), (0.5, 4.0), (1.0, 4.0)),
}
# f_z: many rows bear a shorter one, and a larger one with that
CURVES: tuple[dict[str, float], ...] = (
    {"curvature": 1.0},
    {"curvature": 1.0, "curve_lengthscale": 0.5},
    {"curvature": 2.0, "curve_lengthscale": 0.5},
)
# changes to the best settings so far, tried in this order
CANDIDATES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"relevance": True},),
    tuple(
        {"kernel": kernel, "lengthscale": scale, "amplitude": amplitude}
        for kernel, pairs in KERNEL_GRID.items()
        for scale, amplitude in pairs
    ),
    tuple({"amplitude": Times(factor)} for factor in (2, 2, 0.5, 0.5, 0.5)),
    tuple({"coupling": c} for c in (0.5, 0.95)),
    ({"B": 3.0},),
    CURVES,
    ({"relevance": True}, {"relevance": False}),
)


@dataclass
class Search:
    """The best settings, what was tried, and held-out ``z`` and labels for thresholds and calibration.

    ``members`` are the settings to fit to all rows (``for_all_rows``), with their weights, the heaviest first: the best
    alone, or a stack of several (``stack.member_weights``). ``member_z`` are theirs, as judged (``judge_members``:
    once more, as they will be fitted); ``tried`` has the weights too.
    """

    settings: Settings
    tried: pd.DataFrame
    member_z: tuple[Tensor, ...]
    Y: Tensor
    members: tuple[tuple[Settings, float], ...]
    interrupted: bool = False
    shorter: float = 1.0  # what a length-scale is multiplied by (``denser_lengthscale``)
    score: float = -np.inf  # ``held_out_score`` of ``settings``

    def for_all_rows(self, settings: Settings) -> Settings:
        """These settings, as they did well in the search, for the models that are fitted to all rows."""
        return replace(settings, lengthscale=settings.lengthscale * self.shorter)

    @property
    def z(self) -> Tensor:
        """The held-out ``z`` of the stack, n x K."""
        parts = [weight * z for (_, weight), z in zip(self.members, self.member_z, strict=True)]
        return torch.stack(parts).sum(0)

    def first(self, count: int) -> Search:
        """What remains if only so many members are fitted."""
        if count == len(self.members):
            return self
        total = sum(weight for _, weight in self.members[:count])
        heaviest = self.tried["weight"].sort_values(ascending=False, kind="stable").index[:count]
        weight = self.tried["weight"].where(self.tried.index.isin(heaviest), 0.0) / total
        members = tuple((settings, weight / total) for settings, weight in self.members[:count])
        return replace(self, tried=self.tried.assign(weight=weight), members=members, member_z=self.member_z[:count])


def hold_out(rows: int, seed: int, fold: int = 0, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A fifth of at most ``most`` rows, and the others of them; none and all below ``LEAST_ROWS`` rows.

    ``fold`` 0 to 4 gives each of the five fifths; ``most=None`` is ``SEARCH_ROWS``.
    """
    order = np.random.default_rng(seed).permutation(rows)[: SEARCH_ROWS if most is None else most]
    held = len(order) // 5 if rows >= LEAST_ROWS else 0
    first = fold * held
    return order[first : first + held], np.concatenate([order[:first], order[first + held :]])


def fold_count(rows: int) -> int:
    """How many fifths are held out in turn, so that ``JUDGES`` rows judge a candidate: from 5 of few rows to 1."""
    held = len(hold_out(rows, 0)[0])
    return min(5, -(-JUDGES // held)) if held else 0


def denser_lengthscale(few: int, many: int) -> float:
    """``(few / many) ** SHORTER``, at most 1: the share of a length-scale that did well with ``few`` pseudo-instances
    that is left for ``many``, since denser ones bear a shorter one (benchmarks/results/ablation.md).
    """
    return min(1.0, few / many) ** SHORTER


def choose(
    X: Any, Y: Tensor, likelihood: Likelihood | None, fixed: Mapping[str, Any], kinds: Sequence[str], *, seed: int = 0,
    pseudo: int | None = None, candidates: Sequence[Sequence[dict[str, Any]]] | None = None,
    project: bool | None = None, progress: bool = False, checkpoint: Checkpoint | None = None,
) -> Search:  # fmt: skip
    """Choose ``Settings`` on held-out rows, one group of ``candidates`` (None: ``CANDIDATES``) after the other.

    ``X`` (N x F) are the labelled rows as they came, and ``kinds`` the feature maps to compare (``project`` as there).
    Models with at most ``SEARCH_PSEUDO`` pseudo-instances are fitted to the rows that ``hold_out`` leaves, fold by
    fold; ``pseudo`` is how many those will have that are fitted to all rows (None: ``default.pseudo_count``). More rows
    bear a larger amplitude, a shorter length-scale and ``f_z``: where there are more than ``LARGE_ROWS``, so many say
    whether to go on that way, with the best kernel and with that of the best settings that have another. Where there
    are more than ``SEARCH_ROWS``, a length-scale that was searched is made shorter for all pseudo-instances
    (``denser_lengthscale``). What is in ``fixed`` is not searched. Several of those tried make a stack: together they
    are better than the best (``stack.member_weights``; all with its likelihood, if that learns nothing). Without rows
    to hold out, or anything to try, the settings stay as they start and nothing is fitted; Ctrl-C ends the search at
    the best so far. A ``likelihood`` of None leaves it to the settings.
    """
    candidates = CANDIDATES if candidates is None else candidates
    best = replace(Settings(features=kinds[0]), **fixed)
    project = is_wide(X) if project is None else project
    settled = {*fixed, *(() if likelihood is None else ("B",))}
    width = 0 if project else X.shape[1]
    if width > relevance.FEATURES:
        settled.add("relevance")
    folds = [hold_out(len(Y), seed, fold) for fold in range(fold_count(len(Y)))]
    if not folds or (not candidates and len(kinds) == 1):
        return _untried(best, Y)
    pseudo = default.pseudo_count(len(Y)) if pseudo is None else pseudo
    is_dense = len(Y) > SEARCH_ROWS and bool(candidates) and "lengthscale" not in settled
    judge = partial(
        Judge, X, Y, likelihood=likelihood, seed=seed, project=project, progress=progress, checkpoint=checkpoint,
        fitted=pseudo if is_dense else None,
    )  # fmt: skip
    maps = tuple({"features": kind} for kind in kinds)
    groups = (maps[1:], *candidates, maps)  # at last once more: another kernel may want another map
    unwanted = _unwanted_kernels(fixed.get("kernel"), width)
    # a search that sees few of many rows would choose smoother functions than these bear
    longest = 1.0 if len(Y) > LARGE_ROWS else np.inf
    changes = [
        {name: value for name, value in change.items() if name not in settled}
        for group in groups
        for change in group
        if change.get("lengthscale", 0.0) <= longest and change.get("kernel") not in unwanted
    ]
    given = {"fixed": fixed, "kinds": tuple(kinds), "candidates": tuple(candidates)}
    small = judge(folds=folds, pseudo=min(SEARCH_PSEUDO, pseudo), section="search", given=given)
    best = small.climb(best, [change for change in changes if change])
    if len(Y) <= LARGE_ROWS:
        return small.verdict(best, None)
    found = small.verdict(best, 1)
    if small.interrupted or not candidates:
        return found
    large = judge(
        folds=[hold_out(len(Y), seed, most=LARGE_ROWS)], pseudo=min(LARGE_PSEUDO, pseudo), section="larger search",
        given={"best": str(best)},
    )  # fmt: skip
    further = _go_on(large, best, None if "kernel" in settled else small.rival(best), settled)
    halfway = large.interrupted
    more = large.verdict(further, LARGE_MEMBERS)
    kept, left = (found, more) if halfway else (more, found)
    left.tried["weight"] = 0.0
    tried = [part.tried for part in (found, more) if len(part.tried)]  # one without rows would spoil the types
    return replace(kept, tried=pd.concat(tried, ignore_index=True), interrupted=more.interrupted)


def judge_members(
    found: Search, X: Any, Y: Tensor, likelihood: Likelihood | None, *, seed: int = 0, pseudo: int | None = None,
    epochs: int | None = None, lr: float = default.LR, project: bool | None = None, progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Search:  # fmt: skip
    """``found`` with held-out ``z`` of its members as they will be fitted: arguments as in ``choose``, and ``epochs``
    and ``lr`` as in ``default.fit_settings``.

    The search's own models may have fewer rows and pseudo-instances, longer length-scales and another training, and
    then other odds: a calibration for these would not be one for the fit (benchmarks/results/choices.md). Where that is
    so, the members are fitted once more, to all rows but a fifth. Ctrl-C, or ``z`` that are not finite, leave those of
    the search.
    """
    folds = [hold_out(len(Y), seed, fold, most=len(Y)) for fold in range(fold_count(len(Y)))]
    if found.interrupted or not folds:
        return found
    rest = len(folds[0][1])
    fitted = min(default.pseudo_count(rest, pseudo), default.pseudo_count(len(Y), pseudo))
    is_alike = len(Y) <= SEARCH_ROWS and fitted <= SEARCH_PSEUDO and epochs is None and lr == default.LR
    if is_alike and len(found.Y):
        return found
    judge = Judge(
        X, Y, likelihood=likelihood, seed=seed, project=is_wide(X) if project is None else project, progress=progress,
        checkpoint=checkpoint, folds=folds, pseudo=fitted, section="calibration", given={}, fitted=None, epochs=epochs,
        lr=lr,
    )  # fmt: skip
    members = tqdm(found.members, disable=not progress, desc="calibration", unit="member")
    made = tuple(z for settings, _ in members if (z := judge.held_out_z(settings)) is not None)
    if len(made) < len(found.members):
        return replace(found, interrupted=True)
    if not all(torch.isfinite(z).all() for z in made):
        return found
    return replace(found, member_z=made, Y=judge.Y_held)


def _unwanted_kernels(named: str | Kernel | None, width: int) -> set[str]:
    """Those of ``KERNEL_GRID`` whose scales are not for the kernel that the user names, or that are slow at a width."""
    if isinstance(named, str) and named in KERNEL_GRID:
        return {*KERNEL_GRID} - {named}
    return {"laplacian"} if width > NARROW else set()


def _go_on(large: Judge, best: Settings, rival: Settings | None, settled: set[str]) -> Settings:
    """What more rows make of ``best``, or of it with the kernel of ``rival``, whose length-scale is as much shorter."""
    larger: list[dict[str, float]] = [{"amplitude": Times(2)}] * 2
    shorter: list[dict[str, float]] = [{"lengthscale": Times(0.7)}] * 2
    steps = [*larger, *shorter, *CURVES]
    further = large.climb(best, [step for step in steps if not settled & set(step)])
    if rival is None:
        return further
    scale = further.lengthscale * rival.lengthscale / best.lengthscale
    start = replace(further, kernel=rival.kernel, lengthscale=scale)
    other = large.climb(start, [step for step in shorter if not settled & set(step)])
    return max(further, other, key=large.score)


def _untried(settings: Settings, Y: Tensor, interrupted: bool = False) -> Search:
    columns = [*asdict(settings), "score", "weight"]
    return Search(settings, pd.DataFrame(columns=columns), (Y[:0],), Y[:0], ((settings, 1.0),), interrupted)


class Judge:
    """Fits settings to the rows of ``X`` and ``Y`` that ``folds`` leave, scores them by those they hold out, and
    remembers all, in the ``section`` of a checkpoint if there is one (``given`` is what the search depends on).

    ``fitted`` pseudo-instances will the models have that are fitted to all rows; None leaves the length-scale alone.
    ``epochs`` and ``lr`` are ``default.fit_settings``'s. Ctrl-C ends the judging: settings that have no score by then
    have the lowest.
    """

    def __init__(
        self, X: Any, Y: Tensor, *, folds: Sequence[tuple[np.ndarray, np.ndarray]], pseudo: int,
        likelihood: Likelihood | None, seed: int, project: bool, progress: bool, checkpoint: Checkpoint | None,
        section: str, given: Mapping[str, Any], fitted: int | None, epochs: int | None = None, lr: float = default.LR,
    ) -> None:  # fmt: skip
        self.interrupted = False
        self._X, self._Y, self._folds, self._section = X, Y, folds, section
        self._Y_rest = [Y[torch.as_tensor(rest)] for _, rest in folds]
        self.Y_held = torch.cat([Y[held] for held, _ in folds])
        self._pseudo, self._likelihood, self._seed = pseudo, likelihood, seed
        self._project, self._progress, self._epochs, self._lr = project, progress, epochs, lr
        few = min(len(self._Y_rest[0]), pseudo)
        self._shorter = 1.0 if fitted is None else denser_lengthscale(few, fitted)
        self._mapped: dict[tuple[str, bool], list[tuple[Tensor, Tensor]]] = {}
        self._found: dict[Settings, tuple[float, Tensor]] = {}
        training = (
            default.EPOCHS, default.LR, default.LEAST_STEPS, default.CURVED_EPOCHS, default.CURVED_STEPS,
            default.CURVED_LR, pseudo, relevance.TRAINING, epochs, lr,
        )  # fmt: skip
        self._memory = SearchMemory(
            checkpoint, section, X, Y, likelihood=likelihood, seed=seed, training=training, **given
        )

    def score(self, settings: Settings) -> float:
        """``held_out_score`` of these settings."""
        if settings not in self._found and (kept := self._memory.get(settings)) is not None:
            self._found[settings] = kept
        if settings not in self._found and not self.interrupted:
            try:
                self._judge(settings)
            except KeyboardInterrupt:
                self.interrupted = True
        return self._found[settings][0] if settings in self._found else -np.inf

    def held_out_z(self, settings: Settings) -> Tensor | None:
        """``z`` of all held-out rows, n x K; None after Ctrl-C."""
        self.score(settings)
        return self._found[settings][1] if settings in self._found else None

    def _judge(self, settings: Settings) -> None:
        z = self._fit_folds(settings)
        if z is None:
            self.interrupted = True
            return
        score = held_out_score(self.Y_held, z) if torch.isfinite(z).all() else -np.inf
        self._memory.put(settings, score, z)
        self._found[settings] = score, z

    def _fit_folds(self, settings: Settings) -> Tensor | None:
        """``z`` of all held-out rows; None if a fit was cut short, which proves nothing."""
        parts = []
        for (x, x_held), y in zip(self._features(settings), self._Y_rest, strict=True):
            posterior = default.fit_settings(
                x, y, settings, self._likelihood, pseudo=self._pseudo, epochs=self._epochs, lr=self._lr,
                seed=self._seed, spread=False,
            )  # fmt: skip
            if posterior.interrupted:
                return None
            parts.append(posterior.predict(x_held))
        return torch.cat(parts)

    def _features(self, settings: Settings) -> list[tuple[Tensor, Tensor]]:
        key = settings.features, settings.relevance
        if key not in self._mapped:
            parts = []
            for (held, rest), y in zip(self._folds, self._Y_rest, strict=True):
                made, x = default.map_features(self._X[rest], y, settings, self._seed, project=self._project)
                parts.append((x, made(self._X[held])))
            self._mapped[key] = parts
        return self._mapped[key]

    def climb(self, best: Settings, changes: Sequence[Mapping[str, Any]]) -> Settings:
        """From ``best``, make each change that raises the score."""
        self.score(best)
        for change in tqdm(changes, disable=not self._progress, desc=self._section, unit="candidate"):
            made = {name: v * getattr(best, name) if isinstance(v, Times) else v for name, v in change.items()}
            candidate = replace(best, **made)
            if self.score(candidate) > self.score(best):
                best = candidate
            if self.interrupted:
                break
        return best

    def rival(self, best: Settings) -> Settings | None:
        """The best settings with another kernel than ``best``, and the same ``B``, if any."""
        others = [one for one in self._found if one.kernel != best.kernel and one.B == best.B]
        return max(others, key=self.score, default=None)

    def verdict(self, best: Settings, members: int | None) -> Search:
        """``best``, and those that were judged with their weights; at most so many ``members`` have one above zero."""
        if best not in self._found:
            return _untried(best, self._Y, interrupted=True)
        shares, likelihood = {best: 1.0}, self._likelihood
        learns = likelihood is not None and any(parameter.requires_grad for parameter in likelihood.parameters())
        if members != 1 and not learns and not self.interrupted and np.isfinite(self.score(best)):
            # with one likelihood, so that their z mean the same
            alike = [one for one, (score, _) in self._found.items() if one.B == best.B and score > -np.inf]
            shared = default.likelihood_of(best) if likelihood is None else likelihood
            try:
                judged = [self._found[settings][1] for settings in alike]
                weights = stack.member_weights(judged, self.Y_held, shared, members)
                shares = {settings: share for settings, share in zip(alike, weights.tolist(), strict=True) if share}
            except KeyboardInterrupt:
                self.interrupted = True
        ordered = tuple(sorted(shares.items(), key=lambda member: -member[1]))
        tried = [
            asdict(settings) | {"score": score, "weight": shares.get(settings, 0.0)}
            for settings, (score, _) in self._found.items()
        ]
        z = tuple(self._found[settings][1] for settings, _ in ordered)
        found = Search(
            best, pd.DataFrame(tried), z, self.Y_held, ordered, self.interrupted, self._shorter, self.score(best)
        )
        return replace(found, members=tuple((found.for_all_rows(settings), share) for settings, share in ordered))
