"""The default for real work: ESMC with label-coupled layers, its settings chosen on held-out training rows.

Two layers, ``c`` as wide as there are labels (at most ``WIDTH``)::

    c = f_c(x)                    a rough kernel on mapped features, as many pseudo-instances as memory allows
    z = c W + b + f_z(c)          W'W couples the labels (``rules.label_coupling``), b holds their frequencies

``W`` carries what is linear in the label space, ``f_z`` (RBF) what is not. Both layers' kernels are frozen, so fitting
is matrix products (``objectives.FrozenFeatures``). The means are the most probable ones (objective ``map``), the spread
is Laplace's. A few such fits make a ``stack``: two above ``LARGE_ROWS`` rows, where each takes its time.

Sizes, by the rows N and labels K:

====================  ==================================================================================
M, pseudo-instances   N, at most ``PSEUDO`` and what keeps N M within ``FEATURES``; ``CURVED_PSEUDO`` of f_z
L, width of c         K, at most ``WIDTH``
rows a batch          N / 4, from 32 to 512
epochs                ``EPOCHS``, or as many as make ``LEAST_STEPS`` steps (f_z: ``CURVED_EPOCHS``, ``CURVED_STEPS``)
====================  ==================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from esmc_pyro import relevance, stack
from esmc_pyro.feature_map import FeatureMap, is_wide
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference.checkpoint import Checkpoint, Section
from esmc_pyro.inference.svi import fit_svi
from esmc_pyro.metrics import held_out_score
from esmc_pyro.models import EEOE, ESMC, Bernoulli, Layer, Likelihood, make_kernel, rules
from esmc_pyro.models.kernels import distance_norm
from esmc_pyro.models.means import Linear
from esmc_pyro.objectives import MAP, FrozenFeatures, laplace_spread
from esmc_pyro.posterior import Posterior
from esmc_pyro.relevance import feature_weights
from esmc_pyro.search_memory import SearchMemory, key_of
from esmc_pyro.stack import Member, Stack
from esmc_pyro.tensor_file import fingerprint

WIDTH = 1024  # latent dimensions at most
FEATURES = FrozenFeatures.BUDGET  # numbers in the first layer's features at most
PSEUDO = 20_000  # pseudo-instances at most: a Cholesky factor of this size takes minutes
EPOCHS, LR = 10, 0.1
CURVED_PSEUDO, CURVED_EPOCHS, CURVED_LR = 300, 5, 0.02
LEAST_STEPS, CURVED_STEPS = 100, 80  # few rows are few batches: more epochs then
SEARCH_ROWS, SEARCH_PSEUDO = 3000, 1000  # the search fits small models to few rows
LARGE_ROWS, LARGE_PSEUDO = 8000, 4000  # and asks more rows, where there are more, what more rows are good for
LARGE_MEMBERS = 2  # of the stack at most, where there are so many rows
LEAST_ROWS = 10  # fewer labelled rows are not split
JUDGES = 500  # rows that judge a candidate at least, if there are so many: few rows are held out in turn


@dataclass(frozen=True)
class Settings:
    """What the held-out rows choose.

    ``features`` is the kind of feature map; ``relevance`` whether each feature has a weight (``relevance.py``), learned
    in a first phase at few rows; ``lengthscale`` is in medians of the kernel's distance between rows; ``amplitude``
    is the prior standard deviation of ``z``, ``coupling`` the strength of ``rules.label_coupling``, ``curvature`` the
    prior standard deviation of ``f_z``, the part of ``z`` that is not linear in ``c``. ``B`` is that of ``EEOE``, 1 is
    ``Bernoulli``; it counts where the user names no likelihood.
    """

    features: str = "identity"
    relevance: bool = False
    kernel: str = "matern12"
    lengthscale: float = 0.7
    amplitude: float = 4.0
    coupling: float = 0.8
    curvature: float = 0.0
    B: float = 1.0

    @property
    def second_layer(self) -> str:
        """What the second layer was chosen to be."""
        return "c W + b + f_z(c)" if self.curvature else "c W + b, no f_z"


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
    ({"curvature": 1.0},),
    ({"relevance": True}, {"relevance": False}),
)


@dataclass
class Search:
    """The best settings, what was tried, and held-out ``z`` and labels for thresholds and calibration.

    ``members`` are the settings to fit, with their weights, the heaviest first: the best alone, or a stack of several
    (``stack.member_weights``). ``member_z`` are theirs; ``tried`` has the weights too.
    """

    settings: Settings
    tried: pd.DataFrame
    member_z: tuple[Tensor, ...]
    Y: Tensor
    members: tuple[tuple[Settings, float], ...]
    interrupted: bool = False

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


def pseudo_count(N: int) -> int:
    """``M``: every row, up to ``PSEUDO`` and to what keeps the N x M features within ``FEATURES`` numbers."""
    return max(1, min(N, PSEUDO, FEATURES // N))


def likelihood_of(settings: Settings) -> Likelihood:
    """``EEOE(B)``, or ``Bernoulli`` for ``B = 1``."""
    return EEOE(settings.B) if settings.B > 1 else Bernoulli()


def map_features(
    X: Any, Y: Tensor, settings: Settings, seed: int = 0, *, project: bool | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[FeatureMap, Tensor]:  # fmt: skip
    """The feature map of these settings for rows ``X`` ((N + I) x F), the first with labels ``Y``, and its rows.

    ``project`` as in ``FeatureMap.from_data``; weights that ``checkpoint`` holds are not learned again.
    """
    made = FeatureMap.from_data(X, settings.features, seed, project=project)
    x = made(X)
    if not settings.relevance:
        return made, x
    section = None if checkpoint is None else checkpoint.section(f"relevance {made.kind}")
    origin = {} if section is None else {"X": fingerprint(x), "Y": fingerprint(Y), "seed": seed}
    kept = None if section is None else section.get(origin)
    weights = torch.from_numpy(feature_weights(x[: len(Y)], Y, seed)) if kept is None else kept[1]["weights"]
    if section is not None and kept is None:
        section.put(origin, {}, {"weights": weights})
    made.weights = weights.numpy()
    return made, x * weights


def build(X: Tensor, Y: Tensor, settings: Settings, likelihood: Likelihood, pseudo: int, seed: int) -> ESMC:
    """The model for mapped features ``X`` ((N + I) x F) and labels ``Y`` (N x K), still without ``f_z``."""
    L = min(Y.shape[1], WIDTH)
    rows = np.sort(rules.choose_pseudo_rows(len(X), pseudo, seed))  # of all rows the order is that of the rows
    norm = distance_norm(settings.kernel)
    scale = settings.lengthscale * rules.lengthscale_from_distances(X, "authors", seed=seed, norm=norm)
    weight = settings.amplitude * rules.label_coupling(Y, settings.coupling, L)
    offset = likelihood.best_constant(rules.label_frequencies(Y)).to(X.dtype)
    first = Layer(
        "c", make_kernel(copy.deepcopy(settings.kernel), X.shape[1], lengthscale=scale), X[rows], L, fitc=True
    )
    # one pseudo-instance of next to no variance stands for f_z = 0
    last = _last_layer(X.new_zeros(1, L), Linear(weight, offset), lengthscale=1.0, variance=1e-8)
    return ESMC([first, last], copy.deepcopy(likelihood))  # its parameters, if it has any, are this model's


def _last_layer(pseudo_instances: Tensor, mean: Linear, lengthscale: float, variance: float) -> Layer:
    kernel = make_kernel("rbf", pseudo_instances.shape[1], lengthscale=lengthscale, variance=variance)
    layer = Layer("z", kernel, pseudo_instances, len(mean.offset), plate="labels", mean=mean)
    mean.offset.requires_grad_(True)  # label frequencies move with the fit, the coupling stays
    return layer


def batch_size(N: int) -> int:
    """Rows a step: a quarter of all, 32 to 512."""
    return min(512, max(32, N // 4))


def epoch_count(N: int, least: int, steps: int) -> int:
    """Epochs: ``least``, or as many as it takes to make so many ``steps``."""
    return max(least, -(-steps // -(-N // batch_size(N))))


def fit_means(
    guide: DoublyStochasticGuide, X: Tensor, Y: Tensor, *, objective: str | MAP = "map", epochs: int | None = None,
    lr: float = LR, seed: int = 0, progress: bool = False, checkpoint: Section | None = None,
) -> Posterior:  # fmt: skip
    """Move the guide's means to the most probable ones; ``epochs=None`` is ``EPOCHS``, or ``LEAST_STEPS`` if more."""
    X = X[: len(Y)]  # unlabelled rows say nothing about the means
    return fit_svi(
        guide.model, X, Y, guide=guide, objective=objective, batch_size=batch_size(len(X)), lr=lr, seed=seed,
        epochs=epoch_count(len(X), EPOCHS, LEAST_STEPS) if epochs is None else epochs,
        optimizer=partial(torch.optim.Adam, fused=True), clip=None, progress=progress, checkpoint=checkpoint,
    )  # fmt: skip


