"""The default for real work: ESMC with label-coupled layers, its settings chosen on held-out rows (``search``).

Two layers, ``c`` as wide as there are labels (at most ``WIDTH``)::

    c = f_c(x)                    a rough kernel on mapped features, as many pseudo-instances as memory allows
    z = c W + b + f_z(c)          W'W couples the labels (``rules.label_coupling``), b holds their frequencies

``W`` carries what is linear in the label space, ``f_z`` (RBF) what is not. Both layers' kernels are frozen, so fitting
is matrix products (``objectives.FrozenFeatures``). The means are the most probable ones (objective ``map``), those of
``f_z`` together with ``c`` or, given ``c``, by what ``c`` would be without each row's own labels (``cavity``). The
spread is Laplace's. A few such fits make a ``stack``.

Sizes, by the rows N and labels K:

====================  ==================================================================================
M, pseudo-instances   N, at most ``PSEUDO`` and what keeps N M within ``FEATURES``; ``CURVED_PSEUDO`` of f_z
L, width of c         K, at most ``WIDTH``
rows a batch          N / 4, from 32 to 512
epochs                ``EPOCHS``, or as many as make ``LEAST_STEPS`` steps; f_z: ``CURVED_EPOCHS`` and
                      ``CURVED_STEPS``, by itself ``EPOCHS`` and ``CAVITY_STEPS``
labels a step         K; above ``MANY_LABELS`` those of its rows and ``ABSENT`` others (``label_sample``)
====================  ==================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from esmc_pyro.cavity import cavity
from esmc_pyro.feature_map import FeatureMap
from esmc_pyro.guides import DoublyStochasticGuide
from esmc_pyro.inference.checkpoint import Checkpoint, Section
from esmc_pyro.inference.svi import fit_svi
from esmc_pyro.models import EEOE, ESMC, MPU, Bernoulli, Layer, Likelihood, NotPositiveDefiniteError, make_kernel, rules
from esmc_pyro.models.means import Linear
from esmc_pyro.models.unused import unused
from esmc_pyro.objectives import MAP, FrozenFeatures, laplace_spread
from esmc_pyro.posterior import Posterior
from esmc_pyro.relevance import feature_weights
from esmc_pyro.search_memory import key_of
from esmc_pyro.stack import Member, Stack
from esmc_pyro.tensor_file import fingerprint
from esmc_pyro.threads import few_threads

WIDTH = 1024  # latent dimensions at most
FEATURES = FrozenFeatures.BUDGET  # numbers in the first layer's features at most
PSEUDO = 20_000  # pseudo-instances at most: a Cholesky factor of this size takes minutes
EPOCHS, LR = 10, 0.1
CURVED_PSEUDO, CURVED_EPOCHS, CURVED_LR = 300, 5, 0.02
LEAST_STEPS, CURVED_STEPS, CAVITY_STEPS = 100, 80, 150  # few rows are few batches: more epochs then
MANY_LABELS, ABSENT = 4096, 2048  # of more labels, a step looks at those of its rows and at so many others


@dataclass(frozen=True)
class Settings:
    """What the held-out rows choose.

    ``features`` is the kind of feature map; ``relevance`` whether each feature has a weight (``relevance.py``), learned
    in a first phase at few rows; ``lengthscale`` is in medians of the kernel's distance between rows; ``amplitude``
    is the prior standard deviation of ``z``, ``coupling`` the strength of ``rules.label_coupling``, ``curvature`` the
    prior standard deviation of ``f_z``, the part of ``z`` that is not linear in ``c``, and ``curve_lengthscale`` its
    length-scale, in medians of the distance between the ``c`` of rows; with ``cavity`` it is fitted to what these would
    be without the row's own labels. ``B`` is that of ``EEOE``, ``miss`` the
    ``c`` of ``MPU``, the share of suitable labels that are not written down; one of them at most, ``Bernoulli`` with
    neither. They count where the user names no likelihood.
    """

    features: str = "identity"
    relevance: bool = False
    kernel: str = "matern12"
    lengthscale: float = 0.7
    amplitude: float = 4.0
    coupling: float = 0.8
    curvature: float = 0.0
    curve_lengthscale: float = 1.0
    B: float = 1.0
    miss: float = 0.0
    cavity: bool = False

    @property
    def link(self) -> tuple[float, float]:
        """What makes its likelihood."""
        return self.B, self.miss

    @property
    def second_layer(self) -> str:
        """What the second layer was chosen to be."""
        if not self.curvature:
            return "c W + b, no f_z"
        return "c W + b + f_z(c)" + (", f_z by rows without their own labels" if self.cavity else "")

    @property
    def plain(self) -> Settings:
        """The same without ``f_z``."""
        return replace(self, curvature=0.0, curve_lengthscale=1.0, cavity=False)


def pseudo_count(N: int, named: int | None = None) -> int:
    """``M``: every row, up to ``PSEUDO`` and to what keeps the N x M features within ``FEATURES`` numbers; or as many
    as the user ``named``, if there are so many rows.
    """
    return max(1, min(N, PSEUDO, FEATURES // N)) if named is None else min(N, named)


def pseudo_rows(N: int, M: int, seed: int) -> npt.NDArray[np.intp]:
    """Which ``M`` of ``N`` rows are the pseudo-instances, in the order of the rows."""
    return np.sort(rules.choose_pseudo_rows(N, M, seed))


def likelihood_of(settings: Settings) -> Likelihood:
    """``EEOE(B)``, ``MPU(miss)``, or ``Bernoulli`` for ``B = 1`` and ``miss = 0``."""
    if settings.B > 1 and settings.miss > 0:
        raise ValueError(f"B must be 1 where labels are missed at random; got {settings.B} with miss={settings.miss}")
    if settings.miss > 0:
        return MPU(settings.miss)
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


def label_directions(Y: Tensor) -> tuple[Tensor, Tensor]:
    """What couples the labels ``Y`` (N x K), as many directions as ``c`` has: the same for all settings."""
    return rules.label_directions(Y.to(torch.float32), min(Y.shape[1], WIDTH))


def build(
    X: Tensor, Y: Tensor, settings: Settings, likelihood: Likelihood, pseudo: int, seed: int,
    directions: tuple[Tensor, Tensor] | None = None,
) -> ESMC:  # fmt: skip
    """The model for mapped features ``X`` ((N + I) x F) and labels ``Y`` (N x K), still without ``f_z``.

    ``directions`` are the labels' ``label_directions``, if they are at hand.
    """
    directions = label_directions(Y) if directions is None else directions
    last = linear_layer(Y.to(X.dtype), directions, settings, likelihood)
    layers = [first_layer(X, len(directions[0]), settings, pseudo, seed), last]
    return ESMC(layers, copy.deepcopy(likelihood))  # its parameters, if it has any, are this model's


def first_layer(X: Tensor, L: int, settings: Settings, pseudo: int, seed: int) -> Layer:
    """``c = f_c(x)``, of width ``L``, with pseudo-instances at ``pseudo`` rows of ``X``."""

    def scale(norm: int) -> float:
        return settings.lengthscale * rules.lengthscale_from_distances(X, "authors", seed=seed, norm=norm)

    kernel = make_kernel(copy.deepcopy(settings.kernel), X.shape[1], lengthscale=scale)
    return Layer("c", kernel, X[pseudo_rows(len(X), pseudo, seed)], L, fitc=True)


def linear_layer(
    Y: Tensor, directions: tuple[Tensor, Tensor], settings: Settings, likelihood: Likelihood
) -> Layer:  # fmt: skip
    """``z = c W + b`` for labels ``Y`` (N x K), coupled by the ``rules.label_directions`` of ``c``'s width."""
    weight = settings.amplitude * rules.label_coupling(directions, settings.coupling).to(Y.dtype)
    offset = likelihood.best_constant(rules.label_frequencies(Y)).to(weight.dtype)
    # one pseudo-instance of next to no variance stands for f_z = 0
    return _last_layer(weight.new_zeros(1, len(weight)), Linear(weight, offset), lengthscale=1.0, variance=1e-8)


