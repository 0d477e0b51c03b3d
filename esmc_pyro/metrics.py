"""How good a ranking of labels is: the paper's metrics under the paper's names, the usual ones under theirs.

Every function takes the truth `Y` (N × K of 0, 1 or NaN, dense or SciPy sparse) and `scores` (N × K, larger = more
likely).

**Unknown entries.** NaN in `Y` means "not known". Such an entry is taken out: the labels of a row are ranked among the
row's known labels only. A row without any known entry counts nowhere, neither above nor below the line.

**Ties.** Equal scores have no order, so nothing is gained or lost by the order of the columns. Each place of a tied
group holds the group's share of true labels, which is what a random order gives on average: P@k, nDCG@k, PSP@k and
coverage are exactly their mean over all orders, and the AUC is the area under the mean curve, 1/2 for constant scores.
LRAP follows scikit-learn, which gives all tied labels the worst rank of their group.

**Rows without a true label** (but with known ones) count 0 in P@k, nDCG@k and coverage, 1 in LRAP (as in scikit-learn),
add false positives to the AUC, and nothing to PSP@k.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from sklearn.metrics import roc_auc_score

__all__ = [
    "bootstrap_difference",
    "bootstrap_intervals",
    "evaluate",
    "expected_calibration_error",
    "lrap",
    "macro_auc",
    "micro_auc",
    "ndcg_at_k",
    "paper_auc",
    "paper_coverage",
    "precision_at_k",
    "propensities",
    "psp_at_k",
]

Labels = npt.ArrayLike | sparse.sparray | sparse.spmatrix
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Entries ranked at a time: bounds the temporary arrays, not the size of the data.
_BLOCK = 1 << 20


def paper_auc(Y: Labels, scores: npt.ArrayLike) -> float:
    """Area under the pooled curve of "the top k labels of each instance are called true", k = 0..K.

        TPR(k) = sum_n TP_n(k) / sum_n TP_n(K)      FPR(k) = sum_n FP_n(k) / sum_n FP_n(K)

    by the trapezoid rule. A row with fewer than k known labels gives all it has. Random scores get 1/2 when all rows
    have equally many known labels. NaN if the known entries are all zeros or all ones.
    """
    true, known, s = _truth_and_scores(Y, scores)
    return float(_pooled_auc(_rank(true, known, s), None)[0])


def paper_coverage(Y: Labels, scores: npt.ArrayLike) -> float:
    """Mean over rows of (rank of the last true label) - 1, ranks starting at 1; a row without a true label counts 0.

    Without ties and empty rows it is scikit-learn's `coverage_error` less one.
    """
    true, known, s = _truth_and_scores(Y, scores)
    return float(_rank(true, known, s).coverage.mean())


def precision_at_k(Y: Labels, scores: npt.ArrayLike, k: int) -> float:
    """P@k: mean over rows of (true labels among the k best) / k, also for rows with fewer than k known labels."""
    return _at_k("p", Y, scores, k, None)


def ndcg_at_k(Y: Labels, scores: npt.ArrayLike, k: int) -> float:
    """nDCG@k: mean over rows of `sum_{r<=k} true_r / log2(r + 1)` over its best value for that row."""
    return _at_k("ndcg", Y, scores, k, None)


def psp_at_k(Y: Labels, scores: npt.ArrayLike, k: int, label_propensities: npt.ArrayLike) -> float:
    """Propensity-scored P@k: a true label l is worth `1 / p_l`; the sum over rows is divided by the best possible sum.

    `label_propensities` (K) come from the training labels by `propensities`. NaN if no label is true.
    """
    return _at_k("psp", Y, scores, k, np.asarray(label_propensities, dtype=float))


def propensities(Y_train: Labels, a: float = 0.55, b: float = 1.5) -> Floats:
    """Probability that a true label was recorded, from how often it is seen (Jain, Prabhu and Varma, 2016); K values.

        p_l = 1 / (1 + C (N_l + b)^-a)      C = (ln N - 1) (b + 1)^a

    `N_l` is the number of known ones of label l, `N` the number of rows with a known entry. Below e rows C would be
    negative and p above one: three rows are the least.
    """
    if a < 0 or b < 0:
        raise ValueError(f"a and b must not be negative, but a is {a} and b is {b}.")
    true, known = _truth(Y_train, "Y_train")
    n = int(known.any(axis=1).sum())
    if n < 3:
        raise ValueError(f"Y_train must have at least 3 rows with a known entry for propensities, but it has {n}.")
    c = (np.log(n) - 1) * (b + 1) ** a
    return np.asarray(1 / (1 + c * (true.sum(axis=0) + b) ** -a))


def macro_auc(Y: Labels, scores: npt.ArrayLike) -> float:
    """Mean over labels of the label's own ROC AUC (scikit-learn's `roc_auc_score` of that column's known entries).

    Labels without a known one or without a known zero are left out; NaN if none is left.
    """
    true, known, s = _truth_and_scores(Y, scores)
    return _macro_auc(true, known, s)


def micro_auc(Y: Labels, scores: npt.ArrayLike) -> float:
    """scikit-learn's `roc_auc_score` of all known entries as one list; NaN if they are all zeros or all ones."""
    true, known, s = _truth_and_scores(Y, scores)
    truth = true[known]
    return float(roc_auc_score(truth, s[known])) if 0 < truth.sum() < truth.size else float("nan")


