"""Settings from --set, TOML and --seed: types, precedence, and that they are the estimator's."""

import inspect

import pytest

from esmc_pyro import ESMCClassifier
from esmc_pyro.cli.failure import WrongUsage
from esmc_pyro.cli.settings import KEYS, check_values, collect, parse
from esmc_pyro.cli.source import FORMATS
from esmc_pyro.data.formats import READERS


def test_the_keys_are_the_arguments_of_the_estimator():
    arguments = inspect.signature(ESMCClassifier).parameters
    assert set(KEYS) == set(arguments)
    for key, argument in arguments.items():
        assert ("none" in KEYS[key]) == ("None" in str(argument.annotation)), key
        assert ("whole number" in KEYS[key]) == str(argument.annotation).startswith("int"), key


def test_the_formats_are_those_with_readers():
    assert set(FORMATS) == set(READERS)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("epochs", "20", 20),
        ("epochs", "none", None),
        ("lr", "1e-2", 0.01),
        ("lr", "None", None),
        ("kernel", "rbf+matern32", "rbf+matern32"),
        ("guide", "none", None),
        ("guide", "paper", "paper"),
        ("widths", "[30, 20]", [30, 20]),
        ("widths", "7", [7]),
        ("widths", "[]", []),
        ("widths", "none", None),
        ("verbose", "true", True),
        ("verbose", "0", False),
    ],
)
def test_values_are_read_by_type(key, text, value):
    read = parse(key, text)
    assert read == value
    assert type(read) is type(value)


def test_set_overrules_toml_and_seed_overrules_both(tmp_path):
    config = tmp_path / "esmc.toml"
    config.write_text('epochs = 5\nlr = 1\nwidths = [3]\nkernel = "rbf"\npseudo = "none"\nrandom_state = 4\n')
    read = collect(config, ["epochs=9", "epochs=8", "random_state=2"], None)
    assert read == {"epochs": 8, "lr": 1, "widths": [3], "kernel": "rbf", "pseudo": None, "random_state": 2}
    assert collect(config, ["random_state=2"], 7)["random_state"] == 7
    assert collect(None, [], None) == {}


def test_toml_and_set_reach_the_model(esmc_json, data, tmp_path):
    config = tmp_path / "esmc.toml"
    config.write_text('inference = "svi"\nepochs = 1\npseudo = 7\n')
    out = tmp_path / "m.esmc"
    said = esmc_json("fit", data / "table.csv", "--config", config, "--set", "epochs=2", "--seed", 5, "--out", out)
    assert said["epochs"] == 2
    kept = ESMCClassifier.load(out).get_params()
    assert (kept["inference"], kept["epochs"], kept["pseudo"], kept["random_state"]) == ("svi", 2, 7, 5)


@pytest.mark.parametrize("text", ["true", "3.5", '"x"', "[1.5]", "[true]"])
def test_toml_of_a_wrong_type_is_refused(tmp_path, text):
    config = tmp_path / "esmc.toml"
    config.write_text(f"widths = {text}\n")
    with pytest.raises(WrongUsage, match=r"widths is .*, expected a list of whole numbers or none"):
        collect(config, [], None)


def test_what_exists_is_accepted():
    check_values({"likelihood": "eeoe", "B": 3, "kernel": "rbf+matern12", "guide": "paper", "inference": "svi"})
    check_values({"preset": "authors_b0", "epochs": 3})
    check_values({})
