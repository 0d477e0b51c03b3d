"""The figures of the reports: each is a function that returns a Matplotlib ``Figure``; ``embed`` puts one into a page.

Figures are made without pyplot, so nothing is kept between calls and no display is needed. ``theme`` is ``LIGHT`` or
``DARK``: a page draws both and lets the reader's settings choose.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy import stats

from esmc_pyro.models import EEOE, MPU

if TYPE_CHECKING:
    from esmc_pyro.sbc import SBC

__all__ = [
    "DARK",
    "LIGHT",
    "Suggestion",
    "Theme",
    "elbo_curve",
    "embed",
    "label_probability",
    "latent_map",
    "picture",
    "rank_histograms",
    "suggestions",
]


@dataclass(frozen=True)
class Theme:
    """Colours of a figure. Curves are drawn on a transparent ground, picture sheets on ``paper``."""

    paper: str
    ink: str
    muted: str
    grid: str
    accent: str
    good: str
    bad: str
    sequence: str  # a Matplotlib colour map for ordered curves ...
    span: tuple[float, float]  # ... and the part of it that stands out from the paper


LIGHT = Theme("#ffffff", "#1d2733", "#5a6673", "#dfe4ea", "#1f5fbf", "#17713f", "#b3261e", "Blues", (0.4, 1.0))
DARK = Theme("#14181d", "#e6eaef", "#9aa5b1", "#323a44", "#7fb2ff", "#6fd39a", "#ff8f86", "Blues", (0.75, 0.1))

# 4.8 inches are 346 points: on a phone a figure shrinks little and its text stays legible
SIZE = (4.8, 3.7)


@dataclass(frozen=True)
class Suggestion:
    """A label that the model suggests: its name, its suitability in [0, 1], and whether it is true."""

    label: str
    suitability: float
    true: bool


def plain_axes(theme: Theme) -> tuple[Figure, Axes]:
    """An empty figure of the usual size, and its axes in the colours of ``theme``."""
    figure = Figure(figsize=SIZE, layout="constrained", facecolor="none")
    axes = figure.subplots()
    dress(axes, theme)
    return figure, axes


def dress(axes: Axes, theme: Theme) -> None:
    """Give axes the house look: no box, a faint grid, quiet ticks."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.muted)
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted, labelsize=10, length=0, pad=6)


def name_axes(axes: Axes, theme: Theme, x: str, y: str) -> None:
    """``x`` below the axes, ``y`` above them."""
    axes.set_xlabel(x, color=theme.ink, fontsize=11)
    # a caption above the axis is read without turning the head
    axes.set_title(y, color=theme.ink, fontsize=11, loc="left")


def elbo_curve(history: pd.DataFrame, *, theme: Theme = LIGHT) -> Figure:
    """The ELBO of each epoch; ``history`` has the columns ``epoch`` and ``elbo``."""
    figure, axes = plain_axes(theme)
    axes.plot(history["epoch"], history["elbo"], color=theme.accent, linewidth=2.2)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace("-", "−")))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    name_axes(axes, theme, "epoch", "ELBO (nats)")
    return figure


def label_probability(
    experts: Sequence[int] = (1, 2, 5, 10, 50), removal: float = 0.5, *, theme: Theme = LIGHT
) -> Figure:
    """``P(y = 1)`` against suitability: the paper's EEOE for each number of ``experts``, and MPU with rate ``removal``.

    Every curve is the likelihood's own ``prob``, taken at the ``z`` that has the suitability of the abscissa.
    """
    figure, axes = plain_axes(theme)
    suitability = torch.linspace(1e-4, 1 - 1e-4, 400, dtype=torch.float64)
    z = torch.logit(suitability)
    colours = mpl.colormaps[theme.sequence](np.linspace(*theme.span, len(experts)))
    for B, colour in zip(experts, colours, strict=True):
        axes.plot(suitability, EEOE(B).prob(z), color=colour, linewidth=2.2, label=f"B = {B}")
    axes.plot(
        suitability,
        MPU(removal).prob(z),
        color=theme.bad,
        linewidth=2,
        linestyle=(0, (4, 2)),
        label=f"MPU, c = {removal:g}",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, labelcolor=theme.ink, fontsize=10, loc="upper left", borderaxespad=0.2)
    name_axes(axes, theme, "suitability σ(λz)", "P(y = 1)")
    return figure


def rank_histograms(
    results: Mapping[str, SBC], quantities: Sequence[str] | None = None, *, theme: Theme = LIGHT
) -> Figure:
    """Histograms of ranks (``sbc.SBC``): a row for each named result, a column for each of ``quantities`` (None: all).

    The band holds 99 in 100 bars of an exact posterior, each by itself (binomial); the line is what is expected. A U is
    a posterior that is too narrow, a hill one that is too wide, a slope one that is shifted.
    """
    names = list(quantities or next(iter(results.values())).quantities)
    size = (0.6 + 1.75 * len(names), 0.5 + 1.35 * len(results))
    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    grid = figure.subplots(len(results), len(names), squeeze=False)
    for axes, quantity in zip(grid[0], names, strict=True):
        axes.set_title(quantity, color=theme.ink, fontsize=10, loc="left", parse_math=False)
    for axes_row, (title, result) in zip(grid, results.items(), strict=True):
        p_values = result.p_values()
        for axes, quantity in zip(axes_row, names, strict=True):
            dress(axes, theme)
            counts, expected = result.histogram(quantity)
            total, places = counts.sum(), np.arange(len(counts)) + 0.5
            low, high = stats.binom.interval(0.99, total, expected / total)
            # bins may hold different numbers of ranks: the band is a step of its own over each bar
            edges = np.arange(len(counts) + 1)
            axes.stairs(high, edges, baseline=low, fill=True, color=theme.grid, zorder=1)
            axes.bar(places, counts, width=0.82, color=theme.accent, zorder=2)
            axes.stairs(expected, edges, color=theme.ink, linewidth=1, zorder=3, baseline=None)
            axes.grid(False)
            axes.set_xticks([])
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
            axes.set_xlabel(_p_value(p_values[quantity]), color=theme.muted, fontsize=9)
        axes_row[0].set_ylabel(title, color=theme.ink, fontsize=10, parse_math=False)
    return figure