def lrap(Y: Labels, scores: npt.ArrayLike) -> float:
    """scikit-learn's label ranking average precision, with unknown entries taken out.

    Mean over rows and over the row's true labels l of `#true at or above rank(l) / rank(l)`; a row whose known labels
    are all true or all false counts 1.
    """
    true, known, s = _truth_and_scores(Y, scores)
    return float(_rank(true, known, s).lrap.mean())


def expected_calibration_error(Y: Labels, probabilities: npt.ArrayLike, bins: int = 10) -> float:
    """ECE over all known entries: `sum_b (n_b / n) |mean probability in b - share of ones in b|`.

    Bins have equal width on [0, 1], closed on the left; the last is closed on both sides.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, but it is {bins}.")
    true, known, p = _truth_and_scores(Y, probabilities, "probabilities")
    if p.min() < 0 or p.max() > 1:
        raise ValueError(f"probabilities must lie in [0, 1], but they span [{p.min():.6g}, {p.max():.6g}].")
    p, truth = p[known], true[known]
    b = np.minimum((p * bins).astype(np.intp), bins - 1)
    # (n_b / n) |mean p - mean y| = |sum p - sum y| / n: empty bins need no special case
    gap = np.bincount(b, weights=p, minlength=bins) - np.bincount(b, weights=truth, minlength=bins)
    return float(np.abs(gap).sum() / p.size)


def evaluate(
    Y: Labels,
    scores: npt.ArrayLike,
    *,
    Y_train: Labels | None = None,
    probabilities: npt.ArrayLike | None = None,
    ks: Sequence[int] = (1, 3, 5),
) -> dict[str, float]:
    """All metrics by name: auc, coverage, p@k, ndcg@k, psp@k (k in `ks`), macro_auc, lrap, ece.

    The names do not depend on the data, so tables line up. A value that cannot be had is NaN: psp without `Y_train`,
    ece without `probabilities`, @k with k above the number of labels.
    """
    true, known, s = _truth_and_scores(Y, scores)
    ranking = _rank(true, known, s, _inverse_propensities(Y_train, true.shape[1]), _depth(ks, true.shape[1]))
    result = {name: float(value[0]) for name, value in _row_metrics(ranking, ks, None).items()}
    result["macro_auc"] = _macro_auc(true, known, s)
    result["ece"] = float("nan") if probabilities is None else expected_calibration_error(Y, probabilities)
    return {name: result[name] for name in _names(ks)}


def held_out_score(Y: Labels, scores: npt.ArrayLike) -> float:
    """What held-out rows choose by: the mean of the paper's AUC and the label-ranking average precision."""
    return 0.5 * (paper_auc(Y, scores) + lrap(Y, scores))


