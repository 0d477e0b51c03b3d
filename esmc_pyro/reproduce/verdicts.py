"""The paper's claims, each judged by the cells.

A comparison is a difference with its standard error: of two methods on the same partitions, averaged over the settings
of the claim, seed by seed, so that what a partition does to both cancels. It is decided if the difference is larger
than its error times Student's 97.5% point for so many seeds, and not too small to matter (``MATTERS``). Of the
comparisons that have an error, half or more must be decided, so that a chance success among many decides nothing; else
nothing can be said. A claim holds if at least nine tenths of those decided are for it, does not hold if as many are
against it, and holds in part in between. If all are too small to matter, errors included, there is no difference.

Errors are over random partitions, which share most of their rows, so that they are a little too small; those of a
published split are over test rows and taken for independent though the methods share the rows, so that they are too
large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from esmc_pyro.reproduce.experiments import EXPERTS, LINEAR, OFFICIAL, OURS, PLAIN, RIVALS, Setting
from esmc_pyro.reproduce.paper import TABLE_II
from esmc_pyro.reproduce.summary import full_label_cells, mean_and_error, table_two

HOLDS, IN_PART, FAILS, SAME, OPEN = "holds", "holds in part", "does not hold", "no difference", "cannot be said"
MOST = 0.9  # of the decided comparisons
SMALLER_IS_BETTER = ("coverage", "fit_seconds")
# smaller differences do not count, whatever their error
MATTERS = {"coverage": 0.1, "p@1": 0.1, "p@3": 0.1} | dict.fromkeys(
    ("auc", "kept auc", "rare_auc", "psp@1", "psp@3", "psp@5"), 0.001
)
TIMER = 0.1  # least standard error of a log time: the same fit takes a tenth more or less on a busy machine


@dataclass(frozen=True)
class Comparison:
    """By how much a claim is met: ``difference`` is positive where it favours the claim.

    ``seeds`` is None where the error is not over partitions but over test rows, or that of a timer; a difference of
    "fit_seconds" is that of natural logarithms.
    """

    dataset: str
    against: str
    metric: str
    difference: float
    error: float
    seeds: int | None = None

    @property
    def bar(self) -> float:
        """What the difference has to exceed."""
        if self.seeds is None:
            return float(stats.norm.ppf(0.975) * self.error)
        return float(stats.t.ppf(0.975, self.seeds - 1) * self.error) if self.seeds > 1 else np.inf

    @property
    def sign(self) -> int:
        """1 for the claim, -1 against it, 0 undecided."""
        least = max(self.bar, MATTERS.get(self.metric, 0.0))
        return int(np.sign(self.difference)) if abs(self.difference) > least else 0

    @property
    def is_nothing(self) -> bool:
        """Whether the difference is too small to matter, its error included."""
        return abs(self.difference) + self.bar < MATTERS.get(self.metric, 0.0)

    def write(self) -> str:
        """ "+0.012 ± 0.003" or, of seconds, "3.1 ± 0.2 times as fast"."""
        if self.metric == "fit_seconds":
            ratio = np.exp(abs(self.difference))
            ratio, error = (f"{x:.0f}" if x >= 100 else f"{x:.2g}" for x in (ratio, ratio * self.error))
            return f"{ratio} ± {error} times {'faster' if self.difference >= 0 else 'slower'}"
        digits = 1 if self.metric == "coverage" else 2 if self.metric.startswith("p@") else 4
        error = f"{self.error:.{digits}f}" if np.isfinite(self.error) else "?"
        unit = " points" if self.metric.startswith("p@") else ""
        rounded = round(self.difference, digits) + 0.0  # no minus before nothing
        return f"{rounded:+.{digits}f} ± {error}{unit}".replace("-", "−")


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, the method it is judged of, and the comparisons that judge it."""

    claim: str
    where: str
    subject: str
    comparisons: tuple[Comparison, ...]

    @property
    def outcome(self) -> str:
        judged = [comparison for comparison in self.comparisons if np.isfinite(comparison.bar)]
        signs = [comparison.sign for comparison in judged]
        favour, against = signs.count(1), signs.count(-1)
        decided = favour + against
        if judged and all(comparison.is_nothing for comparison in judged):
            return SAME
        if not decided or decided < len(signs) / 2:
            return OPEN
        return HOLDS if favour >= MOST * decided else FAILS if against >= MOST * decided else IN_PART

    @property
    def sentence(self) -> str:
        """How many comparisons say so, and by how much."""
        if not self.comparisons:
            return "Nothing to compare: the cells for it were not run."
        signs = [comparison.sign for comparison in self.comparisons if np.isfinite(comparison.bar)]
        counts = (
            (signs.count(1), "for it"), (signs.count(-1), "against it"), (signs.count(0), "undecided"),
            (len(self.comparisons) - len(signs), "without an error"),
        )  # fmt: skip
        said = ", ".join(f"{count} {word}" for count, word in counts if count)
        spans = []
        for metric in dict.fromkeys(comparison.metric for comparison in self.comparisons):
            some = sorted((c for c in self.comparisons if c.metric == metric), key=lambda c: c.difference)
            low, high = some[0].write(), some[-1].write()
            spans.append(f"{NAMES.get(metric, metric)} {low}" + (f" to {high}" if len(some) > 1 else ""))
        total = len(self.comparisons)
        return f"{total} comparison{'' if total == 1 else 's'}: {said}. {'; '.join(spans)}."