def curved_layer(c: Tensor, mean: Linear, settings: Settings, seed: int) -> Layer:
    """``z = mean(c) + f_z(c)``, pseudo-instances at some of the ``c`` of labelled rows (N x L)."""
    rows = rules.choose_pseudo_rows(len(c), min(len(c), CURVED_PSEUDO), seed)
    scale = settings.curve_lengthscale * rules.lengthscale_from_distances(c, "authors", seed=seed)
    return _last_layer(c[rows], mean, scale, settings.curvature**2)


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


def curve_epochs(N: int, settings: Settings) -> int:
    """Epochs of ``f_z``, together with ``c`` or by itself."""
    return epoch_count(N, *((EPOCHS, CAVITY_STEPS) if settings.cavity else (CURVED_EPOCHS, CURVED_STEPS)))


def absent_labels(K: int, likelihood: Likelihood | None) -> int | None:
    """How many labels that do not occur in a batch a step looks at, None for all; a ``likelihood`` that is not the same
    for each label sees all of them (None is the one of the settings, which is).
    """
    return ABSENT if K > MANY_LABELS and (likelihood is None or likelihood.is_alike) else None


def fit_means(
    guide: DoublyStochasticGuide, X: Tensor, Y: Tensor, *, objective: str | MAP = "map", epochs: int | None = None,
    lr: float = LR, seed: int = 0, progress: bool = False, checkpoint: Section | None = None,
) -> Posterior:  # fmt: skip
    """Move the guide's means to the most probable ones; ``epochs=None`` is ``EPOCHS``, or ``LEAST_STEPS`` if more."""
    X = X[: len(Y)]  # unlabelled rows say nothing about the means
    rows = batch_size(len(X))
    largest = max(
        layer.outputs * max(layer.pseudo_count, layer.pseudo_instances.shape[1]) for layer in guide.model.layers
    )
    with few_threads(rows * largest):
        return fit_svi(
            guide.model, X, Y, guide=guide, objective=objective, batch_size=rows, lr=lr, seed=seed,
            epochs=epoch_count(len(X), EPOCHS, LEAST_STEPS) if epochs is None else epochs,
            optimizer=partial(torch.optim.Adam, fused=True), clip=None, progress=progress, checkpoint=checkpoint,
        )  # fmt: skip


