"""The whole job in small: built-in data, sets that are not there, the page, and what the command line refuses."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from esmc_pyro import figures, search
from esmc_pyro.cli import app
from esmc_pyro.page import both_themes
from esmc_pyro.reproduce import page as reproduce_page
from esmc_pyro.reproduce import schedule
from esmc_pyro.reproduce.experiments import METHOD_NAMES
from esmc_pyro.reproduce.methods import METHODS, Rows
from esmc_pyro.reproduce.run import is_there, reproduce

TABLES = {
    f"{name}.csv" for name in ("results", "settings", "summary", "published", "table_2", "table_3", "tail", "verdicts")
}
TINY = ("--quick", "--method", "BR", "--method", "ESMC", "--rows", "30", "--seeds", "1", "--cores", "1")


@pytest.fixture(scope="module")
def esmc():
    def run(*arguments):
        result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="module")
def folder(esmc, tmp_path_factory):
    """A quick run of two methods on very few rows, without any ESMC_DATA; only light figures are drawn."""

    def light_only(figure, *args):
        return both_themes(lambda *a, theme: figure(*a, theme=theme) if theme is figures.LIGHT else Figure(), *args)

    out = tmp_path_factory.mktemp("reproduce") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ESMC_DATA", raising=False)
        patch.setattr(search, "CANDIDATES", ())  # a short search, judged by one fifth of the rows
        patch.setattr(search, "JUDGES", 1)
        patch.setattr(reproduce_page, "both_themes", light_only)
        result = esmc(*TINY, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout)
    assert done["finished"] == done["planned"] == 10
    return out


def test_a_quick_run_leaves_a_page_and_tables(folder):
    assert {path.name for path in folder.iterdir()} == TABLES | {"index.html"}
    results = pd.read_csv(folder / "results.csv")
    assert set(results["method"]) == {"BR", "ESMC"}
    assert results["auc"].between(0.3, 1).all()
    verdicts = pd.read_csv(folder / "verdicts.csv")
    judged = verdicts[(verdicts["of"] == "ESMC") & verdicts["claim"].str.startswith("Unlabelled")]
    assert set(judged["metric"]) == {"auc", "coverage"}


def test_the_page_stands_alone_and_shows_every_part(folder):
    html = (folder / "index.html").read_text(encoding="utf-8")
    for source in re.findall(r"""(?:src|srcset|href)=["']([^"']*)""", html):
        assert source.startswith("data:image/"), source[:60]
    assert "<script" not in html
    assert "@import" not in html
    assert "url(" not in html
    for word in ("Experts help when labels are missing", "Unlabelled rows help", "Table III", "Figures 4-7", "61.54"):
        assert (word in html) == (word != "61.54")  # delicious was not run: its table is left out
    assert "ESMC, ours" in html
    assert "not the paper’s datasets" in html
    assert html.count("<figure>") == 3


def test_a_finished_run_is_not_run_again(folder, esmc, monkeypatch):
    before = (folder / "results.csv").read_bytes()

    def never(job, chosen):
        raise AssertionError(f"{job} was run again")

    monkeypatch.setattr(schedule, "run_job", never)
    monkeypatch.setattr(reproduce_page, "both_themes", lambda *args: {"light": "data:image/", "dark": "data:image/"})
    result = esmc(*TINY, "--out", folder)
    assert result.exit_code == 0, result.stderr
    assert (folder / "results.csv").read_bytes() == before
    assert "index.html written" in result.stderr


@pytest.mark.slow
def test_every_method_runs_in_every_figure(esmc, tmp_path, monkeypatch):
    monkeypatch.delenv("ESMC_DATA", raising=False)
    every = [word for name in METHOD_NAMES for word in ("--method", name)]
    result = esmc("--quick", *every, "--rows", 40, "--seeds", 1, "--cores", 1, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    results = pd.read_csv(tmp_path / "results.csv")
    assert set(results["method"]) == set(METHOD_NAMES)
    assert {text.partition(" ")[0] for text in results["setting"]} == {"removed", "kept", "alone", "official"}
    assert results["auc"].between(0.3, 1).all()


@pytest.mark.parametrize("method", ["ESMC", "ESMC-B0"])
def test_half_a_fit_is_no_result(method, monkeypatch):
    """Ctrl-C, which a fit survives with what it has, ends the cell."""
    monkeypatch.setattr("esmc_pyro.search.CANDIDATES", (({"amplitude": 2.0},),))
    rows = Rows(np.random.default_rng(0).random((30, 4)), np.eye(30, 3, dtype=np.float32))
    whole = METHODS[method].choose(rows, 0)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("torch.optim.Adam.step", stop)
    monkeypatch.setattr("esmc_pyro.inference.analytic.solver.Solver.sweep", stop)
    with pytest.raises(KeyboardInterrupt):
        METHODS[method].fit(whole, rows, 0)


def test_sets_that_are_not_there_are_skipped_with_a_word(tmp_path, monkeypatch):
    (tmp_path / "cal500").mkdir()
    monkeypatch.setenv("ESMC_DATA", str(tmp_path))
    assert is_there("cal500")
    assert is_there("digits")
    assert not is_there("corel5k")
    said = []
    with pytest.raises(ValueError, match=r"no cell was finished .*cal500"):  # an empty folder
        reproduce(tmp_path / "out", datasets=["cal500", "corel5k"], methods=["BR"], cores=1, note=said.append)
    assert said == ["corel5k is skipped: it is not in the folder that ESMC_DATA names."]
    assert not (tmp_path / "out").exists()
    monkeypatch.delenv("ESMC_DATA")
    with pytest.raises(ValueError, match=r"none of cal500, .* is there; ESMC_DATA must name the folder"):
        reproduce(tmp_path / "out", cores=1)


REFUSED = {
    "strange dataset": (("--dataset", "corel"), 2, "--dataset is 'corel', expected one of cal500, corel5k,"),
    "dataset of a quick run": (
        ("--quick", "--dataset", "corel5k"),
        2,
        "--dataset is 'corel5k', expected one of digits",
    ),
    "strange method": (("--method", "LEMON"), 2, "did you mean 'LEML'?"),
    "no time": (("--hours", "0"), 2, "--hours is 0, expected a number above 0."),
    "no seeds": (("--seeds", "0"), 2, "Invalid value for '--seeds'"),
    "few rows": (("--rows", "3"), 2, "Invalid value for '--rows'"),
    "out is a file": (("--quick", "--out", __file__), 2, "is a file, expected a folder."),
    "no data": (("--dataset", "iaprtc12"), 1, "none of iaprtc12 is there; ESMC_DATA must name the folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_gets_one_sentence_and_leaves_nothing(esmc, name, tmp_path, monkeypatch):
    monkeypatch.delenv("ESMC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    arguments, code, sentence = REFUSED[name]
    result = esmc(*arguments)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_version_is_refused(esmc, tmp_path):
    (tmp_path / "results.csv").write_text("dataset,auc\n")
    result = esmc(*TINY, "--out", tmp_path)
    assert result.exit_code == 1
    assert "results.csv has other columns than results of this version" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"results.csv"}
