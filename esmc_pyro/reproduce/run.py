"""``reproduce``: the whole job, from the sets that are there to the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from esmc_pyro.data.known import KNOWN_SETS
from esmc_pyro.data.load import DATA_VARIABLE
from esmc_pyro.reproduce.experiments import BUILT_IN, EXPERIMENTS, QUICK, Experiment, plan
from esmc_pyro.reproduce.records import Records
from esmc_pyro.reproduce.schedule import Outcome, run_cells
from esmc_pyro.reproduce.verdicts import Verdict
from esmc_pyro.validation import check_number


@dataclass(frozen=True)
class Reproduction:
    """What was done: the page, the verdicts, cells finished and asked for, and what went wrong."""

    page: Path
    verdicts: list[Verdict]
    finished: int
    planned: int
    outcome: Outcome


def is_there(dataset: str) -> bool:
    """Whether a set is built in, or in the folder that ESMC_DATA names, under its known name."""
    root = os.environ.get(DATA_VARIABLE)
    return dataset == BUILT_IN or bool(root and dataset in KNOWN_SETS and (Path(root) / dataset).is_dir())


def open_records(folder: Path) -> tuple[Records, Records]:
    """``results.csv``, a line for each finished cell, and ``settings.csv``, one for each choice of settings."""
    from esmc_pyro.reproduce.measure import ERRORS, METRICS, SECONDS

    keys = ("dataset", "setting", "method", "seed", "rows")
    results = Records(folder / "results.csv", keys, (), (*METRICS, *ERRORS, *SECONDS))
    return results, Records(folder / "settings.csv", keys, ("chosen",), ("seconds",))


def reproduce(
    folder: Path, *, quick: bool = False, datasets: Sequence[str] = (), methods: Sequence[str] = (), seeds: int = 3,
    hours: float | None = None, cores: int = 2, rows: int = 0, progress: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Reproduction:  # fmt: skip
    """Run the paper's experiments on the sets that are there, and write page and CSVs into ``folder``.

    Cells that ``folder`` holds are not run again. ``quick`` takes built-in data; ``datasets`` and ``methods`` that are
    named are the only ones; nothing new is started after ``hours``. ``note`` gets a sentence for each set that is
    skipped and each line that is damaged.
    """
    for value, name in ((seeds, "seeds"), (cores, "cores")):
        check_number(value, name, low=1, whole=True)
    check_number(rows, "rows", low=0, whole=True)
    if hours is not None:
        check_number(hours, "hours", low=0, above=True)
    wanted: list[Experiment] = [e for e in (QUICK if quick else EXPERIMENTS) if not datasets or e.dataset in datasets]
    notes: list[str] = []
    for dataset in dict.fromkeys(e.dataset for e in wanted):
        if not is_there(dataset):
            notes.append(f"{dataset} is skipped: it is not in the folder that {DATA_VARIABLE} names.")
    experiments = [e for e in wanted if is_there(e.dataset)]
    if not experiments:
        names = ", ".join(dict.fromkeys(e.dataset for e in wanted))
        raise ValueError(
            f"none of {names} is there; {DATA_VARIABLE} must name the folder that holds them (built-in data: --quick)"
        )
    results, tuned = open_records(folder)
    for records in (results, tuned):
        if records.damaged:
            notes.append(f"{records.path.name}: {records.damaged} damaged lines do not count and are run again.")
    for text in notes:
        note(text)
    cells = plan(experiments, seeds, methods=methods, rows=rows)
    outcome = run_cells(
        cells, results, tuned, cores=cores, seconds=None if hours is None else 3600 * hours, progress=progress
    )

    from esmc_pyro.reproduce.page import PAGE, write_results
    from esmc_pyro.reproduce.schedule import key_of
    from esmc_pyro.reproduce.summary import frame

    # the page has all that the folder holds, whatever part of it was asked for now
    known = [e for e in (QUICK if quick else EXPERIMENTS) if is_there(e.dataset)]
    shown = dict.fromkeys((*plan(known, seeds, rows=rows), *cells))
    done = {i: line for i, cell in enumerate(shown) if (line := results.get(**key_of(cell))) is not None}
    finished = sum(results.get(**key_of(cell)) is not None for cell in cells)
    if not finished:
        if outcome.interrupted:
            raise KeyboardInterrupt("no cell had ended.")
        why = next(iter(outcome.failures.values()), "no time was left")
        raise ValueError(f"no cell was finished ({why})")
    choices = {i: tuned.get(**key_of(tuning)) for i, tuning in enumerate(dict.fromkeys(c.tuning for c in shown))}
    found = frame(done, results.columns[:-1])

    def say(text: str) -> None:
        notes.append(text)
        note(text)

    if len(done) < len(shown):
        say(
            f"{len(shown) - len(done)} of the {len(shown)} cells are not finished; "
            "the same command, with no --dataset or --method, goes on with them."
        )
    names = ", ".join(dict.fromkeys(found["dataset"]))
    seconds = float(found[["fit_seconds", "predict_seconds"]].to_numpy().sum())
    seconds += sum(line["seconds"] for line in choices.values() if line)
    partitions = found["seed"].nunique()
    lead = (
        f"{len(done)} fits of {found['method'].nunique()} methods on {names}, {partitions} random "
        f"partition{'' if partitions == 1 else 's'}: {seconds / 60:.1f} minutes of one processor."
    )
    if rows:
        say(f"At most {rows} training rows of each set were used: these are not the paper’s experiments.")
    if quick:
        say("A quick run on pictures of digits: these are not the paper’s datasets.")
    verdicts = write_results(
        folder, found, frame({i: line for i, line in choices.items() if line}, tuned.columns[:-1]), known,
        lead=lead, notes=notes, failures=outcome.failures,
    )  # fmt: skip
    return Reproduction(folder / PAGE, verdicts, finished, len(cells), outcome)
