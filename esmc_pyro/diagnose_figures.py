"""The figures of ``diagnose``: each takes numbers and a ``theme`` and returns a Matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from esmc_pyro.figures import LIGHT, SIZE, Theme, dress, name_axes, plain_axes
from esmc_pyro.report_figures import short

__all__ = ["forest", "label_counts", "label_shares", "pareto", "ranks", "trace"]

Floats = npt.NDArray[np.floating[Any]]
BINS = 20  # of a rank plot


def _rows(count: int, theme: Theme, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure of ``count`` axes, one below the other."""
    figure = Figure(figsize=(SIZE[0], height * count), layout="constrained", facecolor="none")
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for one in axes:
        dress(one, theme)
    return figure, list(axes)


def _colours(theme: Theme, count: int) -> Any:
    return mpl.colormaps[theme.sequence](np.linspace(*theme.span, max(count, 2))[:count])


def _title(axes: Axes, theme: Theme, text: str) -> None:
    axes.set_title(short(text, 40), color=theme.ink, fontsize=10, loc="left", parse_math=False)


def trace(draws: Floats, names: Sequence[str], *, theme: Theme = LIGHT) -> Figure:
    """Draws one after the other, a line a chain: ``draws`` is quantities x chains x draws."""
    figure, rows = _rows(len(names), theme, 1.35)
    for axes, values, name in zip(rows, draws, names, strict=True):
        for chain, colour in zip(values, _colours(theme, len(values)), strict=True):
            axes.plot(chain, color=colour, linewidth=0.7, rasterized=True)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        _title(axes, theme, name)
    rows[-1].set_xlabel("draw", color=theme.ink, fontsize=11)
    return figure


def forest(quantiles: Floats, names: Sequence[str], *, theme: Theme = LIGHT) -> Figure:
    """Intervals side by side: ``quantiles`` is quantities x 5, the 5, 25, 50, 75 and 95% points of each."""
    figure = Figure(figsize=(SIZE[0], 0.6 + 0.27 * len(names)), layout="constrained", facecolor="none")
    axes = figure.subplots()
    dress(axes, theme)
    places = np.arange(len(names))[::-1]
    axes.hlines(places, quantiles[:, 0], quantiles[:, 4], color=theme.accent, linewidth=1.4)
    axes.hlines(places, quantiles[:, 1], quantiles[:, 3], color=theme.accent, linewidth=4.5)
    axes.plot(quantiles[:, 2], places, "o", color=theme.ink, markersize=3.5)
    axes.set_yticks(places, [short(name, 26) for name in names], parse_math=False)
    axes.set_xlabel("z", color=theme.ink, fontsize=11)
    return figure


def ranks(draws: Floats, names: Sequence[str], *, theme: Theme = LIGHT) -> Figure:
    """How the draws of each chain rank among those of all: flat if the chains agree. ``draws`` as in ``trace``."""
    figure, rows = _rows(len(names), theme, 1.35)
    for axes, values, name in zip(rows, draws, names, strict=True):
        order = values.ravel().argsort().argsort().reshape(values.shape)
        expected = values.shape[1] / BINS
        edges = np.linspace(0, values.size, BINS + 1)
        for chain, colour in zip(order, _colours(theme, len(order)), strict=True):
            axes.stairs(np.histogram(chain, edges)[0], edges, color=colour, linewidth=1.5)
        axes.axhline(expected, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(0, None)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        _title(axes, theme, name)
    rows[-1].set_xlabel("rank among all draws", color=theme.ink, fontsize=11)
    return figure


def label_counts(observed: Floats, replicated: Floats, *, theme: Theme = LIGHT) -> Figure:
    """How many instances have so many labels: in the data (n,), and in each replica of them (draws x n)."""
    figure, axes = plain_axes(theme)
    low = int(np.floor(min(observed.min(), replicated.min())))
    high = int(np.ceil(max(observed.max(), replicated.max())))
    edges = np.arange(low - 0.5, high + 1.5)
    middle = np.arange(low, high + 1)
    counts = np.stack([np.histogram(replica, edges)[0] for replica in replicated])
    bottom, half, top = np.quantile(counts, [0.05, 0.5, 0.95], axis=0)
    axes.fill_between(
        middle, bottom, top, step="mid", color=theme.accent, alpha=0.25, linewidth=0, label="replicas, 90%"
    )
    axes.step(middle, half, where="mid", color=theme.accent, linewidth=1.6, label="their median")
    axes.plot(middle, np.histogram(observed, edges)[0], "o", color=theme.ink, markersize=4.5, label="data")
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.legend(frameon=False, labelcolor=theme.ink, fontsize=10)
    name_axes(axes, theme, "labels of an instance", "instances")
    return figure


def label_shares(observed: Floats, replicated: Floats, *, theme: Theme = LIGHT) -> Figure:
    """The share of instances that carry each label, replicated (draws x K) against observed (K,)."""
    figure, axes = plain_axes(theme)
    bottom, half, top = np.quantile(replicated, [0.05, 0.5, 0.95], axis=0)
    limit = float(max(observed.max(), top.max(), 1e-3)) * 1.05
    axes.plot([0, limit], [0, limit], color=theme.muted, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.vlines(observed, bottom, top, color=theme.accent, linewidth=1.4)
    axes.plot(observed, half, "o", color=theme.accent, markersize=4)
    name_axes(axes, theme, "share in the data", "share in the replicas, 90%")
    return figure


def pareto(k: Floats, good: float, *, theme: Theme = LIGHT) -> Figure:
    """Pareto k of every term of LOO, smallest first, and the line above which it is not to be trusted."""
    figure, axes = plain_axes(theme)
    finite = np.sort(np.where(np.isfinite(k), k, np.nanmax(k[np.isfinite(k)], initial=1.0)))
    axes.plot(np.linspace(0, 1, len(finite)), finite, ".", color=theme.accent, markersize=3, rasterized=True)
    axes.axhline(good, color=theme.bad, linewidth=1.2, linestyle=(0, (4, 3)))
    name_axes(axes, theme, "share of the terms", "Pareto k")
    return figure