def _p_value(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-3 else "p < 0.001"


def latent_map(
    c: npt.ArrayLike, label: npt.ArrayLike, name: str = "label", *, draws: npt.ArrayLike | None = None,
    theme: Theme = LIGHT,
) -> Figure:  # fmt: skip
    """Instances in the latent space, ``c`` (rows x L), those with the label (rows, of 0 and 1; NaN: unknown) marked.

    With more than two dimensions, the two principal axes of ``c``. ``draws`` (draws x rows x L) are further positions
    of each instance, drawn faintly; they belong in the same coordinates (``alignment.align``).
    """
    middle, marks = np.asarray(c, dtype=float), np.asarray(label, dtype=float)
    if middle.ndim != 2 or marks.shape != middle.shape[:1]:
        raise ValueError(
            f"c must be rows x L and label a number for each row; got shapes {middle.shape} and {marks.shape}"
        )
    centre = middle.mean(0)
    axes_of_c = np.eye(2, middle.shape[1]).T
    if middle.shape[1] > 2:
        axes_of_c = np.linalg.svd(middle - centre, full_matrices=False)[2][:2].T

    def flat(points: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return points @ axes_of_c if middle.shape[1] <= 2 else (points - centre) @ axes_of_c

    figure, axes = plain_axes(theme)
    kinds = {"others": marks == 0, name: marks == 1, "unknown": np.isnan(marks)}
    colours = (theme.muted, theme.accent, theme.grid)
    for (text, here), colour in zip(kinds.items(), colours, strict=True):
        if not here.any():
            continue
        if draws is not None:
            cloud = flat(np.asarray(draws, dtype=float)[:, here].reshape(-1, middle.shape[1]))
            axes.scatter(cloud[:, 0], cloud[:, 1], s=4, color=colour, alpha=0.15, linewidths=0)
        points = flat(middle[here])
        axes.scatter(points[:, 0], points[:, 1], s=22, color=colour, label=text, edgecolors=theme.paper, linewidths=0.4)
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(frameon=False, labelcolor=theme.ink, fontsize=10, loc="best")
    first, second = ("c₁", "c₂") if middle.shape[1] <= 2 else ("first principal axis of c", "second")
    name_axes(axes, theme, first, second)
    return figure


def picture(pixels: npt.NDArray[np.floating]) -> Figure:
    """A grey picture, ``height x width`` in [0, 1], ink dark on white, 6 x 6 dots a pixel and nothing around it."""
    height, width = pixels.shape
    figure = Figure(figsize=(width / 10, height / 10), dpi=60)
    _show(figure.add_axes((0, 0, 1, 1)), pixels)
    return figure


def _show(axes: Axes, pixels: npt.NDArray[np.floating]) -> None:
    axes.imshow(pixels, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def suggestions(
    pictures: Sequence[npt.NDArray[np.floating]],
    given: Sequence[Sequence[str]],
    suggested: Sequence[Sequence[Suggestion]],
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Pictures side by side, the labels they came with under each, and below those what the model suggests."""
    lines = max(len(labels) for labels in given)
    more = max(len(labels) for labels in suggested)
    line, top = 0.19, 1.65  # inches: a line of text, the picture with the air around it
    height = top + line * (lines + more + 3)
    width = 1.75 * len(pictures) + 0.25
    figure = Figure(figsize=(width, height), facecolor=theme.paper)

    def write(column: int, row: float, text: str, colour: str, weight: str = "normal") -> None:
        x, y = 0.25 + 1.75 * column, height - top - line * row
        figure.text(x / width, y / height, text, color=colour, fontsize=9, weight=weight, va="top", parse_math=False)

    for column, (pixels, old, new) in enumerate(zip(pictures, given, suggested, strict=True)):
        left, bottom = 0.25 + 1.75 * column, height - 1.5
        _show(figure.add_axes((left / width, bottom / height, 1.3 / width, 1.3 / height)), pixels)
        write(column, 0, "given", theme.muted, "bold")
        for row, label in enumerate(old):
            write(column, row + 1, label, theme.ink)
        write(column, lines + 1.5, "suggested", theme.muted, "bold")
        for row, item in enumerate(new):
            mark, colour = ("✓", theme.good) if item.true else ("✗", theme.bad)
            write(column, lines + 2.5 + row, f"{mark} {item.label}", colour)
    return figure


def embed(figure: Figure, kind: Literal["svg", "png"] = "svg") -> str:
    """The figure as a ``data:`` URI, so that a page needs no other file. Same figure, same text."""
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(render(figure, kind)).decode('ascii')}"


def render(figure: Figure, kind: Literal["svg", "png"] = "svg", dpi: float | None = None) -> bytes:
    """The bytes of an SVG or PNG file; ``dpi`` is the figure's own if not given."""
    target = io.BytesIO()
    # without a date and with a fixed salt for the ids inside, a run can be compared with another byte by byte
    with mpl.rc_context({"svg.hashsalt": "esmc"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(target, format=kind, dpi=figure.dpi if dpi is None else dpi, metadata=metadata)
    return target.getvalue()