def bootstrap_intervals(
    Y: Labels,
    scores: npt.ArrayLike,
    *,
    Y_train: Labels | None = None,
    ks: Sequence[int] = (1, 3, 5),
    draws: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Bootstrap over rows: a frame with `value`, `standard_error`, `low`, `high` for each metric that is made of rows.

    Rows are drawn with replacement `draws` times; `low` and `high` are percentiles that hold `level` of the draws (of
    those that have the metric: without a true label there is no auc). It
    says how much another test set would move a figure, not how much another fit would. Left out are macro_auc and ece,
    which are sums over labels and over bins.
    """
    _check_bootstrap(draws, level)
    return _intervals(_bootstrap(Y, scores, Y_train, ks, draws, seed), level)


def bootstrap_difference(
    Y: Labels,
    scores: Sequence[npt.ArrayLike],
    others: Sequence[npt.ArrayLike],
    *,
    Y_train: Labels | None = None,
    ks: Sequence[int] = (1, 3, 5),
    draws: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Bootstrap over rows of a difference: metrics of ``scores`` less those of ``others``, as ``bootstrap_intervals``.

    Both are lists of N × K scores, one for each fit of a method (seeds), whose metrics are averaged. Every draw takes
    the same rows for all, so what makes a row hard for both methods cancels.
    """

    _check_bootstrap(draws, level)

    def mean(fits: Sequence[npt.ArrayLike], name: str) -> dict[str, Floats]:
        if not isinstance(fits, Sequence | np.ndarray) or not len(fits) or any(np.ndim(fit) != 2 for fit in fits):
            raise ValueError(f"{name} must be a list of N × K scores, one a fit, but it is {_short(fits)}.")
        made = [_bootstrap(Y, fit, Y_train, ks, draws, seed, name) for fit in fits]
        return {metric: np.mean([one[metric] for one in made], axis=0) for metric in made[0]}

    ours, theirs = mean(scores, "scores"), mean(others, "others")
    return _intervals({metric: ours[metric] - theirs[metric] for metric in ours}, level)


def _short(fits: object) -> str:
    if isinstance(fits, np.ndarray):
        return f"an array of shape {fits.shape}"
    if not isinstance(fits, Sequence):
        return f"of type {type(fits).__name__}"
    return f"a list of shapes {[np.shape(fit) for fit in fits]}"


def _check_bootstrap(draws: int, level: float) -> None:
    if draws < 2:
        raise ValueError(f"draws must be at least 2, but it is {draws}.")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, but it is {level}.")


def _bootstrap(
    Y: Labels,
    scores: npt.ArrayLike,
    Y_train: Labels | None,
    ks: Sequence[int],
    draws: int,
    seed: int,
    name: str = "scores",
) -> dict[str, Floats]:
    """Each metric that is made of rows: of all rows, and then of each draw from them (1 + draws)."""
    true, known, s = _truth_and_scores(Y, scores, name)
    ranking = _rank(true, known, s, _inverse_propensities(Y_train, true.shape[1]), _depth(ks, true.shape[1]))
    n = len(ranking.true)
    weights = np.ones((1 + draws, n))
    weights[1:] = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    values = _row_metrics(ranking, ks, weights)
    return {name: values[name] for name in _names(ks) if name in values}


def _intervals(values: dict[str, Floats], level: float) -> pd.DataFrame:
    tail, rows = (1 - level) / 2, {}
    for name, (whole, *rest) in values.items():
        drawn = np.asarray(rest)
        drawn = drawn[~np.isnan(drawn)]  # a draw of rows without any true label has no such metric
        if len(drawn) < 2:
            drawn = np.full(2, np.nan)
        rows[name] = (whole, drawn.std(ddof=1), *np.quantile(drawn, [tail, 1 - tail]))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "standard_error", "low", "high"])


