"""Each command on data of several formats; what it says agrees with the estimator."""

import json
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from esmc_pyro import ESMCClassifier, load_dataset, search
from esmc_pyro.metrics import bootstrap_intervals, evaluate

QUICK = ("--set", "inference=svi", "--set", "epochs=2", "--set", "pseudo=8")
SPLIT = ("--test-fraction", 0.25)


@pytest.fixture(scope="module")
def fitted(model):
    return ESMCClassifier.load(model)


@pytest.fixture(scope="module")
def dataset(data):
    return load_dataset(data / "table.csv", test_fraction=0.25)


def frame(X):
    return pd.DataFrame(X, columns=[f"f{i}" for i in range(6)])


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("table.parquet", ()),
        ("tags.csv", ("--tag-column", "tags")),
        ("table.csv", ("--label-columns", "label_a,label_b", "--drop", "label_c,label_d", "--drop", "label_e")),
        ("split.npz", ()),
        ("rows.svm", ()),
        ("mulan", ("--limit", 30)),
    ],
)
def test_fit_and_use_data_of_every_kind(esmc_json, data, tmp_path, source, options):
    out = tmp_path / "new" / "m.esmc"
    said = esmc_json("fit", data / source, *options, *QUICK, "--out", out)
    assert said["model"] == str(out)
    assert (said["epochs"], said["features"], said["interrupted"]) == (2, 6, False)
    assert said["labels"] == (2 if "--label-columns" in options else 5)
    assert said["rows"] == {"split.npz": 45, "mulan": 30}.get(source, 60)
    assert [path.name for path in out.parent.iterdir()] == ["m.esmc"]
    predicted = esmc_json("predict", out, data / source, *options)
    assert np.shape(predicted["values"]) == (15 if source == "split.npz" else said["rows"], said["labels"])
    assert esmc_json("evaluate", out, data / source, *options, "--draws", 10)["metrics"]["auc"]["value"] > 0.3


def test_fit_is_the_estimators_fit(esmc_json, model, fitted, dataset):
    again = ESMCClassifier(inference="svi", epochs=15, pseudo=15)
    again.fit(frame(dataset.X_train), pd.DataFrame(dataset.Y_train, columns=list("abcde")))
    X = frame(dataset.X_test)
    np.testing.assert_array_equal(fitted.decision_function(X), again.decision_function(X))
    assert list(fitted.label_names_) == list("abcde")


KERNELS = tuple({"kernel": kernel, "lengthscale": 1.0} for kernel in ("rbf", "matern12"))


def test_the_default_chooses_settings_and_says_them(esmc_json, data, tmp_path, monkeypatch):
    monkeypatch.setattr("esmc_pyro.search.CANDIDATES", (KERNELS, *search.AMPLITUDES))
    options = ("--set", "kernel=matern12", "--set", "features=standard", "--set", "epochs=2", "--limit", 30)
    said = esmc_json("fit", data / "table.csv", *options, "--seed", 3, "--out", tmp_path / "m.esmc")
    assert {member["kernel"] for member in said["chosen"]} == {"matern12"}
    assert sum(member["weight"] for member in said["chosen"]) == pytest.approx(1)
    shown = esmc_json("inspect", tmp_path / "m.esmc")
    assert shown["settings"]["random_state"] == 3
    assert shown["chosen"] == said["chosen"]
    assert shown["searched"] is said["searched"] is True
    assert shown["members"] == said["members"] == len(said["chosen"])


def test_unlabelled_rows_join_the_fit(esmc_json, data, model, tmp_path):
    options = (data / "table.csv", *SPLIT, "--set", "inference=svi", "--set", "epochs=15", "--set", "pseudo=15")
    more = tmp_path / "more.esmc"
    esmc_json("fit", *options, "--unlabeled", data / "features.csv", "--out", more)
    a, b = (esmc_json("predict", path, data / "features.csv", "--kind", "scores")["values"] for path in (model, more))
    assert np.abs(np.subtract(a, b)).max() > 1e-4
    sparse = (data / "rows.svm", *QUICK, "--unlabeled", data / "numbered.npz")
    assert esmc_json("fit", *sparse, "--out", tmp_path / "sparse.esmc")["rows"] == 60