def start(model: ESMC, X: Tensor, Y: Tensor) -> DoublyStochasticGuide:
    """The guide of the default: all means at zero, one spread for all outputs."""
    return DoublyStochasticGuide(model, X, Y, covariance="common", start="zero", scale=1e-3)


def curve(
    posterior: Posterior, X: Tensor, Y: Tensor, settings: Settings, objective: MAP, seed: int, progress: bool,
    checkpoint: Checkpoint | None = None, name: str = "fit",
) -> Posterior:  # fmt: skip
    """Add ``f_z`` to a fit without it, made with this ``objective``: ``c`` moves on with it, or stays (``cavity``).

    Where Ctrl-C ends the work before there is an ``f_z``, the fit without it is what there is.
    """
    features = objective.features
    assert features is not None
    model, v = posterior.model, posterior.guide.v_loc(posterior.model.layers[0]).detach()
    mean, x = model.layers[1].mean, X[: len(Y)]
    section = None if checkpoint is None else checkpoint.section(f"{name}, f_z")
    options: dict[str, Any] = {
        "epochs": curve_epochs(len(Y), settings), "lr": CURVED_LR, "seed": seed, "progress": progress,
        "checkpoint": section,
    }  # fmt: skip
    if settings.cavity:
        try:
            c = _cavity(
                posterior, x, Y, features, None if checkpoint is None else checkpoint.section(f"{name}, cavity")
            )
        except KeyboardInterrupt:
            posterior.interrupted = True
            return posterior
        alone = ESMC([curved_layer(c, mean, settings, seed)], model.likelihood)
        given = MAP(features=FrozenFeatures(alone.layers[0]), absent=objective.absent)
        fitted = fit_means(start(alone, c, Y), c, Y, objective=given, **options)
        model.layers[1], model.likelihood = unused(alone.layers[0]), unused(alone.likelihood)
        guide = start(model, X, Y)
        guide.c_v_loc.data, guide.z_v_loc.data = v, fitted.guide.v_loc(alone.layers[0]).detach()
        fitted = Posterior(model, guide, fitted.history, fitted.interrupted)
    else:
        with torch.no_grad():
            c = torch.cat([features(x, rows) @ v.mT for rows in torch.arange(len(Y)).split(4096)])
        model.layers[1] = curved_layer(c, mean, settings, seed)
        guide = start(model, X, Y)
        guide.c_v_loc.data = v
        fitted = fit_means(guide, X, Y, objective=objective, **options)
    fitted.history["seconds"] += posterior.history["seconds"].iloc[-1]
    fitted.history["epoch"] += posterior.history["epoch"].iloc[-1]
    fitted.history = pd.concat([posterior.history, fitted.history], ignore_index=True)
    return fitted


