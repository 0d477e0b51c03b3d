"""Runs cells one after the other or side by side, in order, each after the choice of its method's settings."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm.auto import tqdm

from esmc_pyro.data.known import KNOWN_SETS
from esmc_pyro.reproduce.experiments import EXPERTS, OURS, PAPER, PLAIN, Cell, Tuning
from esmc_pyro.reproduce.records import Records

Job = Cell | Tuning
SLOW = {OURS: 10, EXPERTS: 10, PLAIN: 10, PAPER: 100, "GenEML": 10, "SLEEC": 5, "FaIE": 2}  # times as long as the rest
ENDED = "a process beside it or its own was ended, as for want of memory (try --cores 1 or --rows)"
TRIED, TRIED_ROWS = 5, 3000  # a choice of settings is about so many fits to at most so many rows


@dataclass
class Outcome:
    """What became of the cells that were asked for."""

    failures: dict[Job, str] = field(default_factory=dict)
    left: int = 0  # cells that were not reached
    interrupted: bool = False


def key_of(job: Job) -> dict[str, Any]:
    """The columns that name a cell or a tuning in its file."""
    key = {"dataset": job.dataset, "setting": str(job.setting), "method": job.method}
    return key | {"seed": job.seed, "rows": job.rows}


def run_job(job: Job, chosen: str) -> dict[str, Any]:
    """The record of a job; ``chosen`` (JSON) are the settings of a cell."""
    from esmc_pyro.reproduce.measure import choose, measure  # PyTorch: where the work is done

    return choose(job) if isinstance(job, Tuning) else measure(job, json.loads(chosen))


def run_cells(
    cells: Sequence[Cell], results: Records, tuned: Records, *, cores: int = 1, seconds: float | None = None,
    progress: bool = False, run: Callable[[Job, str], dict[str, Any]] = run_job,
) -> Outcome:  # fmt: skip
    """Run what ``results`` does not hold yet, the first cells first; ``seconds``: start nothing after so many.

    A method that fails costs its cell only, or all cells that wait for its settings. Ctrl-C ends the work; what is
    finished stays finished.
    """
    outcome = Outcome()
    waiting = [cell for cell in cells if results.get(**key_of(cell)) is None]
    end = None if seconds is None else time.monotonic() + seconds
    jobs: list[Job] = [*cells, *dict.fromkeys(cell.tuning for cell in cells)]
    left = [job for job in jobs if (results if isinstance(job, Cell) else tuned).get(**key_of(job)) is None]
    bar = _progress(jobs, left, shown=progress)
    running: dict[Future[dict[str, Any]], Job] = {}

    def next_job() -> tuple[Job, str] | None:
        if end is not None and time.monotonic() >= end:
            return None
        busy = set(running.values())
        for cell in list(waiting):
            known = tuned.get(**key_of(cell.tuning))
            if known is not None:
                waiting.remove(cell)
                return cell, known["chosen"]
            if cell.tuning in outcome.failures:
                waiting.remove(cell)
                outcome.failures[cell] = "its settings could not be chosen"
                bar.update(_weight(cell))
            elif cell.tuning not in busy:
                return cell.tuning, ""
        return None

    def finish(job: Job, future: Future[dict[str, Any]]) -> None:
        try:
            record = key_of(job) | future.result()
        except BrokenProcessPool:
            raise
        except Exception as error:
            outcome.failures[job] = " ".join(f"{type(error).__name__}: {error}".split())
        else:
            (results if isinstance(job, Cell) else tuned).add(record)
        bar.set_postfix_str(f"{job.dataset}, {job.setting}, {job.method}")
        bar.update(_weight(job))

    def work() -> None:
        with _workers(cores, run) as submit:
            while True:
                while len(running) < cores and (found := next_job()) is not None:
                    running[submit(*found)] = found[0]
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    finish(running[future], future)
                    del running[future]

    with bar:
        while True:
            try:
                work()
            except KeyboardInterrupt:
                outcome.interrupted = True
            except BrokenProcessPool:  # nothing but the system ends a worker, and does not say for which job
                outcome.failures |= dict.fromkeys(running.values(), ENDED)
                running.clear()
                continue
            break
    outcome.left = sum(results.get(**key_of(cell)) is None for cell in cells) - sum(
        isinstance(job, Cell) for job in outcome.failures
    )
    return outcome


def _weight(job: Job) -> float:
    """About how long a job takes, beside others: by its method and labelled rows."""
    known = KNOWN_SETS.get(job.dataset)
    rows: float = job.rows or (known.n_train if known else 1000)
    rows *= job.setting.share if job.setting.kind in ("kept", "alone") else 1
    return SLOW.get(job.method, 1) * (TRIED * min(rows, TRIED_ROWS) if isinstance(job, Tuning) else rows)


def _progress(jobs: Sequence[Job], left: Sequence[Job], *, shown: bool) -> Any:
    """A bar whose time left goes by the weights of jobs; a line a minute where no one watches a terminal."""
    total = sum(map(_weight, jobs))
    return tqdm(
        total=total, initial=total - sum(map(_weight, left)), disable=not shown, smoothing=0,
        mininterval=0.1 if sys.stderr.isatty() else 60,
        bar_format="{percentage:3.0f}%|{bar:20}| {elapsed} gone, {remaining} left{postfix}",
    )  # fmt: skip


@contextmanager
def _workers(cores: int, run: Callable[[Job, str], dict[str, Any]]) -> Iterator[Callable[..., Future[dict[str, Any]]]]:
    """How to submit a job: to this process, or to one of ``cores`` others with one thread each."""
    if cores == 1:
        with _one_thread():
            yield lambda *job: _run_now(run, *job)
        return
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield lambda *job: pool.submit(run, *job)
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_now(run: Callable[[Job, str], dict[str, Any]], *job: Any) -> Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    try:
        future.set_result(run(*job))
    except Exception as error:
        future.set_exception(error)
    return future


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a fit that catches Ctrl-C would pass for a finished one
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)