@pytest.mark.parametrize("kind", ["scores", "probabilities", "labels"])
def test_predict_agrees_with_the_estimator(esmc, esmc_json, data, model, fitted, dataset, tmp_path, kind):
    method = {"scores": "decision_function", "probabilities": "predict_proba", "labels": "predict"}[kind]
    expected = np.asarray(getattr(fitted, method)(frame(dataset.X_test)))
    ask = ("predict", model, data / "table.csv", "--label-prefix", "label_", *SPLIT, "--kind", kind)
    said = esmc_json(*ask)
    assert said["labels"] == list("abcde")
    np.testing.assert_allclose(said["values"], expected, rtol=1e-6)
    for ending in ("csv", "parquet", "npz"):
        out = tmp_path / f"{kind}.{ending}"
        written = esmc_json(*ask, "--out", out)
        assert (written["rows"], written["part"]) == (15, "test")
        if ending == "npz":
            with np.load(out) as arrays:
                assert arrays["label_names"].tolist() == list("abcde")
                values = arrays["values"]
        else:
            table = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
            assert list(table.columns) == ["row", *"abcde"]
            values = table[list("abcde")].to_numpy()
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    printed = esmc(*ask, "--out", "-")
    np.testing.assert_allclose(pd.read_csv(StringIO(printed.stdout))[list("abcde")], expected, rtol=1e-5)
    assert printed.stderr == ""


def test_the_best_labels_of_each_row(esmc_json, data, model, fitted, dataset, tmp_path):
    records = esmc_json("predict", model, data / "features.csv", "--top-k", 2)
    everything = np.asarray(esmc_json("predict", model, data / "features.csv")["values"])
    assert [record["rank"] for record in records] == [1, 2] * 60
    best = np.array([record["probability"] for record in records]).reshape(60, 2)
    np.testing.assert_allclose(best, -np.sort(-everything, axis=1)[:, :2])
    for record in records:
        assert everything[record["row"], "abcde".index(record["label"])] == record["probability"]
    out = tmp_path / "best.npz"
    esmc_json("predict", model, data / "features.csv", "--top-k", 9, "--kind", "scores", "--out", out)
    with np.load(out) as arrays:  # no pickle in it
        assert {name: len(arrays[name]) for name in arrays} == dict.fromkeys(("row", "rank", "label", "score"), 300)
    ones = esmc_json("predict", model, data / "features.csv", "--kind", "labels", "--top-k", 2)["values"]
    assert np.sum(ones, axis=1).tolist() == [2] * 60


def test_columns_and_labels_are_matched_by_name(esmc_json, data, model):
    ask = ("--kind", "scores", "--part", "all")
    straight = esmc_json("predict", model, data / "table.csv", *ask)
    for source in ("turned.csv", "split.npz", "numbered.npz"):
        np.testing.assert_array_equal(esmc_json("predict", model, data / source, *ask)["values"], straight["values"])
    a, b = (esmc_json("evaluate", model, data / name, "--draws", 5) for name in ("table.csv", "turned.csv"))
    assert a["metrics"] == b["metrics"]


def test_labels_that_only_one_side_knows(esmc, data, model, tmp_path):
    table = pd.read_csv(data / "table.csv").rename(columns={"label_b": "label_new"})
    table.to_csv(tmp_path / "renamed.csv", index=False)
    result = esmc("evaluate", model, tmp_path / "renamed.csv", "--json", "--draws", 5)
    assert result.exit_code == 0
    assert "1 labels that the model does not know are left out, the first is 'new'" in result.stderr
    scores = ESMCClassifier.load(model).decision_function(frame(table[[f"f{i}" for i in range(6)]].to_numpy()))
    Y = table[[f"label_{name}" for name in ("a", "new", "c", "d", "e")]].to_numpy(dtype=float)
    Y[:, 1] = np.nan
    expected = evaluate(Y, np.asarray(scores))["auc"]
    assert json.loads(result.stdout)["metrics"]["auc"]["value"] == pytest.approx(expected)