def start(model: ESMC, X: Tensor, Y: Tensor) -> DoublyStochasticGuide:
    """The guide of the default: all means at zero, one spread for all outputs."""
    return DoublyStochasticGuide(model, X, Y, covariance="common", start="zero", scale=1e-3)


def curve(
    posterior: Posterior, X: Tensor, Y: Tensor, settings: Settings, features: FrozenFeatures, seed: int, progress: bool,
    checkpoint: Section | None = None,
) -> Posterior:  # fmt: skip
    """Add ``f_z`` to a fit without it: pseudo-instances at ``c`` of labelled rows, one median distance long."""
    model, v = posterior.model, posterior.guide.v_loc(posterior.model.layers[0])
    with torch.no_grad():
        c = torch.cat([features(X[: len(Y)], rows) @ v.mT for rows in torch.arange(len(Y)).split(4096)])
    rows = rules.choose_pseudo_rows(len(c), min(len(c), CURVED_PSEUDO), seed)
    scale = rules.lengthscale_from_distances(c, "authors", seed=seed)
    model.layers[1] = _last_layer(c[rows], model.layers[1].mean, scale, settings.curvature**2)
    guide = start(model, X, Y)
    guide.c_v_loc.data = v.data
    return fit_means(
        guide, X, Y, objective=MAP(features=features), epochs=epoch_count(len(Y), CURVED_EPOCHS, CURVED_STEPS),
        lr=CURVED_LR, seed=seed, progress=progress, checkpoint=checkpoint,
    )  # fmt: skip


