"""The figures of ``report``: each takes numbers and a ``theme`` and returns a Matplotlib ``Figure``.

Names of labels are drawn as they are, never as formulas, and cut where they would take the room of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from esmc_pyro.figures import LIGHT, SIZE, Theme, dress, name_axes, plain_axes

__all__ = ["correlation_map", "head_and_tail", "latent_space", "reliability", "short", "training_curve"]

Floats = npt.NDArray[np.floating[Any]]
FINE = (
    200  # dots an inch of clouds of points, which are pixels inside the drawing: thousands of circles weigh megabytes
)


def short(name: str, length: int = 22) -> str:
    """The name, or its beginning and an ellipsis."""
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def _number(value: float, _: object = None) -> str:
    text = f"{value:,.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.3g}"
    return text.replace("-", "−")


def training_curve(history: pd.DataFrame, step: str, what: str, *, theme: Theme = LIGHT) -> Figure:
    """``history["elbo"]``, called ``what``, against the number of the ``step``."""
    figure, axes = plain_axes(theme)
    values = history["elbo"].to_numpy(dtype=float)
    marker = "o" if len(values) < 16 else ""
    axes.plot(np.arange(1, len(values) + 1), values, color=theme.accent, linewidth=2.2, marker=marker, markersize=4)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    name_axes(axes, theme, step, what)
    return figure


def reliability(bins: pd.DataFrame, *, theme: Theme = LIGHT) -> Figure:
    """``share`` of ones against mean ``probability``, with ``low`` and ``high``, a row a bin; the ``count``s below."""
    figure = Figure(figsize=(SIZE[0], 4.4), layout="constrained", facecolor="none")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1))
    for axes in (top, bottom):
        dress(axes, theme)
    top.plot([0, 1], [0, 1], color=theme.muted, linewidth=1.2, linestyle=(0, (4, 3)))
    errors = np.stack([bins["share"] - bins["low"], bins["high"] - bins["share"]])
    top.errorbar(
        bins["probability"], bins["share"], yerr=errors, color=theme.accent, linewidth=2, elinewidth=1.4, marker="o",
        markersize=5,
    )  # fmt: skip
    top.set_xlim(0, 1)
    top.set_ylim(0, 1.02)
    bottom.bar(bins["left"], bins["count"], width=0.9 / len(bins), align="edge", color=theme.accent, alpha=0.55)
    bottom.set_yscale("log")
    bottom.set_ylim(0.7, float(bins["count"].max()) * 3)
    bottom.yaxis.set_major_locator(FixedLocator([10.0**e for e in range(0, 12, 2)]))
    bottom.yaxis.set_minor_locator(NullLocator())
    bottom.yaxis.set_major_formatter(FuncFormatter(_number))
    name_axes(top, theme, "", "share of labels that are there")
    name_axes(bottom, theme, "predicted probability", "how many (logarithmic)")
    return figure


def head_and_tail(labels: pd.DataFrame, value: str, what: str, *, theme: Theme = LIGHT) -> Figure:
    """A dot a label: ``value`` against how often it is ``seen`` in training rows, and the running median."""
    figure, axes = plain_axes(theme)
    figure.set_dpi(FINE)
    shown = labels[labels[value].notna()].sort_values("seen", kind="stable")
    seen, values = shown["seen"].to_numpy(dtype=float), shown[value].to_numpy(dtype=float)
    axes.scatter(seen, values, s=26, color=theme.accent, alpha=0.65, linewidths=0, rasterized=len(shown) > 100)
    if len(shown) >= 12:
        groups = np.array_split(np.arange(len(shown)), min(8, len(shown) // 4))
        axes.plot(
            [float(np.median(seen[group])) for group in groups],
            [float(np.median(values[group])) for group in groups],
            color=theme.ink, linewidth=2,
        )  # fmt: skip
    if len(seen) and seen.min() < 1:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=-0.3)
    else:
        axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [t for e in range(6) for t in (10**e, 3 * 10**e) if low <= t <= high]
    # few ticks would be none where all labels are about as frequent
    axes.xaxis.set_major_locator(FixedLocator(ticks if len(ticks) > 1 else [float(seen.min()), float(seen.max())]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylim(top=1.02)
    name_axes(axes, theme, "training rows with the label", what)
    return figure


def latent_space(
    points: Floats, shares: Sequence[float], names: Sequence[str], carried: Floats, *, theme: Theme = LIGHT
) -> Figure:
    """Rows in two dimensions, ``points`` (n x 2), once for each name: rows that carry it stand out.

    ``carried`` (n x names) is 1 where a row has the label, ``shares`` are the parts of the variance along the two axes.
    """
    count = len(names)
    columns = min(2, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(SIZE[0], 2.35 * rows + 0.35), layout="constrained", facecolor="none", dpi=FINE)
    panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
    size = float(np.clip(6000 / max(1, len(points)), 3, 22))
    for panel, name, has in zip(panels, names, carried.T, strict=False):
        _frame(panel, theme)
        yes = has == 1
        panel.scatter(*points[~yes].T, s=size, color=theme.muted, alpha=0.4, linewidths=0, rasterized=True)
        panel.scatter(*points[yes].T, s=size * 1.3, color=theme.accent, alpha=0.85, linewidths=0, rasterized=True)
        panel.set_title(short(name, 26), color=theme.ink, fontsize=10, loc="left", parse_math=False)
    for panel in panels[count:]:
        panel.set_axis_off()
    second = f"second: {shares[1]:.0%}" if len(shares) > 1 else "vertical: chance only"
    figure.supxlabel(
        f"first direction: {shares[0]:.0%} of the variance, {second}", color=theme.muted, fontsize=9, x=0.02, ha="left"
    )
    return figure


def _frame(axes: Axes, theme: Theme) -> None:
    """Directions without a scale: a thin box and no ticks."""
    axes.set_facecolor("none")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(theme.grid)


def correlation_map(values: Floats, names: Sequence[str], *, theme: Theme = LIGHT) -> Figure:
    """Correlations (K x K; NaN is left blank) as a heat map; the diagonal is left out, the scale is -1 to 1."""
    count = len(names)
    figure = Figure(figsize=(SIZE[0], 0.9 + 0.18 * max(count, 8)), layout="constrained", facecolor="none", dpi=FINE)
    axes = figure.subplots()
    axes.set_facecolor("none")
    colours = LinearSegmentedColormap.from_list("correlation", [theme.bad, theme.paper, theme.accent])
    shown = np.where(np.eye(count, dtype=bool), np.nan, values)
    mesh = axes.pcolormesh(shown, cmap=colours, vmin=-1, vmax=1, rasterized=True)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks(np.arange(count) + 0.5)
    axes.set_yticklabels([short(name) for name in names], fontsize=8.5, color=theme.ink)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(length=0, pad=4)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, location="bottom", aspect=30, shrink=0.8, pad=0.02, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=theme.muted, labelsize=9, length=0)
    bar.ax.xaxis.set_major_formatter(FuncFormatter(_number))
    return figure