def test_evaluate_agrees_with_the_metrics(esmc, esmc_json, data, model, fitted, dataset):
    ask = ("evaluate", model, data / "table.csv", *SPLIT, "--draws", 50, "--level", 0.9)
    said = esmc_json(*ask)
    assert (said["part"], said["rows"], said["level"]) == ("test", 15, 0.9)
    X = frame(dataset.X_test)
    scores, p = np.asarray(fitted.decision_function(X)), np.asarray(fitted.predict_proba(X))
    values = evaluate(dataset.Y_test, scores, Y_train=dataset.Y_train, probabilities=p)
    assert {name: entry["value"] for name, entry in said["metrics"].items()} == pytest.approx(values)
    spread = bootstrap_intervals(dataset.Y_test, scores, Y_train=dataset.Y_train, draws=50, level=0.9)
    for name, row in spread.iterrows():
        assert said["metrics"][name]["low"] == pytest.approx(row["low"])
        assert said["metrics"][name]["high"] == pytest.approx(row["high"])
    assert said["metrics"]["ece"]["low"] is None
    table = esmc(*ask).stdout
    assert f"{values['auc']:.3f}" in table
    assert all(name in table for name in values)


def test_complete_agrees_with_the_estimator(esmc, esmc_json, data, model, fitted, dataset, tmp_path):
    ask = ("complete", model, data / "table.csv", *SPLIT, "-n", 4)
    expected = fitted.complete(frame(dataset.X_train), dataset.Y_train, n=4)
    said = esmc_json(*ask)
    assert [(entry["row"], entry["label"]) for entry in said] == list(
        zip(np.take(dataset.source_rows, expected["row"]), expected["label"], strict=True)
    )
    table = pd.read_csv(data / "table.csv")  # whose rows they are
    assert all(table.loc[entry["row"], f"label_{entry['label']}"] == 0 for entry in said)
    np.testing.assert_allclose([entry["probability"] for entry in said], expected["probability"], rtol=1e-6)
    assert said[0]["label"] in esmc(*ask).stdout
    esmc_json(*ask, "--out", tmp_path / "missing.csv")
    assert pd.read_csv(tmp_path / "missing.csv")["label"].tolist() == expected["label"].tolist()


def test_complete_says_which_labels_had_been_removed(esmc_json, data, model, dataset):
    said = esmc_json("complete", model, data / "table.csv", *SPLIT, "--remove-ones", 0.4, "-n", 10)
    truth = pd.read_csv(data / "table.csv")
    assert [entry["removed"] for entry in said] == [truth.loc[e["row"], f"label_{e['label']}"] == 1 for e in said]
    assert any(entry["removed"] for entry in said)


def test_suggest_agrees_with_the_estimator(esmc, esmc_json, data, model, fitted):
    X = frame(pd.read_csv(data / "features.csv").to_numpy(dtype=np.float32))
    expected = fitted.suggest_annotations(X, n=3)
    said = esmc_json("suggest", model, data / "features.csv", "-n", 3)
    assert [entry["row"] for entry in said] == expected["row"].tolist()
    assert [entry["ask"] for entry in said] == expected["ask"].tolist()
    assert ", ".join(expected["ask"][0]) in esmc("suggest", model, data / "features.csv", "-n", 3).stdout


def test_rows_are_those_of_the_file_whatever_the_split(esmc_json, data, model, dataset):
    whole = esmc_json("predict", model, data / "table.csv", "--kind", "scores")
    assert whole["rows"] == list(range(60))
    values = np.asarray(whole["values"])
    for part, rows in (("test", dataset.source_rows[45:]), ("train", dataset.source_rows[:45])):
        said = esmc_json("predict", model, data / "table.csv", *SPLIT, "--part", part, "--kind", "scores")
        assert said["rows"] == list(rows)
        np.testing.assert_allclose(said["values"], values[said["rows"]], atol=1e-4)
        few = esmc_json("predict", model, data / "table.csv", *SPLIT, "--part", part, "--limit", 3)
        assert few["rows"] == list(rows[:3])


def test_an_npz_file_of_features_alone_can_be_predicted(esmc, esmc_json, data, model):
    said = esmc_json("predict", model, data / "bare.npz", "--kind", "scores")
    straight = esmc_json("predict", model, data / "features.csv", "--kind", "scores")
    np.testing.assert_array_equal(said["values"], straight["values"])
    assert len(esmc_json("suggest", model, data / "bare.npz", "-n", 2)) == 2
    assert "expected X_train and Y_train" in esmc("evaluate", model, data / "bare.npz").stderr


