"""Columns and labels go by their names, whatever these look like; by their places only where a file has no names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import QUICK

from esmc_pyro.data import Dataset, write_npz

FEATURES, LABELS = ["x0", "x1", "x2"], ["y0", "y1", "y2"]
PREFIX = ("--label-prefix", "label_")


@pytest.fixture(scope="module")
def rows(tmp_path_factory, esmc):
    """A folder: the same 60 rows with their columns in several orders, and models of two of them."""
    folder = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 3)).round(4) * [1, 3, 9]
    Y = (X / [1, 3, 9] + 0.3 * rng.normal(size=(60, 3)) > [0, 0.5, 1]).astype(int)
    table = pd.DataFrame(X, columns=FEATURES).assign(**{f"label_{name}": Y[:, k] for k, name in enumerate(LABELS)})
    table.to_csv(folder / "straight.csv", index=False)
    turned = table[["x2", "x0", "x1", "label_y2", "label_y0", "label_y1"]]
    turned.to_csv(folder / "turned.csv", index=False)
    turned.drop(columns="label_y1").assign(x3=0.5).to_csv(folder / "wider.csv", index=False)
    table.drop(columns="x0").assign(x3=0.5).to_csv(folder / "other.csv", index=False)
    write_npz(Dataset("straight", X, Y), folder / "straight.npz")
    write_npz(Dataset("places", X[:, [2, 0, 1]], Y[:, [2, 0, 1]]), folder / "places.npz")
    table.set_axis([*"abc", "label_d", "label_e", "label_f"], axis=1).to_csv(folder / "letters.csv", index=False)
    for name in ("straight.csv", "turned.csv", "straight.npz"):
        result = esmc("fit", folder / name, *QUICK, "--out", folder / f"{name}.esmc", "--quiet")
        assert result.exit_code == 0, result.stderr
    return folder


@pytest.mark.parametrize(("model", "other"), [("straight", "turned"), ("turned", "straight")])
def test_numbered_names_of_a_file_are_names(esmc_json, rows, model, other):
    fitted = rows / f"{model}.csv.esmc"
    for ask in (("evaluate", "--draws", 5), ("evaluate", "--draws", 5, "--test-fraction", 0.3)):
        a, b = (esmc_json(ask[0], fitted, rows / f"{name}.csv", *ask[1:]) for name in (model, other))
        assert a["metrics"] == b["metrics"]
    for options in (PREFIX, ("--test-fraction", 0.3), ()):
        ask = (*options, "--kind", "scores")
        a, b = (esmc_json("predict", fitted, rows / f"{name}.csv", *ask)["values"] for name in (model, other))
        np.testing.assert_array_equal(a, b)


def test_a_file_without_names_goes_by_place(esmc_json, rows):
    ask = ("--kind", "scores")
    a = esmc_json("predict", rows / "turned.csv.esmc", rows / "turned.csv", *ask)["values"]
    b = esmc_json("predict", rows / "turned.csv.esmc", rows / "places.npz", *ask)["values"]
    np.testing.assert_allclose(a, b, atol=1e-5)
    for source in ("straight.csv", "turned.csv", "letters.csv"):  # the model never had names: letters go by place
        a = esmc_json("evaluate", rows / "straight.npz.esmc", rows / "straight.npz", "--draws", 5)
        b = esmc_json("evaluate", rows / "straight.npz.esmc", rows / source, "--draws", 5)
        assert a["metrics"]["auc"]["value"] == pytest.approx(b["metrics"]["auc"]["value"])


def test_further_columns_are_left_out_and_missing_ones_refused(esmc, esmc_json, rows):
    ask = (*PREFIX, "--kind", "scores")
    a, b = (
        esmc_json("predict", rows / "straight.csv.esmc", rows / name, *ask)["values"]
        for name in ("straight.csv", "wider.csv")
    )
    np.testing.assert_array_equal(a, b)
    result = esmc("evaluate", rows / "straight.csv.esmc", rows / "other.csv")
    assert (result.exit_code, "has no feature 'x0', expected the 3 features" in result.stderr) == (1, True)
    result = esmc("evaluate", rows / "turned.csv.esmc", rows / "letters.csv")
    assert (result.exit_code, "has no feature 'x0', expected the 3 features" in result.stderr) == (1, True)


def test_labels_that_may_be_counted_from_one_are_not_guessed_at(esmc, rows):
    table = pd.read_csv(rows / "straight.csv")
    names = {f"label_y{k}": f"label_y{k + 1}" for k in range(3)}
    table.rename(columns=names).to_csv(rows / "from_one.csv", index=False)
    for model in ("straight.csv.esmc", "straight.npz.esmc"):
        result = esmc("evaluate", rows / model, rows / "from_one.csv")
        assert result.exit_code == 1
        assert "has a label 'y3' beside some of the model's, expected 'y0' to 'y2'" in result.stderr