NAMES = {
    "auc": "AUC", "coverage": "coverage", "rare_auc": "macro-AUC of the rarer half of the labels",
    "fit_seconds": "trains", "p@1": "P@1", "p@3": "P@3", "psp@1": "PSP@1", "psp@3": "PSP@3", "psp@5": "PSP@5",
    "kept auc": "AUC kept",
}  # fmt: skip


# --- comparisons ------------------------------------------------------------------------------------------------------


def _where(cells: pd.DataFrame, wanted: Callable[[Setting], bool]) -> pd.DataFrame:
    return cells[np.array([wanted(Setting.parse(text)) for text in cells["setting"]], dtype=bool)]


def _values(cells: pd.DataFrame, method: str, metric: str) -> pd.DataFrame:
    """Settings x seeds of one method on one dataset, larger is better."""
    some = cells[(cells["method"] == method).to_numpy()]
    values = some[metric].to_numpy(dtype=float)
    if metric == "fit_seconds":
        values = np.log(np.maximum(values, 1e-3))
    # precisions in per cent, as the paper has them
    values = values * ((-1 if metric in SMALLER_IS_BETTER else 1) * (100 if metric.startswith("p@") else 1))
    places = pd.MultiIndex.from_arrays([some["setting"], some["seed"]])
    return pd.Series(values, index=places).unstack() if len(some) else pd.DataFrame()


def _paired(dataset: str, against: str, metric: str, better: pd.DataFrame, worse: pd.DataFrame) -> Comparison | None:
    """Seed by seed, over the settings that both have for all of these seeds."""
    if better.empty or worse.empty:
        return None
    table = (better - worse).dropna(axis=1, how="all").dropna(axis=0, how="any")
    if table.empty:
        return None
    mean, error = mean_and_error(table.mean(axis=0))
    if metric == "fit_seconds" and not error > TIMER:
        return Comparison(dataset, against, metric, mean, TIMER, None)
    return Comparison(dataset, against, metric, mean, error, table.shape[1])


def compare(
    cells: pd.DataFrame, subject: str, rivals: Iterable[str], metrics: Sequence[str],
    where: Callable[[Setting], bool] = lambda setting: True,
) -> Iterator[Comparison]:  # fmt: skip
    """``subject`` against each of ``rivals`` at the settings that ``where`` wants, dataset by dataset."""
    for dataset, some in _where(cells, where).groupby("dataset", sort=False):
        for rival in rivals:
            for metric in metrics:
                pair = _values(some, subject, metric), _values(some, rival, metric)
                found = _paired(str(dataset), rival, metric, *pair)
                if found is not None and found.seeds == 1 and f"{metric}_error" in some:
                    errors = [some.loc[some["method"] == m, f"{metric}_error"].iloc[0] for m in (subject, rival)]
                    if np.isfinite(errors).all():  # of one published split: over its test rows
                        found = replace(found, error=float(np.hypot(*errors)), seeds=None)
                if found is not None:
                    yield found


def unlabelled_help(cells: pd.DataFrame, method: str, metrics: Sequence[str]) -> Iterator[Comparison]:
    """The same labelled rows with and without the unlabelled ones."""
    for dataset, some in cells.groupby("dataset", sort=False):
        for metric in metrics:
            values = _values(some, method, metric)
            if values.empty:
                continue
            kinds = {}
            for kind in ("kept", "alone"):
                chosen = [text for text in values.index if Setting.parse(text).kind == kind]
                kinds[kind] = values.loc[chosen].rename(index=lambda text: Setting.parse(text).share)
            found = _paired(str(dataset), "labelled rows alone", metric, kinds["kept"], kinds["alone"])
            if found is not None:
                yield found