def _cavity(posterior: Posterior, x: Tensor, Y: Tensor, features: FrozenFeatures, section: Section | None) -> Tensor:
    """``cavity`` of a fit without ``f_z``; kept, since another number of threads would round it otherwise."""
    model = posterior.model
    v = posterior.guide.v_loc(model.layers[0]).detach()
    origin = {} if section is None else {"v": fingerprint(v), "X": fingerprint(x), "Y": fingerprint(Y)}
    kept = None if section is None else section.get(origin)
    if kept is not None:
        return kept[1]["c"]
    c = cavity(partial(features, x), v, model.layers[1].mean, model.likelihood, Y)
    if section is not None:
        section.put(origin, {}, {"c": c})
    return c


def fit_settings(
    X: Tensor, Y: Tensor, settings: Settings, likelihood: Likelihood | None = None, *, pseudo: int | None = None,
    epochs: int | None = None, lr: float = LR, seed: int = 0, spread: bool = True, progress: bool = False,
    checkpoint: Checkpoint | None = None, name: str = "fit", directions: tuple[Tensor, Tensor] | None = None,
) -> Posterior:  # fmt: skip
    """Fit the model of these settings to mapped features ``X`` ((N + I) x F) and labels ``Y`` (N x K).

    ``epochs`` and ``lr`` are those of ``c``; ``f_z`` has its own. ``spread=False`` leaves out Laplace's spread, a pass
    over all features that the means do not need. A ``likelihood`` of None is the one of the settings. ``name`` is that
    of the fit in the ``checkpoint``; ``directions`` as in ``build``.
    """
    absent = absent_labels(Y.shape[1], likelihood)
    likelihood = likelihood_of(settings) if likelihood is None else likelihood
    section = None if checkpoint is None else checkpoint.section(name)
    model = build(X, Y, settings, likelihood, pseudo_count(len(X), pseudo), seed, directions)
    guide = start(model, X, Y)
    guide.z_v_loc.requires_grad_(False)  # f_z = 0
    features = FrozenFeatures(model.layers[0])
    objective = MAP(features=features, absent=absent)
    posterior = fit_means(
        guide, X, Y, objective=objective, epochs=epochs, lr=lr, seed=seed, progress=progress, checkpoint=section
    )
    if settings.curvature and not posterior.interrupted:
        posterior = curve(posterior, X, Y, settings, objective, seed, progress, checkpoint, name)
    if spread:
        try:
            laplace_spread(posterior.model, posterior.guide, X, Y, features=features)
        except KeyboardInterrupt:  # the means are there
            posterior.interrupted = True
    return posterior


def fit_stack(
    X: Any, Y: Tensor, members: Sequence[tuple[Settings, float]], likelihood: Likelihood | None = None, *,
    seed: int = 0, project: bool | None = None, checkpoint: Checkpoint | None = None, **options: Any,
) -> Stack:  # fmt: skip
    """Fit ``members``, settings with their weights, to features ``X`` ((N + I) x F) as they came and labels ``Y``.

    ``project`` as in ``FeatureMap.from_data``; ``options`` are ``fit_settings``'s. Ctrl-C leaves out the members that
    are not fitted by then, but for the first; one whose kernel matrix has no Cholesky factor with all rows is left out
    too, unless none would be left.
    """
    fitted: list[Member] = []
    directions: tuple[Tensor, Tensor] | None = None
    maps: dict[tuple[str, bool], tuple[FeatureMap, Tensor]] = {}
    for settings, weight in members:
        key, posterior = (settings.features, settings.relevance), None
        try:
            if key not in maps:
                maps[key] = map_features(X, Y, settings, seed, project=project, checkpoint=checkpoint)
            directions = label_directions(Y) if directions is None else directions
            posterior = fit_settings(
                maps[key][1], Y, settings, likelihood, seed=seed, checkpoint=checkpoint,
                name=f"fit {key_of(settings)}", directions=directions, **options,
            )  # fmt: skip
        except KeyboardInterrupt:
            if not fitted:
                raise
        except NotPositiveDefiniteError:
            if not fitted and settings == members[-1][0]:
                raise
            continue
        cut_short = posterior is None or posterior.interrupted
        if posterior is not None and not (fitted and cut_short):
            fitted.append(Member(weight, maps[key][0], posterior, settings))
        if cut_short:
            fitted[0].posterior.interrupted = True
            break
    return Stack(fitted)
