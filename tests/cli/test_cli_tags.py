"""A column of tags in which nobody, or nobody the model knows, has any: commands that need no labels go on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import QUICK

TAGS = ("--tag-column", "tags")


@pytest.fixture
def tagged(data, tmp_path):
    """Write the features with this text in every cell of the column `tags`."""

    def write(text):
        path = tmp_path / "tagged.csv"
        pd.read_csv(data / "features.csv").assign(tags=text).to_csv(path, index=False)
        return path

    return write


@pytest.mark.parametrize("text", ["", "unheard"])
def test_rows_without_known_tags_are_predicted(esmc_json, data, model, tagged, text):
    straight = esmc_json("predict", model, data / "features.csv", "--kind", "scores")
    said = esmc_json("predict", model, tagged(text), *TAGS, "--kind", "scores")
    assert said == straight
    a, b = (esmc_json("suggest", model, *ask, "-n", 3) for ask in ((data / "features.csv",), (tagged(text), *TAGS)))
    assert a == b


def test_an_empty_cell_means_no_tag_to_complete(esmc_json, model, tagged):
    said = esmc_json("complete", model, tagged(""), *TAGS, "-n", 300)
    assert len(said) == 60 * 5


def test_labels_that_are_needed_are_still_asked_for(esmc, model, tagged, tmp_path):
    for command in ("complete", "evaluate"):
        result = esmc(command, model, tagged("unheard"), *TAGS)
        assert (result.exit_code, "has none of the model's labels" in result.stderr) == (1, True)
    assert esmc("evaluate", model, tagged(""), *TAGS).exit_code == 3
    result = esmc("fit", tagged(""), *TAGS, "--out", tmp_path / "m.esmc")
    assert (result.exit_code, "column 'tags' holds no tag" in result.stderr) == (1, True)


def test_tags_in_lists(esmc_json, data, tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.read_csv(data / "tags.csv", keep_default_na=False)
    frame["tags"] = frame["tags"].map(lambda cell: cell.split(";") if cell else [])
    frame.to_parquet(tmp_path / "tags.parquet")
    for source in (data / "tags.csv", tmp_path / "tags.parquet"):
        assert esmc_json("inspect", source, *TAGS)["labels"] == 5


def test_a_dropped_label_is_no_label(esmc_json, data, tmp_path):
    ask = ("fit", data / "table.csv", "--drop", "label_a,f0", *QUICK, "--out", tmp_path / "m.esmc")
    said = esmc_json(*ask)
    assert (said["features"], said["labels"]) == (5, 4)
    assert np.shape(esmc_json("predict", tmp_path / "m.esmc", data / "features.csv")["values"]) == (60, 4)
