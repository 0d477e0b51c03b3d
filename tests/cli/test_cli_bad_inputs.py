"""Bad inputs: the exit code and the sentence that each gets, with no traceback and no file left behind."""

import re

import pytest

TABLE, MODEL, OUT = "{data}/table.csv", "{data}/models/table.esmc", "{data}/new.out"
FIT = ("fit", TABLE, "--out", OUT)

CASES = {
    # wrong usage: nothing is read
    "no such command": (("train",), 2, "No such command 'train'"),
    "no data": (("fit", "--out", OUT), 2, "Missing argument"),
    "no out": (("fit", TABLE), 2, "Missing option"),
    "unknown option": ((*FIT, "--sede", "1"), 2, "No such option: --sede"),
    "misspelt key": ((*FIT, "--set", "epohcs=3"), 2, "'epohcs' is no setting; did you mean 'epochs'?"),
    "key in other case": ((*FIT, "--set", "b=3"), 2, "'b' is no setting; did you mean 'B'?"),
    "strange key": ((*FIT, "--set", "zzz=3"), 2, "expected one of likelihood, B, kernel"),
    "no equals": ((*FIT, "--set", "epochs"), 2, "--set 'epochs' has no '=', expected key=value."),
    "text for a number": ((*FIT, "--set", "epochs=ten"), 2, "epochs is 'ten', expected a whole number or none."),
    "fraction of an epoch": ((*FIT, "--set", "epochs=1.5"), 2, "epochs is '1.5', expected a whole number or none."),
    "zero epochs": ((*FIT, "--set", "epochs=0"), 2, "epochs must be a whole number of at least 1; got 0."),
    "negative lr": ((*FIT, "--set", "lr=-1"), 2, "lr must be a number above 0; got -1.0."),
    "none for a text": ((*FIT, "--set", "kernel="), 2, "kernel is '', expected text."),
    "bad list": ((*FIT, "--set", "widths=3,x"), 2, "widths is '3,x', expected a list of whole numbers or none."),
    "empty layer": ((*FIT, "--set", "widths=0"), 2, "widths is [0], expected numbers of at least 1."),
    "misspelt kernel": ((*FIT, "--set", "kernel=rfb"), 2, "matern52; did you mean 'rbf'?"),
    "misspelt preset": ((*FIT, "--set", "preset=authors"), 2, "preset is 'authors', expected one of"),
    "misspelt likelihood": ((*FIT, "--set", "likelihood=bernouli"), 2, "did you mean 'bernoulli'?"),
    "guide and preset": ((*FIT, "--set", "preset=paper", "--set", "guide=paper"), 2, "preset"),
    "negative seed": ((*FIT, "--seed", "-1"), 2, "Invalid value for '--seed'"),
    "bool that is none": ((*FIT, "--set", "verbose=perhaps"), 2, "verbose is 'perhaps', expected true or false."),
    "no config": ((*FIT, "--config", "{data}/absent.toml"), 2, "absent.toml cannot be read (No such file"),
    "config is not TOML": ((*FIT, "--config", "{data}/broken.toml"), 2, "broken.toml is not TOML"),
    "config with a strange key": ((*FIT, "--config", "{data}/unknown.toml"), 2, "'epoch' is no setting; did you mean"),
    "config of a wrong type": ((*FIT, "--config", "{data}/wrong.toml"), 2, "epochs is 'many', expected a whole number"),
    "strange format": ((*FIT, "--format", "svm"), 2, "--format is 'svm', expected one of"),
    "fraction of one": ((*FIT, "--test-fraction", "1"), 2, "--test-fraction is 1, expected a number between 0 and 1."),
    "removing all": ((*FIT, "--remove-ones", "1.5"), 2, "--remove-ones is 1.5, expected a number between 0 and 1."),
    "two ways to labels": (
        (*FIT, "--label-prefix", "label_", "--tag-column", "tags"), 2, "--label-prefix and --tag-column are given"
    ),
    "separator alone": ((*FIT, "--tag-separator", "|"), 2, "--tag-separator needs a separator and --tag-column."),
    "options for digits": (("fit", "digits", "--test-fraction", "0.5", "--out", OUT), 2, "'digits' is built in"),
    "model is there": (("fit", TABLE, "--out", MODEL), 2, "table.esmc exists; say --force to overwrite it."),
    "out is a folder": (("fit", TABLE, "--out", "{data}"), 2, "is a folder, expected the name of a file."),
    "out below a file": (("fit", TABLE, "--out", TABLE + "/m"), 2, "table.csv, which is a file."),
    "checkpoint is the model": ((*FIT, "--checkpoint", OUT), 2, "--checkpoint and --out are the same file"),
    "checkpoint is there": ((*FIT, "--checkpoint", TABLE), 2, "say --resume to go on from it or --force"),
    "fit over its data": (("fit", TABLE, "--out", TABLE, "--force"), 2, "is a file that this command reads, expected"),
    "fit over the file of a folder": (
        ("fit", "{data}/mulan", "--out", "{data}/mulan/../mulan/songs.xml", "--force"), 2, "that this command reads"
    ),
    "fit over its test rows": (
        ("fit", TABLE, "--test", "{data}/turned.csv", "--out", "{data}/turned.csv", "--force"), 2,
        "that this command reads",
    ),
    "fit over its settings": (
        (*FIT[:-1], "{data}/good.toml", "--config", "{data}/good.toml", "--force"), 2, "that this command reads"
    ),
    "fit over unlabelled rows": (
        (*FIT[:-1], "{data}/narrow.csv", "--unlabeled", "{data}/narrow.csv", "--force"), 2, "that this command reads"
    ),
    "checkpoint over the data": ((*FIT, "--checkpoint", TABLE, "--force"), 2, "table.csv is a file that this"),
    "predict over its data": (("predict", MODEL, TABLE, "--out", TABLE, "--force"), 2, "that this command reads"),
    "suggest over its data": (("suggest", MODEL, TABLE, "--out", TABLE, "--force"), 2, "that this command reads"),
    "complete over its data": (("complete", MODEL, TABLE, "--out", TABLE, "--force"), 2, "that this command reads"),
    "report over its model": (("report", MODEL, TABLE, "--out", MODEL, "--force"), 2, "that this command reads"),
    "table of no kind": (("predict", MODEL, TABLE, "--out", "{data}/p.txt"), 2, "ends in '.txt', expected .csv,"),
    "two for stdout": (("predict", MODEL, TABLE, "--out", "-", "--json"), 2, "--json and --out - both want stdout"),
    "top of nothing": (("predict", MODEL, TABLE, "--top-k", "0"), 2, "Invalid value for '--top-k'"),
    "strange kind": (("predict", MODEL, TABLE, "--kind", "odds"), 2, "Invalid value for '--kind'"),
    "level": (("evaluate", MODEL, TABLE, "--level", "95"), 2, "--level is 95, expected a number between 0 and 1."),
    "option of another reader": (
        ("inspect", "{data}/split.npz", "--tag-column", "tags"), 2, "tag_column is no option of the npz reader"
    ),
    "split twice": (("inspect", "{data}/split.npz", "--test-fraction", "0.5"), 2, "already has 15 test rows"),
    # the work fails
    "no such data": (("fit", "absent.csv", "--out", OUT), 1, "absent.csv: does not exist, expected a file, a folder"),
    "known set without a folder": (("fit", "corel5k", "--out", OUT), 1, "ESMC_DATA is not set"),
    "ragged table": (("fit", "{data}/ragged.csv", "--out", OUT), 1, "ragged.csv, line 3: the line has 1 values"),
    "table without labels": (("fit", "{data}/features.csv", "--out", OUT), 1, "no column starts with 'label_'"),
    "only unknown labels": (("fit", "{data}/blank.csv", "--out", OUT), 1, "has no known label in its training rows"),
    "strange ending": (("inspect", "{data}/broken.toml"), 1, "has the ending '.toml', expected one of"),
    "no such model": (("evaluate", "{data}/absent.esmc", TABLE), 1, "absent.esmc does not exist, expected a model"),
    "a table as model": (("evaluate", TABLE, TABLE), 1, "table.csv: it is"),
    "a truncated model": (("inspect", "{data}/truncated.esmc"), 1, "truncated.esmc: it is"),
    "missing feature": (("predict", MODEL, "{data}/narrow.csv"), 1, "has no column 'f2', expected the 6 features"),
    "missing feature with labels": (("evaluate", MODEL, "{data}/narrow.csv"), 1, "has no feature 'f2', expected the 6"),
    "too few features": (
        ("fit", TABLE, "--unlabeled", "{data}/narrow.csv", "--out", OUT), 1,
        "has no column 'f2', expected the 6 features of DATA.",
    ),
    "features of other names": (
        ("fit", "{data}/split.npz", "--unlabeled", "{data}/strange.npz", "--out", OUT), 1,
        "strange has no feature 'f0', expected the 6 features of DATA.",
    ),
    "a seed too large": (("fit", TABLE, "--seed", "99999999999", "--out", OUT), 2, "less than or equal to 4294967295"),
    "too few labels": (("evaluate", MODEL, "{data}/few.npz"), 1, "few has 3 labels, expected the 5 of the model."),
    "other labels": (("evaluate", MODEL, "{data}/other.npz"), 1, "has none of the model's labels"),
    "no test rows": (("evaluate", MODEL, TABLE, "--part", "test"), 1, "has no test rows, expected a split or"),
    # nothing to say
    "evaluate without labels": (("evaluate", MODEL, "{data}/blank.csv"), 3, "has no known label in its all rows"),
    "evaluate against zeros": (("evaluate", MODEL, "{data}/zeros.csv"), 3, "every known label of its all rows is 0"),
    "report without labels": (("report", MODEL, "{data}/blank.csv", "--out", OUT), 3, "has no known label"),
    "complete without labels": (("complete", MODEL, "{data}/blank.csv"), 3, "so none can be missing."),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_its_sentence(esmc, data, untouched, monkeypatch, case):
    monkeypatch.delenv("ESMC_DATA", raising=False)
    arguments, code, sentence = CASES[case]
    result = esmc(*(argument.format(data=data) for argument in arguments))
    said = re.sub(r"\s+", " ", result.stderr)
    assert sentence in said
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in said
    if "Usage:" not in said:  # typer's own errors bring their usage line
        assert re.fullmatch(r"esmc \w+: [^\n]+\n", result.stderr)


def test_there_are_many():
    assert len(CASES) >= 25
    assert {code for _, code, _ in CASES.values()} == {1, 2, 3}