def fit_settings(
    X: Tensor, Y: Tensor, settings: Settings, likelihood: Likelihood | None = None, *, pseudo: int | None = None,
    epochs: int | None = None, lr: float = LR, seed: int = 0, spread: bool = True, progress: bool = False,
    checkpoint: Checkpoint | None = None, name: str = "fit",
) -> Posterior:  # fmt: skip
    """Fit the model of these settings to mapped features ``X`` ((N + I) x F) and labels ``Y`` (N x K).

    ``epochs`` and ``lr`` are those of ``c``; ``f_z`` has its own. ``spread=False`` leaves out Laplace's spread, a pass
    over all features that the means do not need. A ``likelihood`` of None is the one of the settings. ``name`` is that
    of the fit in the ``checkpoint``.
    """
    likelihood = likelihood_of(settings) if likelihood is None else likelihood
    first, second = (None, None) if checkpoint is None else (
        checkpoint.section(name), checkpoint.section(f"{name}, f_z")
    )  # fmt: skip
    model = build(X, Y, settings, likelihood, pseudo_count(len(X)) if pseudo is None else pseudo, seed)
    guide = start(model, X, Y)
    guide.z_v_loc.requires_grad_(False)  # f_z = 0
    features = FrozenFeatures(model.layers[0])
    posterior = fit_means(
        guide, X, Y, objective=MAP(features=features), epochs=epochs, lr=lr, seed=seed, progress=progress,
        checkpoint=first,
    )  # fmt: skip
    if settings.curvature and not posterior.interrupted:
        history = posterior.history
        posterior = curve(posterior, X, Y, settings, features, seed, progress, second)
        posterior.history["seconds"] += history["seconds"].iloc[-1]
        posterior.history["epoch"] += history["epoch"].iloc[-1]
        posterior.history = pd.concat([history, posterior.history], ignore_index=True)
    if spread:
        laplace_spread(posterior.model, posterior.guide, X, Y, features=features)
    return posterior


def fit_stack(
    X: Any, Y: Tensor, members: Sequence[tuple[Settings, float]], likelihood: Likelihood | None = None, *,
    seed: int = 0, checkpoint: Checkpoint | None = None, **options: Any,
) -> Stack:  # fmt: skip
    """Fit ``members``, settings with their weights, to features ``X`` ((N + I) x F) as they came and labels ``Y``.

    ``options`` are ``fit_settings``'s. Ctrl-C leaves out the members that are not fitted by then, but for the first.
    """
    fitted: list[Member] = []
    maps: dict[tuple[str, bool], tuple[FeatureMap, Tensor]] = {}
    for settings, weight in members:
        key = settings.features, settings.relevance
        try:
            if key not in maps:
                maps[key] = map_features(X, Y, settings, seed, checkpoint=checkpoint)
            posterior = fit_settings(
                maps[key][1], Y, settings, likelihood, seed=seed, checkpoint=checkpoint,
                name=f"fit {key_of(settings)}", **options,
            )  # fmt: skip
        except KeyboardInterrupt:
            if not fitted:
                raise
            fitted[0].posterior.interrupted = True
            break
        if fitted and posterior.interrupted:
            fitted[0].posterior.interrupted = True
            break
        fitted.append(Member(weight, maps[key][0], posterior, settings))
        if posterior.interrupted:
            break
    return Stack(fitted)


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