def _names(ks: Sequence[int]) -> list[str]:
    return ["auc", "coverage", *(f"{m}@{k}" for m in ("p", "ndcg", "psp") for k in ks), "macro_auc", "lrap", "ece"]


# --- one ranking, shared by the metrics ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ranking:
    """The n rows that have a known entry, their labels in order of score."""

    gains: Floats  # n × K: expected number of true labels at each rank
    worth: Floats | None  # n × depth: expected 1 / propensity of the true label at each of the first ranks
    best_worth: Floats | None  # n × depth: the same for the best possible order
    known: npt.NDArray[np.int64]  # n: known labels
    true: npt.NDArray[np.int64]  # n: true labels
    coverage: Floats  # n
    lrap: Floats  # n


def _rank(true: Bools, known: Bools, scores: Floats, label_worth: Floats | None = None, depth: int = 0) -> _Ranking:
    rows = np.flatnonzero(known.any(axis=1))
    n, labels = len(rows), true.shape[1]
    gains, coverage, lraps = np.empty((n, labels)), np.empty(n), np.empty(n)
    worth = best = None
    if label_worth is not None:
        worth, best = np.empty((n, depth)), np.empty((n, depth))
    for block in _blocks(n, labels):
        r = rows[block]
        # unknown labels go last, where their gain of zero is not read: ranks above the row's known count are never used
        key = np.where(known[r], -scores[r], np.inf)
        order = np.argsort(key, axis=1)
        groups = _tied_groups(np.take_along_axis(key, order, axis=1))
        hits = np.take_along_axis(true[r], order, axis=1).astype(float)
        gains[block] = groups.share(hits)
        coverage[block] = _coverage_of_rows(gains[block], groups)
        lraps[block] = _lrap_of_rows(gains[block], groups, true[r].sum(axis=1))
        if label_worth is not None and worth is not None and best is not None:
            worth[block] = groups.share(hits * label_worth[order])[:, :depth]
            values = true[r] * label_worth
            best[block] = -np.sort(np.partition(-values, depth - 1, axis=1)[:, :depth], axis=1)
    return _Ranking(gains, worth, best, known[rows].sum(axis=1), true[rows].sum(axis=1), coverage, lraps)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class _TiedGroups:
    """Runs of equal keys in sorted rows (n × K), numbered through all rows; ranks start at 0."""

    starts: npt.NDArray[np.intp]  # where each run begins in the flattened rows
    sizes: npt.NDArray[np.intp]
    group: npt.NDArray[np.intp] | None  # n × K; None if nothing is tied
    last: npt.NDArray[np.intp]  # n × K: rank at which the entry's run ends

    def share(self, values: Floats) -> Floats:
        """Each place's mean over its run."""
        if self.group is None:
            return values
        return np.asarray((np.add.reduceat(values.ravel(), self.starts) / self.sizes)[self.group])

    def size(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return np.ones_like(rows) if self.group is None else self.sizes[self.group[rows, columns]]


def _tied_groups(keys: Floats) -> _TiedGroups:
    n, columns = keys.shape
    begins = np.ones((n, columns), dtype=bool)
    begins[:, 1:] = keys[:, 1:] != keys[:, :-1]
    starts = np.flatnonzero(begins)
    sizes = np.diff(starts, append=n * columns)
    if len(starts) == n * columns:
        return _TiedGroups(starts, sizes, None, np.broadcast_to(np.arange(columns), (n, columns)))
    group = (np.cumsum(begins.ravel()) - 1).reshape(n, columns)
    return _TiedGroups(starts, sizes, group, ((starts + sizes - 1) % columns)[group])


def _coverage_of_rows(gains: Floats, groups: _TiedGroups) -> Floats:
    """Expected rank from 0 of the last true label: of m labels at random on places 1..g the last is at m(g+1)/(m+1)."""
    some = (gains > 0).any(axis=1)
    rows = np.flatnonzero(some)
    last = gains.shape[1] - 1 - np.argmax(gains[some, ::-1] > 0, axis=1)
    g = groups.size(rows, last)
    m = gains[rows, last] * g
    result = np.zeros(len(gains))
    result[rows] = (last - g + 1) + m * (g + 1) / (m + 1) - 1
    return result


def _lrap_of_rows(gains: Floats, groups: _TiedGroups, true: npt.NDArray[np.int64]) -> Floats:
    above = np.take_along_axis(np.cumsum(gains, axis=1), groups.last, axis=1)
    precision = (gains * above / (groups.last + 1)).sum(axis=1)
    return np.where(true == 0, 1.0, precision / np.maximum(true, 1))


# --- from a ranking to numbers; `weights` (draws × n) counts each row, None counts every row once ---------------------


def _row_metrics(ranking: _Ranking, ks: Sequence[int], weights: Floats | None) -> dict[str, Floats]:
    one = np.ones(len(ranking.true))
    result = {"auc": _pooled_auc(ranking, weights)}
    result["coverage"] = _ratio(ranking.coverage, one, weights)
    for k in ks:
        for metric in ("p", "ndcg", "psp"):
            result[f"{metric}@{k}"] = _ratio(*_terms_at_k(metric, ranking, k), weights)
    result["lrap"] = _ratio(ranking.lrap, one, weights)
    return result


def _ratio(above: Floats, below: Floats, weights: Floats | None) -> Floats:
    if weights is None:
        weights = np.ones((1, len(above)))
    num, den = weights @ above, weights @ below
    return np.divide(num, den, out=np.full(len(num), np.nan), where=den > 0)


def _pooled_auc(ranking: _Ranking, weights: Floats | None) -> Floats:
    if weights is None:
        weights = np.ones((1, len(ranking.true)))
    labels = ranking.gains.shape[1]
    places = weights @ (np.arange(labels) < ranking.known[:, None]).astype(float)
    hits = weights @ ranking.gains
    return _areas(hits, places - hits)


def _areas(hits: Floats, misses: Floats) -> Floats:
    """Area under each row's curve of cumulative hits against cumulative misses, both scaled to end at 1."""
    under = (misses * (np.cumsum(hits, axis=1) - hits / 2)).sum(axis=1)
    whole = hits.sum(axis=1) * misses.sum(axis=1)
    return np.divide(under, whole, out=np.full(len(under), np.nan), where=whole > 0)


def _terms_at_k(metric: str, ranking: _Ranking, k: int) -> tuple[Floats, Floats]:
    """Numerator and denominator of each row; the metric is the ratio of their sums."""
    n, labels = ranking.gains.shape
    one = np.ones(n)
    if k > labels:
        return np.full(n, np.nan), one
    if metric == "p":
        return ranking.gains[:, :k].sum(axis=1) / k, one
    if metric == "ndcg":
        discount = 1 / np.log2(np.arange(2, k + 2))
        best = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(ranking.true, k)]
        dcg = ranking.gains[:, :k] @ discount
        return np.divide(dcg, best, out=np.zeros(n), where=best > 0), one
    if ranking.worth is None or ranking.best_worth is None:
        return np.full(n, np.nan), one
    return ranking.worth[:, :k].sum(axis=1), ranking.best_worth[:, :k].sum(axis=1)


