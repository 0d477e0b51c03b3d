"""Files are written whole or not at all; a fit that is interrupted or killed loses little."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from esmc_pyro import ESMCClassifier
from esmc_pyro.cli import fit as fit_command
from esmc_pyro.data import load_dataset

LONG = ("--set", "inference=svi", "--set", "epochs=20", "--set", "pseudo=15")


class Killed(BaseException):
    """Ends a fit as `kill -9` would: nobody catches it."""


@pytest.fixture
def stop_after(monkeypatch):
    """Raise an error, or a signal, in the so many-th step of the optimiser."""
    step, taken = torch.optim.Adam.step, []

    def arrange(steps, stop):
        def stopping(self, *arguments, **options):
            taken.append(1)
            if len(taken) == steps and isinstance(stop, signal.Signals):
                signal.raise_signal(stop)
            elif len(taken) == steps:
                raise stop
            return step(self, *arguments, **options)

        monkeypatch.setattr(torch.optim.Adam, "step", stopping)

    yield arrange
    monkeypatch.undo()


def scores(path, data):
    fitted = ESMCClassifier.load(path)
    X = load_dataset(data / "numbered.npz").X_train
    return np.asarray(fitted.decision_function(pd.DataFrame(X, columns=fitted.feature_names_in_)))


def test_a_model_is_replaced_only_by_force(esmc, data, tmp_path):
    out = tmp_path / "m.esmc"
    out.write_text("precious")
    quick = ("fit", data / "table.csv", "--set", "inference=svi", "--set", "epochs=1", "--out", out)
    assert esmc(*quick).exit_code == 2
    assert out.read_text() == "precious"
    assert esmc(*quick, "--force").exit_code == 0
    assert ESMCClassifier.load(out).n_labels_ == 5


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.npz"])
def test_a_table_is_replaced_only_by_force(esmc, data, model, tmp_path, name):
    out = tmp_path / name
    out.write_text("precious")
    ask = ("predict", model, data / "features.csv", "--out", out)
    assert esmc(*ask).exit_code == 2
    assert out.read_text() == "precious"
    assert esmc(*ask, "--force").exit_code == 0
    assert len(out.read_bytes()) > 500


@pytest.mark.skipif(os.name != "posix", reason="links need no rights there")
def test_links_are_followed(esmc, data, model, tmp_path):
    page, there, own = (tmp_path / name for name in ("p.csv", "far/p.csv", "own.csv"))
    there.parent.mkdir()
    there.write_text("old")
    page.symlink_to(there)
    own.symlink_to(data / "features.csv")
    assert esmc("predict", model, data / "features.csv", "--out", page, "--force").exit_code == 0
    assert page.is_symlink()
    assert len(there.read_bytes()) > 500
    result = esmc("predict", model, data / "features.csv", "--out", own, "--force")
    assert (result.exit_code, "own.csv is a file that this command reads" in result.stderr) == (2, True)
    page = tmp_path / "page.html"
    page.symlink_to(model)
    for command in ("report", "diagnose"):
        assert esmc(command, model, data / "table.csv", "--out", page, "--force").exit_code == 2


def test_a_write_that_fails_leaves_the_old_file(esmc, data, model, tmp_path, monkeypatch):
    out = tmp_path / "p.csv"
    out.write_text("precious")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = esmc("predict", model, data / "features.csv", "--out", out, "--force")
    assert result.exit_code == 1
    assert result.stderr == "esmc predict: No space left on device.\n"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("p.csv", "precious")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_seen_before_the_fit(esmc, data, tmp_path):
    tmp_path.chmod(0o500)
    result = esmc("fit", data / "table.csv", "--out", tmp_path / "m.esmc")
    assert (result.exit_code, "where nothing can be written" in result.stderr) == (2, True)


def test_an_interrupted_fit_is_saved(esmc, data, tmp_path, stop_after):
    stop_after(27, KeyboardInterrupt())  # 20 steps are those of the fit to some rows
    out = tmp_path / "m.esmc"
    result = esmc("fit", data / "table.csv", *LONG, "--out", out)
    assert result.exit_code == 130
    assert result.stderr == f"esmc fit: interrupted; what was fitted so far is in {out}.\n"
    assert 0 < len(ESMCClassifier.load(out).posterior_.history) < 20
    assert os.listdir(tmp_path) == ["m.esmc"]


def test_ctrl_c_before_the_last_stage_is_not_forgotten(esmc, data, tmp_path, stop_after):
    stop_after(10, signal.SIGINT)  # in the fit to some rows, which calibrates the probabilities
    out = tmp_path / "m.esmc"
    result = esmc("fit", data / "table.csv", *LONG, "--out", out)
    assert result.exit_code == 130
    assert "Ctrl-C ends this stage; again for the next." in result.stderr
    assert len(ESMCClassifier.load(out).posterior_.history) == 20


def test_interrupted_before_anything_was_fitted(esmc, data, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_command, "_features", interrupt)
    result = esmc("fit", data / "table.csv", *LONG, "--out", tmp_path / "m.esmc")
    assert (result.exit_code, result.stderr) == (130, "esmc fit: interrupted; nothing was written.\n")
    assert os.listdir(tmp_path) == []


def test_interrupted_in_the_first_epoch(esmc, data, tmp_path, stop_after):
    stop_after(21, KeyboardInterrupt())
    result = esmc("fit", data / "table.csv", *LONG, "--out", tmp_path / "m.esmc")
    assert result.exit_code == 130
    assert result.stderr == "esmc fit: interrupted; nothing was fitted yet, so nothing was written.\n"
    assert os.listdir(tmp_path) == []


def test_a_killed_fit_goes_on_to_the_same_result(esmc, data, tmp_path, stop_after, monkeypatch):
    whole, out = tmp_path / "whole.esmc", tmp_path / "m.esmc"
    assert esmc("fit", data / "table.csv", *LONG, "--out", whole, "-q").exit_code == 0
    ask = ("fit", data / "table.csv", *LONG, "--out", out, "--resume", "--checkpoint-every", 0, "-q")
    stop_after(27, Killed())
    with pytest.raises(Killed):
        esmc(*ask)
    assert sorted(os.listdir(tmp_path)) == ["m.esmc.checkpoint", "whole.esmc"]
    monkeypatch.undo()
    assert esmc(*ask).exit_code == 0
    np.testing.assert_array_equal(scores(out, data), scores(whole, data))
    assert sorted(os.listdir(tmp_path)) == ["m.esmc", "whole.esmc"]


def test_an_interrupted_fit_goes_on_and_replaces_its_model(esmc, data, tmp_path, stop_after, monkeypatch):
    out, checkpoint = tmp_path / "m.esmc", tmp_path / "kept" / "c"
    ask = ("fit", data / "table.csv", *LONG, "--out", out, "--checkpoint", checkpoint, "--checkpoint-every", 0)
    stop_after(27, KeyboardInterrupt())
    result = esmc(*ask)
    assert result.exit_code == 130
    assert "and --resume goes on from the last checkpoint" in result.stderr
    monkeypatch.undo()
    assert esmc(*ask).exit_code == 2  # neither --resume nor --force
    assert esmc(*ask, "--resume").exit_code == 0
    assert not checkpoint.exists()
    assert len(ESMCClassifier.load(out).posterior_.history) == 20


def test_a_checkpoint_of_another_fit_is_refused(esmc, data, tmp_path, stop_after, monkeypatch):
    ask = ("fit", data / "table.csv", *LONG, "--out", tmp_path / "m.esmc", "--resume", "--checkpoint-every", 0)
    stop_after(27, Killed())
    with pytest.raises(Killed):
        esmc(*ask)
    monkeypatch.undo()
    result = esmc(*ask, "--set", "epochs=21")
    assert result.exit_code == 1
    assert "m.esmc.checkpoint: this checkpoint is of another fit" in result.stderr
    assert not (tmp_path / "m.esmc").exists()


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(data, tmp_path):
    out, checkpoint = tmp_path / "m.esmc", tmp_path / "m.esmc.checkpoint"
    code = "from esmc_pyro.cli import main; main()"
    settings = ("--set", "inference=svi", "--set", "epochs=1000000", "--set", "pseudo=8", "--checkpoint-every", "0")
    arguments = [sys.executable, "-c", code, "fit", data / "table.csv", "--out", out, "--resume", *settings, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_writes(count):
        seen, until = set(), time.monotonic() + 120
        while len(seen) < count and time.monotonic() < until and process.poll() is None:
            if checkpoint.exists():
                seen.add(checkpoint.stat().st_mtime_ns)
            time.sleep(0.02)

    with process:
        try:
            wait_for_writes(3)
            process.send_signal(signal.SIGINT)  # ends the fit to some rows
            time.sleep(1)
            wait_for_writes(5)
            process.send_signal(signal.SIGINT)  # ends the fit
            said, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("esmc fit: interrupted; what was fitted so far is in")
    assert json.loads(said)["interrupted"] is True
    assert ESMCClassifier.load(out).posterior_.interrupted