def search(
    X: Any, Y: Tensor, likelihood: Likelihood | None, fixed: Mapping[str, Any], kinds: Sequence[str], *, seed: int = 0,
    pseudo: int | None = None, candidates: Sequence[Sequence[dict[str, Any]]] | None = None,
    project: bool | None = None, progress: bool = False, checkpoint: Checkpoint | None = None,
) -> Search:  # fmt: skip
    """Choose ``Settings`` on held-out rows, one group of ``candidates`` (None: ``CANDIDATES``) after the other.

    ``X`` (N x F) are the labelled rows as they came, and ``kinds`` the feature maps to compare (``project`` as there).
    Models with at most ``SEARCH_PSEUDO`` pseudo-instances, or ``pseudo`` if that is less, are fitted to the rows that
    ``hold_out`` leaves, fold by fold. More rows bear a larger amplitude, a shorter length-scale and ``f_z``: where
    there are more than ``LARGE_ROWS``, so many say whether to go on that way, and compare the best with the best that
    has another kernel. What is in ``fixed`` is not searched. Several of those tried make a stack: together they are
    better than the best (``stack.member_weights``; all with its likelihood, if that learns nothing).
    Without rows to hold out, or ``candidates``, the settings stay as they start; Ctrl-C ends the search at the best so
    far. A ``likelihood`` of None leaves it to the settings.
    """
    candidates = CANDIDATES if candidates is None else candidates
    best = replace(Settings(features=kinds[0]), **fixed)
    settled = {*fixed, *(() if likelihood is None else ("B",))}
    project = is_wide(X) if project is None else project
    if X.shape[1] > relevance.FEATURES and not project:
        settled.add("relevance")
    most = LARGE_PSEUDO if pseudo is None else pseudo
    common: dict[str, Any] = {
        "likelihood": likelihood, "seed": seed, "project": project, "progress": progress, "checkpoint": checkpoint,
    }  # fmt: skip
    folds = [hold_out(len(Y), seed, fold) for fold in range(fold_count(len(Y)))]
    if not folds:
        return _untried(best, Y)
    # a search that sees few of many rows would choose smoother functions than these bear
    longest = 1.0 if len(Y) > LARGE_ROWS else np.inf
    maps = tuple({"features": kind} for kind in kinds)
    groups = (maps[1:], *candidates, maps)  # at last once more: another kernel may want another map
    wanted = (change for group in groups for change in group if change.get("lengthscale", 0.0) <= longest)
    changes = [{name: value for name, value in change.items() if name not in settled} for change in wanted]
    found = _climb(
        X, Y, best, [change for change in changes if change], folds, min(SEARCH_PSEUDO, most), section="search",
        given={"fixed": fixed, "kinds": tuple(kinds), "candidates": tuple(candidates)},
        members=None if len(Y) <= LARGE_ROWS else 1, **common,
    )  # fmt: skip
    if len(Y) <= LARGE_ROWS or found.interrupted or not candidates:
        return found
    further: dict[str, float] = {"amplitude": Times(2), "lengthscale": Times(0.7)}
    steps = [{name: factor} for name, factor in further.items() for _ in range(2)]
    steps += [{"curvature": 1.0}, *_rival(found)]
    steps = [step for step in steps if not settled & set(step)]
    folds = [hold_out(len(Y), seed, most=LARGE_ROWS)]
    large = _climb(
        X, Y, found.settings, steps, folds, min(LARGE_PSEUDO, most), section="larger search",
        given={"best": str(found.settings)}, members=LARGE_MEMBERS, **common,
    )  # fmt: skip
    kept, left = (found, large) if large.interrupted else (large, found)
    left.tried["weight"] = 0.0
    return replace(kept, tried=pd.concat([found.tried, large.tried], ignore_index=True))


def _untried(settings: Settings, Y: Tensor, interrupted: bool = False) -> Search:
    columns = [*asdict(settings), "score", "weight"]
    return Search(settings, pd.DataFrame(columns=columns), (Y[:0],), Y[:0], ((settings, 1.0),), interrupted)


