"""`esmc reproduce`: the paper's experiments, run and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esmc_pyro.cli.failure import Failure, WrongUsage
from esmc_pyro.cli.output import Output
from esmc_pyro.cli.settings import nearest
from esmc_pyro.reproduce.experiments import BUILT_IN, DATASET_NAMES, METHOD_NAMES


def _check_names(given: list[str], known: tuple[str, ...], option: str) -> None:
    for name in given:
        if name not in known:
            hint = nearest(name, known) or "."
            raise WrongUsage(f"{option} is {name!r}, expected one of {', '.join(known)}{hint}")


def reproduce(
    output: Output,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of page and CSVs.", show_default="reproduction, or quick-reproduction"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes, on built-in data.")] = False,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Random partitions.")] = 3,
    hours: Annotated[float, typer.Option(help="Start nothing new after so many.")] = 1.4,
    cores: Annotated[int, typer.Option(min=1, help="Cells side by side, a thread each.")] = 2,
    rows: Annotated[int | None, typer.Option(min=20, help="Training rows at most.", show_default=False)] = None,
) -> None:
    """Run the paper's experiments on the sets that ESMC_DATA holds, and write a page that judges its claims.

    A finished cell (dataset, setting, method, partition) is in the folder's results.csv and is not run again: the same
    command goes on where it stopped, after Ctrl-C too.

    \b
    Examples:
      esmc reproduce --quick --out reproduction
      esmc reproduce --dataset corel5k --method ESMC --method SLRM --hours 0.5
    """
    datasets, methods = dataset or [], method or []
    _check_names(datasets, (BUILT_IN,) if quick else DATASET_NAMES, "--dataset")
    _check_names(methods, METHOD_NAMES, "--method")
    if not 0 < hours < float("inf"):
        raise WrongUsage(f"--hours is {hours:g}, expected a number above 0.")
    out = out or Path("quick-reproduction" if quick else "reproduction")
    if out.exists() and not out.is_dir():
        raise WrongUsage(f"--out {out} is a file, expected a folder.")

    from esmc_pyro.reproduce.run import reproduce as run

    done = run(
        out, quick=quick, datasets=datasets, methods=methods, seeds=seeds, hours=hours, cores=cores, rows=rows or 0,
        progress=not output.quiet, note=output.note,
    )  # fmt: skip
    verdicts = [{"claim": v.claim, "of": v.subject, "verdict": v.outcome, "why": v.sentence} for v in done.verdicts]
    output.emit({"out": str(done.page), "finished": done.finished, "planned": done.planned, "verdicts": verdicts})
    if not output.json:
        for line in verdicts:
            output.note(f"{line['verdict']}: {line['claim']} ({line['of']}). {line['why']}")
        output.note(f"{done.page} written: {done.finished} of {done.planned} cells.")
    for job, why in done.outcome.failures.items():
        output.note(f"{job.dataset}, {job.setting}, {job.method} failed: {why}")
    if done.outcome.interrupted:
        raise KeyboardInterrupt("the same command goes on.")
    if done.outcome.failures:
        raise Failure(f"{len(done.outcome.failures)} cells failed; the same command tries them again.")
