"""The numbers behind ``report``: what is known of each label, how honest probabilities are, what lies near what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from scipy.stats import rankdata

from esmc_pyro.metrics import bootstrap_intervals, evaluate
from esmc_pyro.page import Metric

Array = npt.NDArray[Any]

DEPTHS = (1, 3, 5)
METRICS = (
    Metric("auc", "AUC", "area under the pooled ranking curve"),
    Metric("macro_auc", "Macro AUC", "mean over labels of the label’s own AUC, so rare labels count in full"),
    Metric("lrap", "LRAP", "label-ranking average precision: how clean the list is down to each true label"),
    Metric("coverage", "Coverage", "how far down the list the last true label stands", 1, True),
    Metric("p@1", "P@1", "share of first suggestions that are true"),
    *(Metric(f"p@{k}", f"P@{k}", f"share of true labels among the first {k}") for k in DEPTHS[1:]),
    *(Metric(f"ndcg@{k}", f"nDCG@{k}", "the same, earlier places counting more") for k in DEPTHS[1:]),
    *(Metric(f"psp@{k}", f"PSP@{k}", "the same, rare labels counting more") for k in DEPTHS[1:]),
    Metric("ece", "ECE", "expected calibration error: by how much probabilities are off", 3, True),
)


@dataclass(frozen=True)
class MetricRow:
    """A line of the table of metrics, as it is written; ``interval`` and ``plain`` are empty where there is none."""

    metric: Metric
    value: str
    interval: str
    plain: str


def metric_rows(Y: Array, scores: Array, probabilities: Array, Y_train: Array) -> list[MetricRow]:
    """The metrics that these labels allow, with bootstrap intervals, beside a ranking by training frequency alone."""
    ks = [k for k in DEPTHS if k <= Y.shape[1]]
    # propensities are defined from three rows on
    seen = Y_train if (~np.isnan(Y_train)).any(axis=1).sum() >= 3 else None
    values = evaluate(Y, scores, Y_train=seen, probabilities=probabilities, ks=ks)
    draws = 500 if Y.size <= 4_000_000 else 200
    intervals = bootstrap_intervals(Y, scores, Y_train=seen, ks=ks, draws=draws)
    frequency = np.broadcast_to(label_frequency(Y_train), Y.shape)
    plain = evaluate(Y, frequency, Y_train=seen, probabilities=frequency, ks=ks)
    rows = []
    for metric in METRICS:
        value = values.get(metric.key, float("nan"))
        if np.isnan(value):
            continue
        interval = ""
        if metric.key in intervals.index:
            low, high = (float(end) for end in intervals.loc[metric.key, ["low", "high"]].to_numpy())
            if np.isfinite([low, high]).all():
                interval = f"{metric.write(low)} – {metric.write(high)}"
        other = plain[metric.key]
        rows.append(MetricRow(metric, metric.write(value), interval, "" if np.isnan(other) else metric.write(other)))
    return rows


def label_frequency(Y: Array) -> Array:
    """Share of known entries that are one, for each label; 0 where nothing is known."""
    known = (~np.isnan(Y)).sum(axis=0)
    return np.nansum(Y, axis=0) / np.maximum(known, 1)


def per_label(Y: Array, scores: Array, Y_train: Array, names: Sequence[str]) -> pd.DataFrame:
    """A row a label: ``label``, ``seen`` (ones in training rows), ``auc`` and ``ap`` among its known entries.

    ``auc`` is NaN without a one or without a zero, ``ap`` without a one.
    """
    auc, ap = np.full(len(names), np.nan), np.full(len(names), np.nan)
    for k in range(len(names)):
        known = ~np.isnan(Y[:, k])
        auc[k], ap[k] = _auc_and_ap(Y[known, k] == 1, scores[known, k])
    return pd.DataFrame({"label": names, "seen": np.nansum(Y_train, axis=0).astype(int), "auc": auc, "ap": ap})


def _auc_and_ap(true: Array, scores: Array) -> tuple[float, float]:
    """scikit-learn's two scores of one label, without its checks, which take most of the time when labels are many."""
    ones = int(true.sum())
    if ones == 0:
        return float("nan"), float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(true) - 1)  # tied entries are counted together
    hits = np.cumsum(true[order])[ends]
    ap = float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / ones)
    if ones == len(true):
        return float("nan"), ap
    above = rankdata(scores)[true].sum() - ones * (ones + 1) / 2
    return float(above / (ones * (len(true) - ones))), ap