def more_kept(cells: pd.DataFrame, subject: str, rival: str) -> Iterator[Comparison]:
    """AUC lost by ``rival`` from no ones removed to the most, less that lost by ``subject``."""
    removed = _where(cells, lambda setting: setting.kind == "removed")
    for dataset, some in removed.groupby("dataset", sort=False):
        values = [_values(some, method, "auc") for method in (subject, rival)]
        shares = sorted(set(values[0].index) & set(values[1].index), key=lambda text: Setting.parse(text).share)
        if len(shares) < 2:
            continue
        first, last = shares[0], shares[-1]
        values = [value.loc[[first, last]] for value in values]
        found = _paired(str(dataset), rival, "kept auc", *(value.diff().loc[[last]] for value in values))
        if found is not None:
            yield found


def against_published(cells: pd.DataFrame, subject: str, rivals: Iterable[str]) -> Iterator[Comparison]:
    """P@1 and P@3 on published splits, against measured ``rivals`` and against the numbers of the paper's Table II."""
    table = table_two(cells).set_index(["dataset", "method"])
    for dataset in dict.fromkeys(cells.loc[cells["setting"] == str(OFFICIAL), "dataset"]):
        if (dataset, subject) not in table.index:
            continue
        for metric in ("p@1", "p@3"):

            def numbers(name: str, dataset: str = dataset, metric: str = metric) -> tuple[float, float]:
                row: Any = table.loc[(dataset, name)]
                return float(row[metric]), float(row[f"{metric}_error"])

            value, error = numbers(subject)
            others = {name: numbers(name) for name in rivals if (dataset, name) in table.index}
            for name in rivals:
                if name in (paper := TABLE_II.get(dataset, {})):
                    others[f"the paper’s {name}"] = (paper[name].p1 if metric == "p@1" else paper[name].p3, 0.0)
            for name, (other, other_error) in others.items():
                if np.isfinite(value - other):
                    yield Comparison(dataset, name, metric, value - other, float(np.hypot(error, other_error)))


# --- claims -----------------------------------------------------------------------------------------------------------

RANKING = ("auc", "coverage")
TAIL = ("psp@1", "psp@3", "psp@5", "rare_auc")
FASTER_THAN = (*RIVALS, "LEML")


def judge(cells: pd.DataFrame) -> list[Verdict]:
    """Every claim, of the paper's method as published (``EXPERTS``, ``PLAIN``) and of ours, told apart."""
    found: list[Verdict] = []

    def add(claim: str, where: str, subject: str, comparisons: Iterable[Comparison]) -> None:
        found.append(Verdict(claim, where, subject, tuple(comparisons)))

    def missing(setting: Setting) -> bool:
        return setting.kind == "removed" and setting.share > 0

    add(
        "Experts help when labels are missing", "figures 4 to 7", EXPERTS,
        compare(cells, EXPERTS, (PLAIN,), RANKING, missing),
    )  # fmt: skip
    costly = (
        replace(c, against=PLAIN)
        for c in compare(cells, PLAIN, (EXPERTS,), ("p@1",), lambda setting: setting.kind == "removed")
    )
    add("Experts cost precision at the top", "section 4.2", EXPERTS, costly)
    for subject in (EXPERTS, OURS):
        add(
            "ESMC outperforms SLRM, FaIE and FastTag with up to half of the ones removed", "figures 4 to 7", subject,
            compare(cells, subject, RIVALS, RANKING, lambda setting: setting.kind == "removed"),
        )  # fmt: skip
    for subject in (EXPERTS, OURS, "SLRM", "FastTag"):
        add(
            "Missing labels cost less than they cost FaIE", "figures 4 to 7", subject,
            more_kept(cells, subject, "FaIE"),
        )  # fmt: skip
    for subject in (EXPERTS, OURS, "SLRM"):
        add("Unlabelled rows help", "figures 8 to 10", subject, unlabelled_help(cells, subject, RANKING))
    for subject in (EXPERTS, OURS):
        add(
            "ESMC outperforms SLRM, FaIE and FastTag with few labelled rows", "figures 8 to 10", subject,
            compare(cells, subject, RIVALS, RANKING, lambda setting: setting.kind == "kept"),
        )  # fmt: skip
    for subject in (PLAIN, EXPERTS, OURS):
        add(
            "ESMC trains faster than SLRM, FaIE, FastTag and LEML", "Tables II and III", subject,
            compare(full_label_cells(cells), subject, FASTER_THAN, ("fit_seconds",)),
        )  # fmt: skip
    for subject in (PLAIN, EXPERTS, OURS):
        add(
            "Tail labels fare better than under linear embeddings", "sections 2 and 5", subject,
            compare(full_label_cells(cells), subject, LINEAR, TAIL),
        )  # fmt: skip
    for subject in (PLAIN, OURS):
        add(
            "ESMC’s precision is above LEML’s", "Table II", subject, against_published(cells, subject, ("LEML",)),
        )  # fmt: skip
    return found
