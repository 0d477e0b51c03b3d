"""Help, version, completion, and that none of them waits for PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import esmc_pyro
from esmc_pyro.cli.completion import complete_data, complete_path, complete_setting

COMMANDS = (
    "fit", "predict", "evaluate", "complete", "suggest", "inspect", "report", "diagnose", "demo", "reproduce"
)  # fmt: skip


def test_the_help_lists_commands_and_exit_codes(esmc):
    shown = esmc("--help").stdout
    for word in (*COMMANDS, "Exit codes:", "130", "--version", "--install-completion"):
        assert word in shown
    assert esmc().exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_examples_that_parse(esmc, command):
    shown = esmc(command, "--help").stdout
    examples = [line.split("#")[0].split("|")[0].split() for line in shown.splitlines() if line.startswith("    esmc ")]
    assert examples
    assert "--json" in shown
    for _, name, *arguments in examples:
        assert name == command
        for option in (argument for argument in arguments if argument.startswith("--")):
            assert option in shown.replace(" ".join(arguments), ""), option


def test_version(esmc):
    from importlib.metadata import version

    assert esmc("--version").stdout == f"esmc-pyro {version('esmc-pyro')}\n"


def test_help_does_not_load_pytorch():
    code = (
        "import sys; from esmc_pyro.cli import app\n"
        "try: app(['fit', '--help'])\n"
        "except SystemExit: pass\n"
        "slow = {'torch', 'pyro', 'numpy', 'pandas', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "esmc fit" in done.stdout


def test_the_entry_point_runs_as_a_program():
    program = Path(sys.executable).with_name("esmc")
    if not program.exists():
        pytest.skip("the package is not installed with its entry point")
    done = subprocess.run([program, "fit", "x", "--out", "y", "--set", "epohcs=1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "esmc fit: --set 'epohcs' is no setting; did you mean 'epochs'?\n"
    assert done.stdout == ""


def test_the_shell_asks_for_completions():
    environment = os.environ | {"_ESMC_COMPLETE": "complete_bash", "COMP_WORDS": "esmc fit --set ep", "COMP_CWORD": "3"}
    code = "import sys; sys.argv[0] = 'esmc'; from esmc_pyro.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "epochs="


def test_completions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets" / "corel5k").mkdir(parents=True)
    (tmp_path / "songs.csv").touch()
    (tmp_path / ".hidden").touch()
    monkeypatch.setenv("ESMC_DATA", str(tmp_path / "sets"))
    assert complete_data("") == ["digits", "corel5k", "sets/", "songs.csv"]
    assert complete_data("co") == ["corel5k"]
    assert complete_path("sets/") == ["sets/corel5k/"]
    assert complete_path("nowhere/x") == []
    assert complete_setting("w") == ["widths="]
    monkeypatch.delenv("ESMC_DATA")
    assert complete_data("d") == ["digits"]


def test_the_packages_names_come_on_demand():
    from esmc_pyro.data import Dataset, load_dataset
    from esmc_pyro.estimator import ESMCClassifier

    assert {"Dataset", "ESMCClassifier", "load_dataset"} <= set(dir(esmc_pyro))
    assert (esmc_pyro.Dataset, esmc_pyro.load_dataset) == (Dataset, load_dataset)
    assert esmc_pyro.ESMCClassifier is ESMCClassifier
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = esmc_pyro.Nothing
