"""The search for the default's settings: candidates are fitted to a few training rows and judged by others held out.

It climbs: each change that raises the score is made. Then those that were tried get weights, as members of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro import default, relevance
from esmc_pyro.default import Settings
from esmc_pyro.feature_map import is_wide
from esmc_pyro.inference.checkpoint import Checkpoint
from esmc_pyro.judge import Judge, Search, Times
from esmc_pyro.models import Likelihood

SEARCH_ROWS, SEARCH_PSEUDO = 3000, 1000  # the search fits small models to few rows
LARGE_ROWS, LARGE_PSEUDO = 8000, 4000  # and asks more rows, where there are more, what more rows are good for
LARGE_MEMBERS = 2  # of the stack at most, where there are so many rows
NARROW = 1024  # features up to which kernels of other distances than the Euclidean are quick enough to be tried
LEAST_ROWS = 10  # fewer labelled rows are not split
SMOOTH = ("matern32", "rbf")
JUDGES = 500  # rows that judge a candidate at least, if there are so many: few rows are held out in turn


# kernels by length-scale, and by amplitude in multiples of that of a short one: a long one needs a large amplitude to
# vary as much between neighbours, and is nearly linear then
KERNEL_GRID: dict[str, tuple[tuple[float, float], ...]] = {
    "matern12": ((0.5, 1.0), (1.0, 1.0), (2.0, 1.5), (4.0, 2.0)),
    "matern32": ((0.5, 1.0), (1.0, 1.0), (4.0, 4.0)),
    "rbf": ((0.5, 1.0), (1.0, 1.0), (4.0, 1.0), (4.0, 2.0), (4.0, 4.0)),
    "laplacian": ((0.25, 1.0), (0.35, 1.0), (0.5, 1.0), (1.0, 1.0)),
}
AMPLITUDES: tuple[tuple[dict[str, Any], ...], ...] = tuple(
    ({"amplitude": Times(factor)},) for factor in (2, 2, 0.5, 0.5, 0.5)
)
MISSED: tuple[dict[str, float], ...] = ({"miss": 0.3}, {"miss": 0.5})
# f_z: many rows bear a shorter one, and a larger one with that
CURVES: tuple[dict[str, float], ...] = (
    {"curvature": 1.0},
    {"curvature": 1.0, "curve_lengthscale": 0.5},
    {"curvature": 2.0, "curve_lengthscale": 0.5},
)
# the same by rows without their own labels: many rows would take minutes for what these say
CAVITIES: tuple[dict[str, Any], ...] = tuple({**curve, "cavity": True} for curve in CURVES[1:])


def _candidates(many_rows: bool) -> tuple[tuple[dict[str, Any], ...], ...]:
    """Changes to the best settings so far, in the order in which they are tried.

    The amplitude is the first: with one far too large (cal500 wants a fourth or less) kernels cannot be told apart.
    Then the share of labels that are missing, since the members of a stack have one likelihood.
    Of many rows the search sees few. It would choose smoother functions than many rows bear; a smooth kernel that is
    short, much like a rough one, would be the best one's rival, while a stack wants members that differ. The amplitude
    comes after the kernel there, and more rows may raise it further.
    """
    kernels = tuple(
        {"kernel": kernel, "lengthscale": scale, "amplitude": Times(amplitude)}
        for kernel, pairs in KERNEL_GRID.items()
        for scale, amplitude in pairs
        if not many_rows or (scale == 1 if kernel in SMOOTH else scale <= 1)
    )
    return (
        ({"relevance": True},),
        *(() if many_rows else (*AMPLITUDES, MISSED)),
        kernels,
        *AMPLITUDES,
        tuple({"coupling": c} for c in (0.5, 0.95)),
        ({"B": 3.0, "miss": 0.0},),
        CURVES if many_rows else (*CURVES, *CAVITIES),
        ({"relevance": True}, {"relevance": False}),
    )


CANDIDATES, MANY_CANDIDATES = _candidates(many_rows=False), _candidates(many_rows=True)


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


def choose(
    X: Any, Y: Tensor, likelihood: Likelihood | None, fixed: Mapping[str, Any], kinds: Sequence[str], *, seed: int = 0,
    pseudo: int | None = None, candidates: Sequence[Sequence[dict[str, Any]]] | None = None,
    project: bool | None = None, progress: bool = False, checkpoint: Checkpoint | None = None,
) -> Search:  # fmt: skip
    """Choose ``Settings`` on held-out rows, one group of ``candidates`` after the other (None: ``CANDIDATES``, and
    ``MANY_CANDIDATES`` above ``LARGE_ROWS``).

    ``X`` (N x F) are the labelled rows as they came, and ``kinds`` the feature maps to compare (``project`` as there).
    Models with at most ``SEARCH_PSEUDO`` pseudo-instances are fitted to the rows that ``hold_out`` leaves, fold by
    fold; ``pseudo`` is how many the user named for those of all rows (``default.pseudo_count``). More rows bear a
    larger amplitude, a shorter length-scale and ``f_z``: where there are more than ``LARGE_ROWS``, so many say whether
    to go on that way, with the best kernel and with that of the best settings that have another. Where there are more
    than ``SEARCH_ROWS``, a length-scale that was searched is made shorter for all pseudo-instances
    (``denser_lengthscale``). What is in ``fixed`` is not searched. Several of those tried make a stack: together they
    are better than the best (``stack.member_weights``; all with its likelihood, if that learns nothing). Without rows
    to hold out, or anything to try, the settings stay as they start and nothing is fitted; Ctrl-C ends the search at
    the best so far. A ``likelihood`` of None leaves it to the settings.
    """
    if candidates is None:
        candidates = CANDIDATES if len(Y) <= LARGE_ROWS else MANY_CANDIDATES
    best = replace(Settings(features=kinds[0]), **fixed)
    project = is_wide(X, kinds[0]) if project is None else project
    settled = {*fixed, *(() if likelihood is None else ("B", "miss"))}
    width = 0 if project else X.shape[1]
    if width > relevance.FEATURES:
        settled.add("relevance")
    folds = [hold_out(len(Y), seed, fold) for fold in range(fold_count(len(Y)))]
    if not folds or (not candidates and len(kinds) == 1):
        return Search.untried(best, Y)
    pseudo = default.pseudo_count(len(Y), pseudo)  # at unlabelled rows they make no length-scale shorter
    is_dense = len(Y) > SEARCH_ROWS and bool(candidates) and "lengthscale" not in settled
    judge = partial(
        Judge, X, Y, likelihood=likelihood, seed=seed, project=project, progress=progress, checkpoint=checkpoint,
        fitted=pseudo if is_dense else None,
    )  # fmt: skip
    maps = tuple({"features": kind} for kind in kinds)
    groups = (maps[1:], *candidates, maps)  # at last once more: another kernel may want another map
    unwanted = _unwanted_kernels(fixed.get("kernel"), width)
    changes = [
        [
            {name: value for name, value in change.items() if name not in settled}
            for change in group
            if change.get("kernel") not in unwanted
        ]
        for group in groups
    ]
    given = {"fixed": fixed, "kinds": tuple(kinds), "candidates": tuple(candidates)}
    small = judge(folds=folds, pseudo=min(SEARCH_PSEUDO, pseudo), section="search", given=given)
    best = small.climb(best, [[change for change in group if change] for group in changes])
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
    fitted = min(len(folds[0][1]), default.pseudo_count(len(Y), pseudo))
    project = is_wide(X, found.settings.features) if project is None else project
    is_alike = len(Y) <= SEARCH_ROWS and fitted <= SEARCH_PSEUDO and epochs is None and lr == default.LR
    if is_alike and len(found.Y):
        return found
    judge = Judge(
        X, Y, likelihood=likelihood, seed=seed, project=project, progress=progress, checkpoint=checkpoint, folds=folds,
        pseudo=fitted, section="calibration", given={}, fitted=None, epochs=epochs, lr=lr,
    )  # fmt: skip
    members = tqdm(found.members, disable=not progress, desc="calibration", unit="member")
    made = tuple(z for settings, _ in members if (z := judge.held_out_z(settings)) is not None)
    judge.write()
    if len(made) < len(found.members):
        return replace(found, interrupted=True)
    if not all(torch.isfinite(z).all() for z in made):
        return found
    return replace(found, member_z=made, Y=judge.Y_held, interrupted=judge.interrupted)


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
    further = large.climb(best, [[step] for step in steps if not settled & set(step)])
    if rival is None:
        return further
    scale = further.lengthscale * rival.lengthscale / best.lengthscale
    start = replace(further, kernel=rival.kernel, lengthscale=scale)
    other = large.climb(start, [[step] for step in shorter if not settled & set(step)])
    return max(further, other, key=large.score)