def thirds(labels: pd.DataFrame) -> pd.DataFrame:
    """Head, middle and tail: the labels of ``per_label`` by how often they are seen, a third each, with mean scores."""
    order = labels.sort_values("seen", ascending=False, kind="stable")
    parts = np.array_split(np.arange(len(order)), 3)
    rows = []
    for name, part in zip(("Head", "Middle", "Tail"), parts, strict=True):
        group = order.iloc[part]
        rows.append(
            {"group": name, "labels": len(group), "least": group["seen"].min(), "most": group["seen"].max()}
            | {score: group[score].mean() for score in ("auc", "ap")}
        )
    return pd.DataFrame(rows)


def reliability_bins(Y: Array, probabilities: Array, bins: int = 10) -> pd.DataFrame:
    """Known entries by predicted probability, in bins of equal width: a row for each bin that holds an entry.

    ``left`` edge, ``count``, mean ``probability``, ``share`` of ones, and ``low`` and ``high``, Wilson's 95% interval
    of that share. Entries of a row are not independent, so the truth may be a little wider.
    """
    known = ~np.isnan(Y)
    p, y = probabilities[known].astype(float), Y[known].astype(float)
    place = np.minimum((p * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    some = count > 0
    n = count[some]
    mean = np.bincount(place, weights=p, minlength=bins)[some] / n
    share = np.bincount(place, weights=y, minlength=bins)[some] / n
    z = 1.96
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return pd.DataFrame(
        {
            "left": np.flatnonzero(some) / bins,
            "count": n,
            "probability": mean,
            "share": share,
            "low": np.minimum(centre - half, share),
            "high": np.maximum(centre + half, share),
        }
    )


def most_frequent(Y_train: Array, count: int) -> Array:
    """Columns of the ``count`` labels with most ones, most frequent first; labels without a one are left out."""
    ones = np.nansum(Y_train, axis=0)
    order = np.argsort(-ones, kind="stable")[:count]
    return order[ones[order] > 0]


def label_correlations(Y: Array) -> Array:
    """Correlations of columns, each pair over the rows where both are known; NaN where one of them does not vary."""
    return pd.DataFrame(Y).corr(min_periods=3).to_numpy(copy=True)


def similar_together(correlations: Array) -> Array:
    """An order of the columns in which those that correlate stand side by side (average linkage)."""
    if len(correlations) < 3:
        return np.arange(len(correlations))
    distance = 1 - np.nan_to_num((correlations + correlations.T) / 2)
    np.fill_diagonal(distance, 0)
    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return hierarchy.leaves_list(tree)


def two_directions(c: Array, seed: int = 0) -> tuple[Array, list[float]]:
    """Principal components of the rows of ``c`` (n x L): coordinates (n x 2) and the shares of variance of the axes.

    With one dimension the second coordinate is chance, so that points do not hide each other, and has no share.
    """
    centred = np.asarray(c, dtype=float) - np.mean(c, axis=0, dtype=float)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    total = float((s**2).sum())
    if len(s) == 1:
        spread = np.random.default_rng(seed).uniform(-1, 1, len(centred))
        return np.column_stack([u[:, 0] * s[0], spread]), [1.0]
    shares = [float(value) ** 2 / total if total > 0 else 0.0 for value in s[:2]]
    return u[:, :2] * s[:2], shares
