"""Cells are run in order and once, each after the choice of its settings; what fails or stops costs no other cell."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from esmc_pyro.reproduce import schedule
from esmc_pyro.reproduce.experiments import Cell, Setting, Tuning
from esmc_pyro.reproduce.run import open_records
from esmc_pyro.reproduce.schedule import key_of, run_cells

FULL, HALF = Setting("removed", 0.0), Setting("removed", 0.5)
CELLS = [
    Cell("a", setting, method, seed) for seed in (0, 1) for setting in (FULL, HALF) for method in ("BR", "PLST", "kNN")
]


@pytest.fixture
def records(tmp_path):
    return lambda: open_records(tmp_path)


def fake(log, fail=(), stop_after=None):
    """Jobs that note what they were asked and take no time."""

    def run(job, chosen):
        if stop_after is not None and len(log) == stop_after:
            raise KeyboardInterrupt
        log.append(job)
        if (type(job), job.method) in fail:
            raise ValueError(f"{job.method}\nis not for this")
        if isinstance(job, Tuning):
            return {"chosen": json.dumps({"of": str(job.setting)}), "seconds": 1.0}
        assert json.loads(chosen) == {"of": str(job.setting.tuned_at)}
        return dict.fromkeys(results_numbers, 0.5)

    return run


results_numbers: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def _columns(records):
    global results_numbers
    results_numbers = records()[0].numbers


def test_each_choice_of_settings_is_made_once_and_before_its_cells(records):
    log = []
    outcome = run_cells(CELLS, *records(), run=fake(log))
    assert (outcome.left, outcome.failures, outcome.interrupted) == (0, {}, False)
    assert [job for job in log if isinstance(job, Cell)] == CELLS
    tunings = [job for job in log if isinstance(job, Tuning)]
    assert len(tunings) == len(set(tunings)) == 12
    assert all(log.index(cell.tuning) < log.index(cell) for cell in CELLS)


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_an_interrupted_run_goes_on_where_it_stopped(records, after):
    first, second = [], []
    outcome = run_cells(CELLS, *records(), run=fake(first, stop_after=after))
    assert outcome.interrupted
    assert outcome.left == len(CELLS) - sum(isinstance(job, Cell) for job in first)
    assert not run_cells(CELLS, *records(), run=fake(second)).interrupted
    assert not set(first) & set(second)
    assert set(first) | set(second) >= set(CELLS)
    third = []
    assert run_cells(CELLS, *records(), run=fake(third)).left == 0
    assert third == []


def test_a_damaged_line_is_run_again_and_nothing_else(records, tmp_path):
    run_cells(CELLS, *records(), run=fake([]))
    path = tmp_path / "results.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], lines[4][:30] + "\n", *lines[5:]]))
    results, tuned = records()
    assert results.damaged == 1
    log = []
    run_cells(CELLS, results, tuned, run=fake(log))
    assert log == [CELLS[3]]
    assert len(records()[0].lines) == len(CELLS)


def test_a_method_that_fails_costs_its_own_cells_and_is_tried_again(records):
    outcome = run_cells(CELLS, *records(), run=fake([], fail={(Tuning, "BR"), (Cell, "kNN")}))
    assert {job.method for job in outcome.failures if isinstance(job, Cell)} == {"BR", "kNN"}
    assert outcome.failures[CELLS[2]] == "ValueError: kNN is not for this"
    assert outcome.left == 0
    assert {key[2] for key in records()[0].lines} == {"PLST"}
    log = []
    assert run_cells(CELLS, *records(), run=fake(log)).failures == {}
    assert {job.method for job in log} == {"BR", "kNN"}


def test_nothing_is_started_when_the_time_is_over(records, monkeypatch):
    log = []
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: len(log)))  # a second a job
    outcome = run_cells(CELLS, *records(), run=fake(log), seconds=4.5)
    assert len(log) == 5  # begun after 0, 1, 2, 3 and 4 seconds
    assert outcome.left == len(CELLS) - sum(isinstance(job, Cell) for job in log)
    assert not outcome.interrupted


def tell_process(job, chosen):
    """A job for other processes: it says where it ran."""
    if isinstance(job, Tuning):
        return {"chosen": "{}", "seconds": float(os.getpid())}
    if job.seed == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return dict.fromkeys(open_columns(), float(os.getpid()))


def open_columns():
    from esmc_pyro.reproduce.measure import ERRORS, METRICS, SECONDS

    return (*METRICS, *ERRORS, *SECONDS)


@pytest.mark.slow
def test_cells_run_side_by_side_in_other_processes(records):
    results, tuned = records()
    assert run_cells(CELLS, results, tuned, cores=2, run=tell_process).left == 0
    processes = {line["auc"] for line in results.lines.values()} | {line["seconds"] for line in tuned.lines.values()}
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2
    deadly, other = Cell("a", FULL, "BR", 7), Cell("a", FULL, "kNN", 6)
    outcome = run_cells([deadly, other], results, tuned, cores=2, run=tell_process)
    assert outcome.failures[deadly] == schedule.ENDED
    assert not outcome.interrupted
    # what ran beside it may have been ended too; what came after was run
    assert run_cells([other], results, tuned, cores=2, run=tell_process).left == 0
    assert results.get(**key_of(CELLS[0])) is not None
