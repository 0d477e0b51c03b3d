"""The paper's figures, redrawn: a curve a method, with a bar of one standard error either way."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from esmc_pyro.figures import LIGHT, Theme, dress, name_axes
from esmc_pyro.reproduce.experiments import CURVES as DRAWN
from esmc_pyro.reproduce.experiments import EXPERTS, METHOD_NAMES, OURS, PAPER, PLAIN, Setting
from esmc_pyro.reproduce.methods import METHODS

MARKS = {OURS: "o", EXPERTS: "s", PLAIN: "D", PAPER: "P"}
BASELINE_MARKS = "v^<>xX*+1p"


def curves(summary: pd.DataFrame, kind: str, *, theme: Theme = LIGHT) -> Figure:
    """AUC and -coverage against the share; ``summary`` is that of one dataset, ``kind`` "removed" or "kept".

    Only methods with more than one share are drawn, in the same colour in all figures.
    """
    figure = Figure(figsize=(7.6, 4.4), layout="constrained", facecolor="none")
    settings = summary["setting"].map(Setting.parse)
    here = summary[[setting.kind == kind for setting in settings]]
    here = here.assign(share=[100 * Setting.parse(text).share for text in here["setting"]])
    # ours is blue and the authors' experts red; the other methods that are drawn as curves share no colour
    others = [method for method in dict.fromkeys((*DRAWN, *METHOD_NAMES)) if method not in (OURS, EXPERTS)]
    colours = dict(zip(others, mpl.colormaps["tab10"](np.resize([1, 2, 4, 5, 6, 7, 8, 9], len(others))), strict=True))
    what = "ones removed" if kind == "removed" else "label vectors kept"
    for axes, (metric, title, sign) in zip(
        figure.subplots(1, 2), (("auc", "AUC", 1), ("coverage", "−coverage", -1)), strict=True
    ):
        dress(axes, theme)
        for place, method in enumerate(METHOD_NAMES):
            line = here[(here["method"] == method) & (here["metric"] == metric)].sort_values("share")
            if line["share"].nunique() < 2:
                continue
            own = method in MARKS
            axes.errorbar(
                line["share"], sign * line["mean"], yerr=line["error"].fillna(0), label=METHODS[method].title,
                color=theme.accent if method == OURS else theme.bad if method == EXPERTS else colours[method],
                marker=MARKS.get(method) or BASELINE_MARKS[place % len(BASELINE_MARKS)], markersize=5.5 if own else 4.5,
                linewidth=2.2 if own else 1.2, linestyle="-" if own else (0, (5, 2)), capsize=2,
            )  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}%"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
        name_axes(axes, theme, what, title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=theme.ink, fontsize=9
        )
    return figure