def test_unlabelled_rows_have_their_features_by_name(esmc_json, data, tmp_path):
    made = [tmp_path / f"{name}.esmc" for name in ("straight", "turned")]
    made.append(tmp_path / "bare.esmc")
    for out, source in zip(made, ("numbered", "turned", "bare"), strict=True):
        esmc_json("fit", data / "split.npz", "--unlabeled", data / f"{source}.npz", *QUICK, "--out", out)
    ask = (data / "features.csv", "--kind", "scores")
    first, *others = (esmc_json("predict", out, *ask)["values"] for out in made)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_inspect_data_and_model(esmc, esmc_json, data, model, fitted):
    said = esmc_json("inspect", data / "split.npz")
    assert (said["kind"], said["train_rows"], said["test_rows"], said["labels"]) == ("data", 45, 15, 5)
    assert sum(said["frequent_labels"].values()) == round(said["labels_per_row"] * 60)
    shown = esmc_json("inspect", model)
    assert (shown["kind"], shown["features"], shown["label_names"]) == ("model", 6, list("abcde"))
    assert shown["threshold"] == pytest.approx(fitted.threshold_)
    assert (shown["settings"]["epochs"], shown["epochs"]) == (15, 15)
    assert "15 pseudo-instances" in esmc("inspect", model).stdout
    assert "most frequent label" in esmc("inspect", data / "tags.csv", "--tag-column", "tags").stdout


def test_settings_are_said_to_be_chosen_only_if_they_were(esmc, data, tmp_path, monkeypatch):
    monkeypatch.setattr("esmc_pyro.search.CANDIDATES", (KERNELS,))
    out = tmp_path / "plain.esmc"
    for searched, words in (("false", "not searched"), ("true", "chosen on held-out rows")):
        made = esmc("fit", data / "table.csv", "--set", f"search={searched}", "--out", out, "--force")
        assert made.exit_code == 0, made.stderr
        for shown in (made.stdout, esmc("inspect", out).stdout):
            assert [w for w in ("not searched", "chosen on held-out rows") if w in shown] == [words]


def test_inspect_the_built_in_pictures(esmc_json):
    said = esmc_json("inspect", "digits", "--limit", 50)
    assert (said["train_rows"], said["test_rows"], said["labels"]) == (50, 50, 78)


def test_report_is_one_page(esmc, data, model, tmp_path):
    out = tmp_path / "pages" / "page.html"
    result = esmc("report", model, data / "split.npz", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "<html" in out.read_text(encoding="utf-8")[:200].lower()
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_demo(esmc, tmp_path, monkeypatch):
    monkeypatch.setattr("esmc_pyro.demo.PENALTIES", (1.0,))  # nothing to choose from: it takes the longest
    result = esmc("demo", "--train", 40, "--test", 20, "--pseudo", 10, "--epochs", 1, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert {entry["method"] for entry in said["methods"]} >= {"ESMC", "label frequency"}
    assert "nearest neighbours" in result.stderr  # the table for people went there
    assert (tmp_path / "index.html").is_file()


def test_label_names_do_not_steer_the_terminal(esmc, data, tmp_path):
    table = pd.read_csv(data / "table.csv")
    table.rename(columns={"label_a": "label_[red]x[/]", "label_b": "label_\x1b[31mb"}).to_csv(
        tmp_path / "t.csv", index=False
    )
    shown = esmc("inspect", tmp_path / "t.csv").stdout
    assert "[red]x[/]" in shown
    assert "\x1b" not in shown


def test_sparse_files_may_be_narrower_than_the_model(esmc_json, data, tmp_path):
    out = tmp_path / "m.esmc"
    esmc_json("fit", data / "rows.svm", *QUICK, "--out", out)
    lines = (data / "rows.svm").read_text().splitlines()
    narrow, zero = tmp_path / "narrow.svm", tmp_path / "zero.svm"
    narrow.write_text("".join(line.rsplit(" 6:")[0] + "\n" for line in lines))
    zero.write_text("".join(line.rsplit(" 6:")[0] + " 6:0\n" for line in lines))
    a, b = (esmc_json("predict", out, path, "--kind", "scores")["values"] for path in (narrow, zero))
    np.testing.assert_array_equal(a, b)
