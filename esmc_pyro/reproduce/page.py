"""The page and its tables: everything that is written is computed from the cells here and now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from esmc_pyro import figures
from esmc_pyro.files import write_atomic
from esmc_pyro.page import both_themes, render_page
from esmc_pyro.reproduce.curves import curves
from esmc_pyro.reproduce.experiments import Experiment, Setting
from esmc_pyro.reproduce.measure import METRICS, SECONDS
from esmc_pyro.reproduce.methods import METHODS
from esmc_pyro.reproduce.schedule import Job
from esmc_pyro.reproduce.summary import TAIL, in_order, summarise, table_published, table_tail, table_three, table_two
from esmc_pyro.reproduce.verdicts import FAILS, HOLDS, IN_PART, NAMES, OPEN, SAME, Verdict, judge

PAGE = "index.html"
MARKS = {HOLDS: "yes", FAILS: "no", IN_PART: "part", SAME: "open", OPEN: "open"}
KINDS = {
    "removed": "{:.0%} of the ones removed", "kept": "{:.0%} of the label vectors kept",
    "alone": "{:.0%} of the label vectors, no other rows", "official": "published split",
}  # fmt: skip


def title(method: str) -> str:
    """A method's name for people."""
    return METHODS[method].title if method in METHODS else method


def describe(setting: str) -> str:
    """A setting in words."""
    parsed = Setting.parse(setting)
    return "all labels" if parsed == Setting("removed") else KINDS[parsed.kind].format(parsed.share)


def write_results(
    folder: Path, cells: pd.DataFrame, tuned: pd.DataFrame, experiments: Sequence[Experiment], *, lead: str,
    notes: Sequence[str] = (), failures: Mapping[Job, str] | None = None,
) -> list[Verdict]:  # fmt: skip
    """Write the page and its CSVs into ``folder``; returns the verdicts."""
    verdicts = judge(cells)
    summary = summarise(cells, (*METRICS, *SECONDS))
    two, three, tail = table_two(cells), table_three(cells, tuned), table_tail(cells)
    judged, published = verdict_table(verdicts), table_published(cells)
    tables = {
        "summary": summary, "table_2": two, "published": published, "table_3": three, "tail": tail, "verdicts": judged,
    }  # fmt: skip
    for name, table in tables.items():
        write_atomic(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
    page = render_page(
        "reproduce.html",
        lead=lead,
        notes=list(notes),
        verdicts=[_verdict(verdict) for verdict in verdicts],
        curves=_curves(summary, experiments),
        table_two=_groups(two),
        published=[line | {"title": title(line["method"])} for line in published.to_dict("records")],
        table_three=_groups(three),
        tail=_tail(tail),
        likelihood=both_themes(figures.label_probability, (1, 2, 5, 10, 20, 50)),
        chosen=_chosen(tuned),
        failures=[
            f"{job.dataset}, {describe(str(job.setting))}, {title(job.method)}: {why}"
            for job, why in (failures or {}).items()
        ],
    )  # fmt: skip
    write_atomic(folder / PAGE, page)
    return verdicts


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """A line for each comparison of each claim; claims without any have one line of their own."""
    lines: list[dict[str, Any]] = []
    for verdict in verdicts:
        head = {"claim": verdict.claim, "where": verdict.where, "of": verdict.subject, "verdict": verdict.outcome}
        for c in verdict.comparisons:
            numbers = {"difference": c.difference, "error": c.error, "seeds": c.seeds, "counts": c.sign}
            lines.append(head | {"dataset": c.dataset, "against": c.against, "metric": c.metric} | numbers)
        if not verdict.comparisons:
            lines.append(head)
    columns = [
        "claim",
        "where",
        "of",
        "verdict",
        "dataset",
        "against",
        "metric",
        "difference",
        "error",
        "seeds",
        "counts",
    ]
    return pd.DataFrame(lines, columns=columns)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    words = {1: "for it", -1: "against it", 0: "undecided"}
    return {
        "claim": verdict.claim, "where": verdict.where, "title": title(verdict.subject), "outcome": verdict.outcome,
        "mark": MARKS[verdict.outcome], "sentence": verdict.sentence,
        "comparisons": [
            f"{c.dataset}, {NAMES.get(c.metric, c.metric)}, against {title(c.against)}: {c.write()} ({words[c.sign]})"
            for c in verdict.comparisons
        ],
    }  # fmt: skip


def _curves(summary: pd.DataFrame, experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    drawn = []
    for experiment in {(e.name, e.dataset): e for e in experiments}.values():  # those that are filled in later: once
        kind = experiment.settings[0].kind
        here = summary[summary["dataset"] == experiment.dataset]
        shares = [text for text in here["setting"].unique() if Setting.parse(text).kind == kind]
        if kind == "official" or len(shares) < 2:
            continue
        what = "with ones removed" if kind == "removed" else "with few label vectors"
        seeds = here.loc[here["setting"].isin(shares), "seeds"]
        count = str(seeds.max()) if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
        text = f"{experiment.name}: {experiment.dataset} {what}"
        caption = f"Mean over {count} random partition{'' if count == '1' else 's'} ± standard error."
        alt = f"AUC and negated coverage of each method on {experiment.dataset} {what}; the numbers are in summary.csv."
        drawn.append({"title": text, "images": both_themes(curves, here, kind), "alt": alt, "caption": caption})
    return drawn


def _groups(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows by dataset, those that we ran first."""
    groups = []
    for dataset in dict.fromkeys(table["dataset"]):
        rows = table[table["dataset"] == dataset].astype(object).where(table.notna(), float("nan"))
        if rows["seconds"].notna().any():
            groups.append(
                {"dataset": dataset, "rows": [row | {"title": title(row["method"])} for row in rows.to_dict("records")]}
            )
    return groups


def _tail(table: pd.DataFrame) -> list[dict[str, Any]]:
    groups = []
    for dataset, some in table.groupby("dataset", sort=False):
        rows = []
        for method in in_order(some["method"]):
            own = some[some["method"] == method].set_index("metric")
            rows.append({"title": title(method), "metrics": [tuple(own.loc[m, ["mean", "error"]]) for m in TAIL]})
        groups.append({"dataset": dataset, "rows": rows})
    return groups


def _chosen(tuned: pd.DataFrame) -> list[dict[str, Any]]:
    """A line for each dataset, setting and method, with the settings of its partitions."""
    lines = []
    for (dataset, setting, method), some in tuned.groupby(["dataset", "setting", "method"], sort=False):
        chosen = list(dict.fromkeys(_settings(str(text)) for text in some["chosen"]))
        lines.append(
            {"dataset": dataset, "setting": describe(str(setting)), "title": title(str(method)), "chosen": chosen}
        )
    return lines


def _settings(text: str) -> str:
    chosen = json.loads(text)
    parts = []
    for member in chosen.get("members", [chosen]):
        words = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in member.items()}
        parts.append(", ".join(f"{name} {value}" for name, value in words.items() if value is not None))
    return "; ".join(parts)
