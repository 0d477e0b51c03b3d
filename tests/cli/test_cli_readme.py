"""The README's shell session runs, on fewer pictures, and says what the README shows it saying."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SMALL = ("--limit", "40")
QUICK = ("--set", "inference=svi", "--set", "epochs=2", "--set", "pseudo=10")


def session():
    """The commands of the console block, each with the lines shown below it."""
    (block,) = re.findall(r"^```console\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    shown = []
    for line in block.splitlines():
        if line.startswith("$ "):
            shown.append((line.split()[2:], []))
        else:
            shown[-1][1].append(line)
    return shown


def columns(lines):
    """The words of each table's head: the line above its rule."""
    return [above.split() for above, rule in pairwise(lines) if rule.startswith("──")]


def test_the_shell_session_of_the_readme(esmc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = session()
    assert [arguments[0] for arguments, _ in commands] == ["fit", "evaluate", "complete", "suggest", "report"]
    for arguments, shown in commands:
        result = esmc(*arguments, *SMALL, *(QUICK if arguments[0] == "fit" else ()))
        assert result.exit_code == 0, result.stderr
        said = (result.stdout + result.stderr).splitlines()
        assert columns(said) == columns(shown)
        assert [line.split(":")[0] for line in said[:1]] == [line.split(":")[0] for line in shown[:1]]
        if "..." not in shown:
            assert len(said) == len(shown)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.esmc", "digits.html"]


def test_the_exit_codes_of_the_readme_are_those_of_the_help(esmc):
    (codes,) = re.findall(r"Exit codes: (.*?)\.$", README, flags=re.MULTILINE)
    shown = esmc("--help").stdout
    for entry in codes.split(", "):
        code, words = entry.split(" ", 1)
        assert re.search(rf"^ +{code} +{words}", shown, flags=re.MULTILINE), entry


@pytest.mark.parametrize("option", ["--set", "--config", "--resume"])
def test_the_options_of_the_readme_exist(esmc, option):
    assert f"`{option}" in README
    assert f"  {option} " in esmc("fit", "--help").stdout
