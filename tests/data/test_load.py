"""`load_dataset`: formats found from files and folders, known sets checked, what is missing said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sample_files import (
    CSV,
    EXTREME,
    MEKA,
    MULAN_DENSE,
    MULAN_XML,
    SVMLIGHT,
    X,
    Y,
    dense,
    write_mat,
    write_mulan,
    write_text,
)

from esmc_pyro.data import KNOWN_SETS, DataError, Dataset, KnownSet, load_dataset, write_npz


@pytest.fixture
def small_known(tmp_path, monkeypatch):
    """A known set of three rows, in a data folder of its own."""
    known = KnownSet("tiny", "mulan", "*.arff", None, 2, 1, 4, 2, 1.0, "made for the tests")
    monkeypatch.setitem(KNOWN_SETS, "tiny", known)
    monkeypatch.setenv("ESMC_DATA", str(tmp_path))
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_mulan(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.arff", MEKA),
        ("a.arff.bz2", MEKA),
        ("a.txt.gz", EXTREME),
        ("a.txt", SVMLIGHT),
        ("a.svm", SVMLIGHT),
        ("a.csv", CSV),
    ],
)
def test_finds_the_format_of_a_text_file(tmp_path, name, text):
    dataset = load_dataset(write_text(tmp_path / name, text))
    np.testing.assert_array_equal(dense(dataset.X_train), X)
    np.testing.assert_array_equal(dense(dataset.Y_train), Y)
    assert dataset.n_test == 0
    assert dataset.name == "a"


def test_finds_mulan_matlab_and_npz(tmp_path):
    write_npz(Dataset("n", X, Y), tmp_path / "n.npz")
    for path in (write_mulan(tmp_path), write_mat(tmp_path / "m.mat", X=X, Y=Y), tmp_path / "n.npz"):
        np.testing.assert_array_equal(dense(load_dataset(str(path)).X_train), X)


def test_folder_with_a_pair(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    write_text(folder / "p.xml", MULAN_XML)
    for part in ("p-train.arff", "p-test.arff", "p.arff"):
        write_text(folder / part, MULAN_DENSE)
    dataset = load_dataset(folder)
    assert (dataset.name, dataset.n_train, dataset.n_test) == ("pictures", 3, 3)
    assert load_dataset(folder, whole=True).n_train == 6


def test_folder_with_one_file_and_a_split(tmp_path):
    write_text(tmp_path / "data.csv", CSV)
    part = load_dataset(tmp_path, test_fraction=1 / 3, seed=4)
    order = np.random.default_rng(4).permutation(3)
    np.testing.assert_array_equal(dense(part.X_test), X[order[:1]])


def test_test_file_and_reader_options(tmp_path):
    train, test = (write_text(tmp_path / f"{name}.csv", CSV) for name in ("a", "b"))
    dataset = load_dataset(train, test=test, label_columns=["label_red"], drop=["label_blue"], name="mine")
    assert (dataset.name, dataset.n_test, dataset.label_names) == ("mine", 3, ("label_red",))


@pytest.mark.usefixtures("small_known")
def test_known_set_gets_its_usual_split():
    dataset = load_dataset("tiny")
    order = np.random.default_rng(0).permutation(3)
    np.testing.assert_array_equal(dense(dataset.X_test), X[order[:1]])
    assert dataset.name == "tiny"
    assert load_dataset("tiny", whole=True).n_train == 3
    assert load_dataset("tiny", n_test=2).n_test == 2
    np.testing.assert_array_equal(
        dense(load_dataset("tiny", seed=5).X_test), X[np.random.default_rng(5).permutation(3)[:1]]
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n_train": 7}, "tiny: 3 rows came, expected 8."),
        ({"n_features": 5}, "tiny: 4 features came, expected 5."),
        ({"n_labels": 3}, "tiny: 2 labels came, expected 3."),
        ({"labels_per_row": 1.2}, "tiny: 1.000 labels a row came, expected 1.20."),
    ],
)
@pytest.mark.usefixtures("small_known")
def test_known_set_that_is_not_what_it_should_be(monkeypatch, change, sentence):
    monkeypatch.setitem(KNOWN_SETS, "tiny", dataclasses.replace(KNOWN_SETS["tiny"], **change))
    with pytest.raises(DataError) as error:
        load_dataset("tiny")
    assert str(error.value) == sentence


def test_known_official_split_is_checked_by_part(small_known, monkeypatch):
    (small_known / "small.arff").rename(small_known / "small-train.arff")
    write_text(small_known / "small-test.arff", MULAN_DENSE)
    known = dataclasses.replace(KNOWN_SETS["tiny"], train="*train.arff", test="*test.arff", n_train=4, n_test=2)
    monkeypatch.setitem(KNOWN_SETS, "tiny", known)
    with pytest.raises(DataError, match="tiny: 3 and 3 rows came, expected 4 and 2"):
        load_dataset("tiny")


def test_known_sets_are_complete():
    assert set(KNOWN_SETS) >= {
        "corel5k", "espgame", "cal500", "delicious", "mediamill-sample", "emotions", "yeast", "imdb", "rcv1-sub1",
        "iaprtc12", "mediamill", "nus-wide",
    }  # fmt: skip
    assert KNOWN_SETS["iaprtc12"].n_train + KNOWN_SETS["iaprtc12"].n_test == 19627
    assert KNOWN_SETS["imdb"].n_test == round(120919 * 0.2)


def test_known_set_without_the_variable(monkeypatch):
    monkeypatch.delenv("ESMC_DATA", raising=False)
    with pytest.raises(DataError, match=r"^ESMC_DATA is not set, expected the folder that holds espgame"):
        load_dataset("espgame")


def test_known_set_that_is_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("ESMC_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"nus-wide: is no folder, expected the files of nus-wide there, as ESMC_DATA says"
    ):
        load_dataset("nus-wide")
    (tmp_path / "nus-wide").mkdir()
    with pytest.raises(DataError, match=r"nus-wide: holds 0 files called \*train\*.arff\*, expected one"):
        load_dataset("nus-wide")


def test_a_path_of_a_known_name_is_a_path(tmp_path, monkeypatch):
    monkeypatch.delenv("ESMC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "emotions").mkdir()
    write_text(tmp_path / "emotions" / "data.csv", CSV)
    assert load_dataset("./emotions").n_train == 3


REFUSED = [
    ("nowhere.csv", {}, r"nowhere\.csv: does not exist, expected a file, a folder or one of corel5k"),
    ("a.csv", {"format": "excel"}, r"format is 'excel', expected one of mulan, meka"),
    ("a.csv", {"xml": "a.xml"}, r"xml is no option of the table reader, expected one of label_columns"),
    ("a.csv", {"path": "a.xml"}, r"path is no option of the table reader"),
    (
        "a.csv",
        {"whole": True, "n_test": 1},
        r"whole is True and a number of test rows is given, expected one of the two",
    ),
    ("a.doc", {}, r"a\.doc: has the ending '\.doc', expected one of \.mat"),
    ("a.mat", {"test": "a.csv"}, r"test is a\.csv, expected none: a matlab file holds its own test rows"),
    ("", {"test": "a.csv"}, r"test is a\.csv while .* is a folder, expected test only with a training file"),
    ("", {}, r"holds a\.arff, a\.csv, a\.mat, expected one data file, or one with 'train'"),
    (
        "a.arff",
        {"format": "mulan"},
        r"a\.arff: has no \.xml of the same name beside it, expected one or the option xml",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "sentence"), REFUSED)
def test_refused(tmp_path, name, arguments, sentence):
    write_text(tmp_path / "a.csv", CSV)
    write_text(tmp_path / "a.doc", CSV)
    write_text(tmp_path / "a.arff", MEKA)
    write_mat(tmp_path / "a.mat")
    with pytest.raises(ValueError, match=sentence):
        load_dataset(tmp_path / name, **arguments)
