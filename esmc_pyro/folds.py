"""Fits of one choice of settings to several folds at once, as the search makes them by the hundred.

Folds have equally many rows, and the same seed draws the same batches from them, so ``G`` folds take their steps
together: a step is a dozen products of stacked matrices, where ``default.fit_settings`` takes some hundred calls a
fold. The means are the same. With ``c_n = A(x_n) v'`` and ``z_n = c_n W + b + f_z(c_n)``, the gradient of the objective
``map`` by ``v`` is one product more::

    d/dv = v - sum_n g_n' A(x_n),    g_n = d ln p(y_n | z_n) / d c_n        v: L x M, A: N x M, g: N x L

The whitened features ``A``, which hold all the cubic work, are kept while only what comes after them changes.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from esmc_pyro import default
from esmc_pyro.cavity import cavity
from esmc_pyro.default import Settings
from esmc_pyro.inference.schedules import SCHEDULES
from esmc_pyro.label_sample import LabelSample
from esmc_pyro.models import Layer, Likelihood
from esmc_pyro.models.means import Linear
from esmc_pyro.objectives import FrozenFeatures
from esmc_pyro.randomness import seeded
from esmc_pyro.threads import few_threads


@dataclass
class _First:
    """The first layers of all folds, their rows, and whitened features of these, G x n x M; None beyond the memory."""

    layers: list[Layer]
    rows: Sequence[Tensor]
    whole: Tensor | None

    def features(self, rows: Tensor) -> Tensor:
        """``A`` of these rows of each fold, G x n x M."""
        if self.whole is not None:
            return self.whole.index_select(1, rows)
        return torch.stack([self.features_of(place, rows) for place in range(len(self.layers))])

    def features_of(self, place: int, rows: Tensor) -> Tensor:
        """``A`` of these rows of one fold, n x M."""
        if self.whole is not None:
            return self.whole[place].index_select(0, rows)
        return self.layers[place].features(self.rows[place][rows])

    def outputs(self, v: Tensor) -> Tensor:
        """``c`` of all rows, G x n x L."""
        if self.whole is not None:
            return self.whole @ v.mT
        return torch.stack([l.predict_whitened(x, one) for l, x, one in zip(self.layers, self.rows, v, strict=True)])


@dataclass
class _Fit:
    """The last layers of all folds, whose ``b`` is fitted, the likelihoods, and the means of ``v``: G x L x M of ``c``
    and G x K x M of ``f_z``, if there is one.
    """

    layers: list[Layer]
    likelihoods: list[Likelihood]
    v: Tensor
    v_z: Tensor | None = None
    cavity: Tensor | None = None  # of all rows (``cavity``), once it is needed: G x n x L

    @property
    def means(self) -> list[Linear]:
        """``c W + b`` of all folds."""
        return [cast(Linear, layer.mean) for layer in self.layers]


def _all_features(layers: Sequence[Layer], x: Sequence[Tensor]) -> Tensor | None:
    """``A(x)`` of all folds in one tensor, G x n x M."""
    made: Tensor | None = None
    for place, (layer, rows) in enumerate(zip(layers, x, strict=True)):
        part = FrozenFeatures(layer).whole(rows)
        if part is None or len(x) == 1:
            return None if part is None else part.unsqueeze(0)
        made = part.new_empty(len(x), *part.shape) if made is None else made
        made[place] = part
    return made


def _entries(Y: Tensor, rows: Tensor, labels: Tensor | None) -> Tensor:
    """Those of these rows and ``labels`` (None: all), in each fold: ``(G, N, K) -> (G, n, K)``."""
    return Y.index_select(1, rows) if labels is None else Y[:, rows.unsqueeze(1), labels]


class Folds:
    """Labels ``Y`` (G x n x K) of all folds, and how models are fitted to them, as in ``default.fit_settings``.

    What was fitted last is kept: the features of its first layers, and its means without ``f_z``, from which those with
    one go on.
    """

    def __init__(
        self, Y: Tensor, likelihood: Likelihood | None = None, *, pseudo: int | None = None,
        epochs: int | None = None, lr: float = default.LR, seed: int = 0,
    ) -> None:  # fmt: skip
        if likelihood is not None:
            likelihood.check_labels(Y.shape[2])
        self._Y = self._y = Y.to(torch.float32)  # as mapped features are
        self._known: Tensor | None = None
        if torch.isnan(Y).any():
            self._y, self._known = torch.nan_to_num(self._Y), ~torch.isnan(self._Y)
        self._likelihood, self._pseudo, self._epochs, self._lr, self._seed = likelihood, pseudo, epochs, lr, seed
        self._first: tuple[tuple[Any, ...], _First] | None = None
        self._plain: tuple[Settings, _Fit] | None = None
        absent = default.absent_labels(Y.shape[2], likelihood)
        self._sample = None if absent is None else LabelSample(Y.flatten(0, 1), absent)

    @cached_property
    def _directions(self) -> list[tuple[Tensor, Tensor]]:
        """Those of the labels of each fold, the same for all settings."""
        return [default.label_directions(y) for y in self._Y]

    @torch.no_grad()
    def predict(self, x: Sequence[Tensor], held: Sequence[Tensor], settings: Settings) -> Tensor:
        """Fit these settings to the mapped features ``x`` of each fold; ``z`` of those that it holds out, ``held``."""
        first = self._first_layers(x, settings)
        fit = self._fit_plain(first, settings.plain)
        if settings.curvature:
            fit = self._fit_curve(first, fit, settings)
        parts = []
        for place, (layer, rows) in enumerate(zip(first.layers, held, strict=True)):
            c = layer.predict_whitened(rows, fit.v[place])
            last, mean = fit.layers[place], fit.means[place]
            parts.append(mean(c) if fit.v_z is None else last.predict_whitened(c, fit.v_z[place]))
        return torch.cat(parts)

    def _first_layers(self, x: Sequence[Tensor], settings: Settings) -> _First:
        key = settings.kernel, settings.lengthscale
        if self._first is None or self._first[0] != key or not all(map(operator.is_, self._first[1].rows, x)):
            self._first = self._plain = None  # before the next are made: they may fill the memory
            L, M = len(self._directions[0][0]), default.pseudo_count(len(x[0]), self._pseudo)
            layers = [default.first_layer(rows, L, settings, M, self._seed) for rows in x]
            self._first = key, _First(layers, x, _all_features(layers, x))
        return self._first[1]

    def _fit_plain(self, first: _First, settings: Settings) -> _Fit:
        """The fit without ``f_z``."""
        if self._plain is None or self._plain[0] != settings:
            self._plain = None
            likelihood = default.likelihood_of(settings) if self._likelihood is None else self._likelihood
            G, N, _ = self._Y.shape
            L, M = first.layers[0].outputs, first.layers[0].pseudo_count
            layers = [
                default.linear_layer(y, directions, settings, likelihood)
                for y, directions in zip(self._Y, self._directions, strict=True)
            ]
            fit = _Fit(layers, [copy.deepcopy(likelihood) for _ in layers], self._Y.new_zeros(G, L, M))
            epochs = default.epoch_count(N, default.EPOCHS, default.LEAST_STEPS)
            self._train(first, fit, epochs if self._epochs is None else self._epochs, self._lr)
            self._plain = settings, fit
        return self._plain[1]

    def _fit_curve(self, first: _First, plain: _Fit, settings: Settings) -> _Fit:
        """The same gone on with ``f_z``; ``plain`` stays as it is."""
        G, N, K = self._Y.shape
        inputs = self._cavity(first, plain) if settings.cavity else None
        layers = [
            default.curved_layer(c, copy.deepcopy(mean), settings, self._seed)
            for mean, c in zip(plain.means, first.outputs(plain.v) if inputs is None else inputs, strict=True)
        ]
        v_z = self._Y.new_zeros(G, K, layers[0].pseudo_count)
        v = plain.v.clone() if inputs is None else plain.v  # which stays
        fit = _Fit(layers, copy.deepcopy(plain.likelihoods), v, v_z)
        self._train(first, fit, default.curve_epochs(N, settings), default.CURVED_LR, inputs)
        return fit

    def _cavity(self, first: _First, plain: _Fit) -> Tensor:
        if plain.cavity is None:
            parts = [
                cavity(partial(first.features_of, place), v, mean, likelihood, y)
                for place, (v, mean, likelihood, y) in enumerate(
                    zip(plain.v, plain.means, plain.likelihoods, self._Y, strict=True)
                )
            ]
            plain.cavity = torch.stack(parts)
        return plain.cavity

    def _draw(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The labels that a step looks at in these rows of all folds, and how many each stands for; None for all."""
        if self._sample is None:
            return None, None
        G, N, _ = self._Y.shape
        return self._sample((rows + N * torch.arange(G).unsqueeze(1)).flatten())

    def _train(self, first: _First, fit: _Fit, epochs: int, lr: float, inputs: Tensor | None = None) -> None:
        """Move the means of ``fit`` to the most probable ones, as ``fit_svi`` does with the objective ``map``.

        With ``inputs`` (G x N x L) these are the ``c`` of all rows, and ``v`` stays.
        """
        N, v, v_z, likelihoods = self._Y.shape[1], fit.v, fit.v_z, fit.likelihoods
        W = torch.stack([mean.weight.mT for mean in fit.means]).mT  # of a label side by side: some are taken from it
        b = torch.stack([mean.offset for mean in fit.means]).unsqueeze(1)
        for likelihood, y in zip(likelihoods, self._y, strict=True):  # some make their parameters at the first call
            likelihood.log_prob(y[:2], torch.zeros_like(y[:2]))
        learned = [p for likelihood in likelihoods for p in likelihood.parameters() if p.requires_grad]
        further = [p.requires_grad_() for p in (b, *(() if v_z is None else (v_z,)), *learned)]
        factors = [layer.factor() for layer in fit.layers]
        curved = (
            None if inputs is None else torch.stack([l.features(c) for l, c in zip(fit.layers, inputs, strict=True)])
        )

        def slopes(rows: Tensor, c: Tensor) -> Sequence[Any]:
            """Of ``sum_n ln p(y_n | z_n)`` by ``c``, if that moves, and what is learned further."""
            labels, weights = self._draw(rows)
            z = torch.baddbmm(b, c, W) if labels is None else torch.baddbmm(b[..., labels], c, W.mT[:, labels].mT)
            if v_z is not None:
                if curved is None:
                    a = torch.stack([l.features(x, f) for l, x, f in zip(fit.layers, c, factors, strict=True)])
                else:
                    a = curved.index_select(1, rows)
                z = z + a @ (v_z if labels is None else v_z[:, labels]).mT
            y = _entries(self._y, rows, labels)
            if learned:
                end = torch.stack([l.log_prob(*pair) for l, *pair in zip(likelihoods, y, z, strict=True)])
                by_end = torch.ones_like(end)
            else:  # n x K, as likelihoods know it
                end, by_end = z, likelihoods[0].slope(y.flatten(0, 1), z.flatten(0, 1)).view_as(z)
            if self._known is not None:
                by_end = torch.where(_entries(self._known, rows, labels), by_end, by_end.new_zeros(()))
            if weights is not None:
                by_end = by_end * weights.to(by_end.dtype)
            moved = [c, *further] if c.requires_grad else further
            return torch.autograd.grad(end, moved, by_end, allow_unused=True)

        batches = -(-N // default.batch_size(N))
        stepper = torch.optim.Adam([v, *further] if inputs is None else further, lr=lr, fused=True)
        scheduler = SCHEDULES["one_cycle"](stepper, lr, epochs * batches)
        with seeded(self._seed), few_threads(N / batches * max(v.numel(), W.numel())):
            for _ in range(epochs):
                for rows in torch.randperm(N).tensor_split(batches):
                    if inputs is None:
                        a = first.features(rows)
                        with torch.enable_grad():
                            by_c, *others = slopes(rows, (a @ v.mT).requires_grad_())
                        # of the objective per row: the prior's share and that of the labels, as many as the batch has
                        v.grad = torch.baddbmm(v, by_c.mT, a, beta=1 / N, alpha=-1 / len(rows))
                    else:
                        with torch.enable_grad():
                            others = [*slopes(rows, inputs.index_select(1, rows))]
                    for parameter, slope in zip(further, others, strict=True):
                        if slope is not None:  # a fused step takes numbers in the order in which they lie in memory
                            parameter.grad = torch.empty_like(parameter).copy_(slope / -len(rows))
                    if v_z is not None and v_z.grad is not None:
                        v_z.grad.add_(v_z, alpha=1 / N)
                    stepper.step()
                    scheduler.step()
        v.grad = None  # v is kept, this need not be
        for mean, offset in zip(fit.means, b.detach(), strict=True):
            mean.offset.data = offset.squeeze(0)