def _at_k(metric: str, Y: Labels, scores: npt.ArrayLike, k: int, label_propensities: Floats | None) -> float:
    true, known, s = _truth_and_scores(Y, scores)
    labels = true.shape[1]
    if not 1 <= k <= labels:
        raise ValueError(f"k must be between 1 and the number of labels {labels}, but it is {k}.")
    worth = None
    if label_propensities is not None:
        if label_propensities.shape != (labels,):
            raise ValueError(
                f"label_propensities must have one value for each of the {labels} labels, "
                f"but its shape is {label_propensities.shape}."
            )
        if not ((label_propensities > 0) & (label_propensities <= 1)).all():
            raise ValueError(
                f"label_propensities must be above 0 and at most 1, but they span "
                f"[{label_propensities.min():.6g}, {label_propensities.max():.6g}]."
            )
        worth = 1 / label_propensities
    return float(_ratio(*_terms_at_k(metric, _rank(true, known, s, worth, k), k), None)[0])


def _macro_auc(true: Bools, known: Bools, scores: Floats) -> float:
    ones, some = true.sum(axis=0), known.sum(axis=0)
    usable = np.flatnonzero((ones > 0) & (ones < some))
    areas = []
    for block in _blocks(len(usable), len(true)):
        # a label's AUC is the pooled AUC of one row that ranks the instances
        c = usable[block]
        seen = known[:, c].T
        key = np.where(seen, -scores[:, c].T, np.inf)
        order = np.argsort(key, axis=1)
        groups = _tied_groups(np.take_along_axis(key, order, axis=1))
        hits = groups.share(np.take_along_axis(true[:, c].T, order, axis=1).astype(float))
        areas.append(_areas(hits, (np.arange(len(true)) < seen.sum(axis=1)[:, None]) - hits))
    return float(np.concatenate(areas).mean()) if areas else float("nan")