def _rival(found: Search) -> list[dict[str, Any]]:
    """The change from the best settings to the kernel and length-scale of the best ones with another kernel, if any."""
    others = found.tried[(found.tried["kernel"] != found.settings.kernel) & (found.tried["B"] == found.settings.B)]
    if others.empty:
        return []
    rival = others.loc[others["score"].idxmax()]
    return [{"kernel": rival["kernel"], "lengthscale": Times(rival["lengthscale"] / found.settings.lengthscale)}]


def _climb(
    X: Any, Y: Tensor, best: Settings, changes: Sequence[Mapping[str, Any]],
    folds: Sequence[tuple[np.ndarray, np.ndarray]], pseudo: int, *, likelihood: Likelihood | None, seed: int,
    project: bool, progress: bool, checkpoint: Checkpoint | None, section: str, given: Mapping[str, Any],
    members: int | None,
) -> Search:  # fmt: skip
    """From ``best``, make each change that raises the score of the held-out rows of ``folds``; then weigh all that were
    tried, to keep at most so many ``members``.
    """
    Y_rest, Y_held = [Y[torch.as_tensor(rest)] for _, rest in folds], torch.cat([Y[held] for held, _ in folds])
    mapped: dict[tuple[str, bool], list[tuple[Tensor, Tensor]]] = {}
    tried: list[dict[str, Any]] = []
    found: dict[Settings, tuple[float, Tensor]] = {}
    training = (EPOCHS, LR, LEAST_STEPS, CURVED_EPOCHS, CURVED_STEPS, CURVED_LR, pseudo, relevance.TRAINING)
    memory = SearchMemory(checkpoint, section, X, Y, likelihood=likelihood, seed=seed, training=training, **given)
    stopped: list[bool] = []

    def features(settings: Settings) -> list[tuple[Tensor, Tensor]]:
        key = settings.features, settings.relevance
        if key not in mapped:
            parts = []
            for (held, rest), y in zip(folds, Y_rest, strict=True):
                made, x = map_features(X[rest], y, settings, seed, project=project)
                parts.append((x, made(X[held])))
            mapped[key] = parts
        return mapped[key]

    def predict(settings: Settings, x: Tensor, y: Tensor, x_held: Tensor) -> Tensor:
        posterior = fit_settings(x, y, settings, likelihood, pseudo=min(len(x), pseudo), seed=seed, spread=False)
        stopped.append(posterior.interrupted)
        return posterior.predict(x_held)

    def score(settings: Settings) -> float:
        if settings not in found and (kept := memory.get(settings)) is not None:
            found[settings] = kept
            tried.append(asdict(settings) | {"score": kept[0]})
        elif settings not in found:
            parts = []
            try:
                mapped_rows = features(settings)
            except KeyboardInterrupt:  # as a fit does that is cut short
                stopped.append(True)
                return -np.inf
            for (x, new), y in zip(mapped_rows, Y_rest, strict=True):
                parts.append(predict(settings, x, y, new))
                if any(stopped):
                    return -np.inf  # a fit that was cut short proves nothing, and ends the search
            z = torch.cat(parts)
            found[settings] = (held_out_score(Y_held, z), z)
            tried.append(asdict(settings) | {"score": found[settings][0]})
            memory.put(settings, found[settings][0], z)
        return found[settings][0]

    score(best)
    for change in tqdm(changes, disable=not progress, desc=section, unit="candidate"):
        made = {name: v * getattr(best, name) if isinstance(v, Times) else v for name, v in change.items()}
        candidate = replace(best, **made)
        if not any(stopped) and score(candidate) > score(best):
            best = candidate
    if best not in found:
        return _untried(best, Y, interrupted=True)
    shares = {best: 1.0}
    learns = likelihood is not None and any(parameter.requires_grad for parameter in likelihood.parameters())
    if members != 1 and not learns and not any(stopped) and np.isfinite(found[best][0]):
        alike = [settings for settings in found if settings.B == best.B]  # so that their z mean the same
        shared = likelihood_of(best) if likelihood is None else likelihood
        try:
            weights = stack.member_weights([found[settings][1] for settings in alike], Y_held, shared, members)
            shares = {settings: share for settings, share in zip(alike, weights.tolist(), strict=True) if share}
        except KeyboardInterrupt:
            stopped.append(True)
    ordered = tuple(sorted(shares.items(), key=lambda member: -member[1]))
    tried_weights = [shares.get(settings, 0.0) for settings in found]
    z = tuple(found[settings][1] for settings, _ in ordered)
    return Search(best, pd.DataFrame(tried).assign(weight=tried_weights), z, Y_held, ordered, any(stopped))
