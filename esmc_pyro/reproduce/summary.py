"""From cells to numbers: means and standard errors over partitions, and the paper's tables beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from esmc_pyro.reproduce.experiments import FULL, METHOD_NAMES, OFFICIAL
from esmc_pyro.reproduce.paper import PUBLISHED, TABLE_II, TABLE_III

TAIL = ("psp@1", "psp@3", "psp@5", "rare_auc", "macro_auc")


def mean_and_error(values: Any) -> tuple[float, float]:
    """Mean, and standard error ``sd / sqrt(n)``; NaN for the error of a single value."""
    array = np.asarray(values, dtype=float)
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return float(array.mean()), float(error)


def summarise(cells: pd.DataFrame, metrics: tuple[str, ...]) -> pd.DataFrame:
    """A line for each dataset, setting, method and metric: ``mean``, ``error`` over seeds, ``seeds``."""
    lines = []
    for (dataset, setting, method), group in cells.groupby(["dataset", "setting", "method"], sort=False):
        for metric in metrics:
            mean, error = mean_and_error(group[metric])
            lines.append((dataset, setting, method, metric, mean, error, len(group)))
    return pd.DataFrame(lines, columns=["dataset", "setting", "method", "metric", "mean", "error", "seeds"])


def in_order(methods: Any) -> list[str]:
    """Methods in the order of ``METHOD_NAMES``."""
    return sorted(set(methods), key=METHOD_NAMES.index)


def table_two(cells: pd.DataFrame) -> pd.DataFrame:
    """P@1 and P@3 (per cent, with standard errors over test rows) and seconds on published splits, and the paper's."""
    official = cells[cells["setting"] == str(OFFICIAL)]
    lines: list[dict[str, Any]] = []
    for dataset in dict.fromkeys([*official["dataset"], *TABLE_II]):
        ours = official[official["dataset"] == dataset].set_index("method")
        published = TABLE_II.get(dataset, {})
        for method in in_order([*ours.index, *published]):
            line: dict[str, Any] = {"dataset": dataset, "method": method}
            if method in ours.index:
                row = ours.loc[method]
                line |= {name: 100 * row[name] for name in ("p@1", "p@3", "p@1_error", "p@3_error")}
                line |= {"seconds": row["fit_seconds"]}
            if method in published:
                p1, p3, seconds = published[method]
                line |= {"paper_p@1": p1, "paper_p@3": p3, "paper_seconds": seconds}
            lines.append(line)
    columns = ["dataset", "method", "p@1", "p@1_error", "p@3", "p@3_error", "seconds"]
    return pd.DataFrame(lines, columns=[*columns, "paper_p@1", "paper_p@3", "paper_seconds"])


def table_published(cells: pd.DataFrame) -> pd.DataFrame:
    """P@1, P@3 and P@5 (per cent) of baselines on published splits, what was published of them, and the difference."""
    official = cells[cells["setting"] == str(OFFICIAL)].set_index(["dataset", "method"])
    lines: list[dict[str, Any]] = []
    for dataset, methods in PUBLISHED.items():
        for method, published in methods.items():
            if (dataset, method) in official.index:
                line: dict[str, Any] = {"dataset": dataset, "method": method}
                row: Any = official.loc[(dataset, method)]
                for k, number in zip((1, 3, 5), published, strict=True):
                    ours = 100 * float(row[f"p@{k}"])
                    line |= {f"p@{k}": ours, f"published_p@{k}": number, f"difference_p@{k}": ours - number}
                lines.append(line)
    columns = [f"{what}p@{k}" for k in (1, 3, 5) for what in ("", "published_", "difference_")]
    return pd.DataFrame(lines, columns=["dataset", "method", *columns])


def full_label_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with all labels: random partitions, or the published split where a dataset has only that."""
    full = cells[cells["setting"] == str(FULL)]
    official = cells[(cells["setting"] == str(OFFICIAL)) & ~cells["dataset"].isin(full["dataset"])]
    return pd.concat([full, official], ignore_index=True)


def table_three(cells: pd.DataFrame, tuned: pd.DataFrame) -> pd.DataFrame:
    """Processor seconds of a fit to all labels, of the choice of settings before it, and the paper's seconds."""
    times = summarise(full_label_cells(cells), ("fit_seconds",))
    lines: list[dict[str, Any]] = []
    for dataset in dict.fromkeys([*times["dataset"], *TABLE_III]):
        ours = times[times["dataset"] == dataset].set_index("method")
        published = TABLE_III.get(dataset, {})
        for method in in_order([*ours.index, *published]):
            line: dict[str, Any] = {"dataset": dataset, "method": method, "paper_seconds": published.get(method)}
            if method in ours.index:
                row = ours.loc[method]
                line |= {"seconds": row["mean"], "error": row["error"]}
                same = tuned[(tuned["dataset"] == dataset) & (tuned["method"] == method)]
                same = same[same["setting"] == row["setting"]]
                line |= {"tuning_seconds": same["seconds"].mean() if len(same) else np.nan}
            lines.append(line)
    return pd.DataFrame(lines, columns=["dataset", "method", "seconds", "error", "tuning_seconds", "paper_seconds"])


def table_tail(cells: pd.DataFrame) -> pd.DataFrame:
    """PSP@k and macro-AUC, over the rarer half of the labels and over all, of fits to all labels."""
    return summarise(full_label_cells(cells), TAIL)


def frame(lines: Mapping[Any, Mapping[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """Records as a frame, with its columns even if there is none."""
    return pd.DataFrame(list(lines.values()), columns=list(columns))