# --- what comes in -------------------------------------------------------------------------------------------------


def _inverse_propensities(Y_train: Labels | None, labels: int) -> Floats | None:
    if Y_train is None:
        return None
    p = propensities(Y_train)
    if len(p) != labels:
        raise ValueError(f"Y_train must have as many labels as Y ({labels}), but it has {len(p)}.")
    return 1 / p


def _depth(ks: Sequence[int], labels: int) -> int:
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must hold at least one k and each k must be at least 1, but it is {tuple(ks)}.")
    return min(max(ks), labels)


def _truth(Y: Labels, name: str = "Y") -> tuple[Bools, Bools]:
    """Which entries are true, and which are known; N × K each."""
    y = Y.toarray() if sparse.issparse(Y) else _numbers(Y)
    if y.ndim != 2 or 0 in y.shape:
        raise ValueError(
            f"{name} must be a matrix of rows × labels with at least one of each, but its shape is {y.shape}."
        )
    if y.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers (0, 1 or NaN for unknown), but its type is {y.dtype}.")
    true = y == 1
    known = ~np.isnan(y) if y.dtype.kind == "f" else np.ones(y.shape, dtype=bool)
    odd = known & ~true & (y != 0)
    if odd.any():
        raise ValueError(f"{name} must hold only 0, 1 or NaN (unknown), but it holds {y[odd][0]}.")
    if not known.any():
        raise ValueError(f"{name} must have at least one known entry, but all of its entries are NaN.")
    return true, known


def _label_names(values: object) -> list[str]:
    """The names of a frame's columns, none where they just count."""
    is_named = isinstance(values, pd.DataFrame) and not isinstance(values.columns, pd.RangeIndex)
    return [str(name) for name in values.columns] if is_named else []  # type: ignore[attr-defined]


def _numbers(values: object) -> npt.NDArray[Any]:
    """An array; of a frame's nullable columns one of floats, with NaN for what is missing."""
    made = np.asarray(values)
    if isinstance(values, pd.DataFrame) and made.dtype == object:
        with contextlib.suppress(TypeError, ValueError):  # what is no number is for the caller to refuse
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return made


def _truth_and_scores(Y: Labels, scores: npt.ArrayLike, name: str = "scores") -> tuple[Bools, Bools, Floats]:
    true, known = _truth(Y)
    ours, theirs = _label_names(Y), _label_names(scores)
    if ours and theirs and ours != theirs:
        raise ValueError(
            f"{name} must have the labels of Y in the same order, but its columns are {theirs[:5]} and those of Y "
            f"{ours[:5]}."
        )
    s = _numbers(scores)
    if s.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, but its type is {s.dtype}.")
    if s.shape != true.shape:
        raise ValueError(f"{name} must have the shape {true.shape} of Y, but its shape is {s.shape}.")
    s = s.astype(np.float64)
    if not np.isfinite(s).all():
        raise ValueError(f"{name} must hold finite numbers, but it holds {s[~np.isfinite(s)][0]}.")
    return true, known, s
