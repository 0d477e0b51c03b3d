"""Every reader gives the values that are in its file, dense or sparse, packed or not."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pandas as pd
import pytest
from sample_files import (
    CSV,
    EXTREME,
    MEKA,
    MULAN_DENSE,
    MULAN_SPARSE,
    MULAN_XML,
    SVMLIGHT,
    TAGS,
    X,
    Y,
    dense,
    write_mat,
    write_mulan,
    write_parquet,
    write_text,
)
from scipy import sparse
from scipy.io import savemat

from esmc_pyro.data import (
    DataError,
    Dataset,
    load_dataset,
    read_extreme,
    read_matlab,
    read_meka,
    read_mulan,
    read_npz,
    read_svmlight,
    read_table,
    table,
    write_npz,
)


def assert_holds(dataset: Dataset, X_expected: np.ndarray = X, Y_expected: np.ndarray = Y) -> None:
    np.testing.assert_array_equal(dense(dataset.X_train), X_expected)
    np.testing.assert_array_equal(dense(dataset.Y_train), Y_expected)
    assert dataset.X_train.dtype == dataset.Y_train.dtype == np.float32


@pytest.mark.parametrize(("text", "is_sparse"), [(MULAN_DENSE, False), (MULAN_SPARSE, True)])
def test_mulan(tmp_path, text, is_sparse):
    path = write_mulan(tmp_path, text)
    dataset = read_mulan(path, xml=tmp_path / "small.xml")
    assert_holds(dataset)
    assert dataset.label_names == ("red", "blue")
    assert dataset.feature_names == ("first one", "second", "third", "fourth")
    assert dataset.name == "small"
    assert sparse.issparse(dataset.X_train) == sparse.issparse(dataset.Y_train) == is_sparse


def test_mulan_pair(tmp_path):
    write_text(tmp_path / "s.xml", MULAN_XML)
    train = write_text(tmp_path / "s-train.arff", MULAN_DENSE)
    test = write_text(tmp_path / "s-test.arff", MULAN_DENSE.replace("0,0,2,none,0,0\n", ""))
    dataset = read_mulan(train, test, xml=tmp_path / "s.xml")
    assert_holds(dataset)
    np.testing.assert_array_equal(dense(dataset.X_test), X[[0, 2]])
    np.testing.assert_array_equal(dense(dataset.Y_test), Y[[0, 2]])
    assert (dataset.name, dataset.n_train, dataset.n_test) == ("s", 3, 2)


@pytest.mark.parametrize(
    ("old", "new"), [("0,0,2,none,0,0", "0,?,2,none,0,0"), ("{2 2}", "{1 ?,2 2}")], ids=["dense", "sparse"]
)
def test_arff_question_mark_is_unknown(tmp_path, old, new):
    text = (MULAN_SPARSE if old.startswith("{") else MULAN_DENSE).replace(old, new)
    write_mulan(tmp_path, text)
    expected = Y.copy()
    expected[1, 0] = np.nan
    dataset = read_mulan(tmp_path / "small.arff", xml=tmp_path / "small.xml")
    assert_holds(dataset, Y_expected=expected)
    assert dataset.summary()["unknown_labels"] == pytest.approx(1 / 6)


def test_arff_label_declared_backwards_keeps_its_meaning(tmp_path):
    path = write_mulan(tmp_path, MULAN_DENSE.replace("red {0,1}", "red {1,0}"))
    assert_holds(read_mulan(path, xml=tmp_path / "small.xml"))


def test_arff_text_attributes_identify_rows_and_are_left_out(tmp_path):
    text = MEKA.replace("@attribute c numeric", "@attribute c string").replace("4 1", "4 'picture 1.jpg'")
    dataset = read_meka(write_text(tmp_path / "m.arff", text))
    assert_holds(dataset, X[:, [0, 1, 3]])
    assert dataset.feature_names == ("a", "b", "d")


def test_arff_quoted_values_and_names(tmp_path):
    text = "@relation '-C 1'\n@attribute 'it\\'s' {0,1}\n@attribute \"a b\" {'x, y', \"z\"}\n@data\n1,'x, y'\n0,z\n"
    dataset = read_meka(write_text(tmp_path / "q.arff", text))
    assert_holds(dataset, np.array([[0], [1]]), np.array([[1], [0]]))
    assert (dataset.label_names, dataset.feature_names) == (("it's",), ("a b",))


@pytest.mark.parametrize("name", ["m.arff", "m.arff.bz2", "m.arff.gz"])
def test_meka_labels_first(tmp_path, name):
    dataset = read_meka(write_text(tmp_path / name, MEKA))
    assert_holds(dataset)
    assert dataset.label_names == ("red", "blue")
    assert dataset.name == "m"


def test_meka_labels_last(tmp_path):
    text = "@relation x:\\ -C\\ -1\n".replace("\\ ", " ") + "@attribute a real\n@attribute b {0,1}\n@data\n2.5,1\n0,0\n"
    assert_holds(read_meka(write_text(tmp_path / "m.arff", text)), np.array([[2.5], [0]]), np.array([[1], [0]]))


@pytest.mark.parametrize("name", ["e.txt", "e.txt.gz"])
def test_extreme(tmp_path, name):
    dataset = read_extreme(write_text(tmp_path / name, EXTREME))
    assert_holds(dataset)
    assert sparse.issparse(dataset.X_train)
    assert sparse.issparse(dataset.Y_train)
    assert dataset.label_names == ("y0", "y1")


def test_extreme_keeps_columns_that_never_occur(tmp_path):
    dataset = read_extreme(write_text(tmp_path / "e.txt", EXTREME.replace("3 4 2", "3 9 5")))
    assert (dataset.n_features, dataset.n_labels) == (9, 5)


def test_svmlight(tmp_path):
    dataset = read_svmlight(write_text(tmp_path / "s.svm", SVMLIGHT))
    assert_holds(dataset)
    assert dataset.label_names == ("7", "12")


def test_svmlight_pair_shares_labels_and_features(tmp_path):
    train = write_text(tmp_path / "train.svm", "3 1:1\n5 2:1\n")
    test = write_text(tmp_path / "test.svm", "4,5 6:2\n")
    dataset = read_svmlight(train, test)
    assert dataset.label_names == ("3", "4", "5")
    assert dataset.n_features == 6
    np.testing.assert_array_equal(dense(dataset.Y_test), [[0, 1, 1]])
    np.testing.assert_array_equal(dense(dataset.X_test), [[0, 0, 0, 0, 0, 2]])


@pytest.mark.parametrize(("zero_based", "width"), [("auto", 4), (False, 4), (True, 5)])
def test_svmlight_first_index(tmp_path, zero_based, width):
    assert read_svmlight(write_text(tmp_path / "s.svm", SVMLIGHT), zero_based=zero_based).n_features == width


def test_matlab_whole(tmp_path):
    assert_holds(read_matlab(write_mat(tmp_path / "m.mat")), X * 2)


def test_matlab_counts_do_not_wrap_around(tmp_path):
    path = write_mat(tmp_path / "m.mat", X=np.array([[60000], [1]], dtype=np.uint16), Y=np.eye(2))
    dataset = read_matlab(path)
    assert float((dataset.X_train - 60001).min()) == -60000


def test_matlab_split_and_sparse(tmp_path):
    path = write_mat(tmp_path / "m.mat", X_train=sparse.csc_array(X), Y_train=Y, X_test=X[:1], Y_test=Y[:1])
    dataset = read_matlab(path)
    assert_holds(dataset)
    assert sparse.issparse(dataset.X_train)
    np.testing.assert_array_equal(dense(dataset.X_test), X[:1])


@pytest.mark.parametrize("form", ["4", "5"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csc_array], ids=["dense", "sparse"])
def test_matlab_versions(tmp_path, form, kind):
    # version 4 keeps only doubles
    savemat(tmp_path / "m.mat", {"X": kind(X.astype(float)), "Y": kind(Y.astype(float))}, format=form)
    assert_holds(read_matlab(tmp_path / "m.mat"))


def test_matlab_ignores_other_variables(tmp_path):
    assert_holds(read_matlab(write_mat(tmp_path / "m.mat", X=X, note="pictures", cells=np.array([[X]], object), Y=Y)))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.parquet"])
def test_table_with_label_columns(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        write_parquet(path)
    else:
        write_text(path, CSV.replace(",", "\t") if "tsv" in name else CSV)
    dataset = read_table(path)
    assert_holds(dataset)
    assert dataset.label_names == ("red", "blue")
    assert dataset.feature_names == tuple("abcd")
    assert_holds(read_table(path, label_columns=["label_red", "label_blue"]))
    assert_holds(read_table(path, label_prefix="label_b", drop=["label_red"]), Y_expected=Y[:, 1:])


def test_table_with_tags(tmp_path):
    dataset = read_table(write_text(tmp_path / "t.tsv", TAGS), tag_column="tags", drop=["id"])
    assert dataset.label_names == ("blue", "red")
    assert_holds(dataset, Y_expected=Y[:, ::-1])


def test_table_tags_are_kept_as_written(tmp_path):
    dataset = read_table(
        write_text(tmp_path / "t.csv", "a,tags\n1,007|NA\n2,007\n"), tag_column="tags", tag_separator="|"
    )
    assert dataset.label_names == ("007", "NA")


def test_table_without_tags_has_the_known_ones(tmp_path):
    path = write_text(tmp_path / "t.csv", "a,tags\n1,\n2,\n")
    with pytest.raises(DataError, match="column 'tags' holds no tag, expected at least one"):
        read_table(path, tag_column="tags")
    dataset = read_table(path, tag_column="tags", known_tags=["red", "blue"])
    assert dataset.label_names == ("blue", "red")
    assert not dense(dataset.Y_train).any()
    path = write_text(tmp_path / "t.csv", "a,tags\n1,green\n2,\n")
    assert read_table(path, tag_column="tags", known_tags=["red"]).label_names == ("green",)


@pytest.mark.parametrize("kind", [list, tuple, set, np.array], ids=["list", "tuple", "set", "array"])
def test_table_with_lists_of_tags(tmp_path, monkeypatch, kind):
    cells = [kind(["red"]), kind([]), kind(["blue", " red "])]
    frame = pd.DataFrame(X, columns=list("abcd")).assign(tags=pd.Series(cells, dtype=object))
    monkeypatch.setattr(table, "read_frame", lambda *_: frame)
    dataset = read_table(tmp_path / "t.parquet", tag_column="tags")
    assert dataset.label_names == ("blue", "red")
    assert_holds(dataset, Y_expected=Y[:, ::-1])


def test_parquet_with_lists_of_tags(tmp_path):
    pytest.importorskip("pyarrow")
    tags = [["red"], None, ["blue", "red", None]]
    pd.DataFrame(X, columns=list("abcd")).assign(tags=tags).to_parquet(tmp_path / "t.parquet")
    dataset = read_table(tmp_path / "t.parquet", tag_column="tags")
    assert dataset.label_names == ("blue", "red")
    assert_holds(dataset, Y_expected=Y[:, ::-1])
    pd.DataFrame({"a": [1.0], "tags": [[["red"]]]}).to_parquet(tmp_path / "n.parquet")
    with pytest.raises(DataError, match="column 'tags' holds nested values at row 0, expected a list of tags"):
        read_table(tmp_path / "n.parquet", tag_column="tags")


@pytest.mark.parametrize("header", ["a, b , c, d, label_red, label_blue", 'a, b, c, d, "label_red", "label_blue"'])
def test_table_names_have_no_blanks_around_them(tmp_path, header):
    dataset = read_table(write_text(tmp_path / "t.csv", CSV.replace("a,b,c,d,label_red,label_blue", header)))
    assert dataset.feature_names == tuple("abcd")
    assert_holds(dataset)


def test_parquet_names_have_no_blanks_around_them(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({" a": [1.0, 2.0], " label_b": [0, 1]}).to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").label_names == ("b",)


def test_table_labels_can_be_dropped(tmp_path):
    path = write_text(tmp_path / "t.csv", CSV)
    for ways in ({}, {"label_columns": ["label_red", "label_blue"]}):
        dataset = read_table(path, drop=["label_red", "a"], **ways)
        assert dataset.feature_names == tuple("bcd")
        assert_holds(dataset, X[:, 1:], Y[:, 1:])
    with pytest.raises(DataError, match=r"drop names every label \('label_red', 'label_blue'\), expected at least one"):
        read_table(path, drop=["label_red", "label_blue"])
    with pytest.raises(ValueError, match="drop names 'a', expected the tag_column to stay"):
        read_table(path, tag_column="a", drop=["a"])


@pytest.mark.parametrize("name", ["UP.CSV", "UP.TSV", "UP.CSV.GZ", "UP.PARQUET", "UP.ARFF"])
def test_endings_in_upper_case(tmp_path, name):
    path = tmp_path / name
    if name.endswith("PARQUET"):
        pytest.importorskip("pyarrow")
        write_parquet(path)
    elif name.endswith("ARFF"):
        write_text(tmp_path / "UP.xml", MULAN_XML)
        write_text(path, MULAN_DENSE)
    else:
        text = (CSV.replace(",", "\t") if "TSV" in name else CSV).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("GZ") else text)
    dataset = load_dataset(path)
    assert_holds(dataset)
    assert dataset.name == "UP"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_table_in_latin_1(tmp_path, name):
    text = "größe,tags\n1,chanson française\n2,\n".encode("latin-1") + "3,Ελλάδα\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    dataset = read_table(path, tag_column="tags")
    assert dataset.feature_names == ("größe",)
    assert dataset.label_names == ("chanson française", "Ελλάδα")
    assert dense(dataset.X_train).ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(("name", "sign"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", ","), ("t.tsv", ";")])
def test_table_with_another_separator(tmp_path, name, sign):
    assert_holds(read_table(write_text(tmp_path / name, CSV.replace(",", sign))))


def test_semicolons_with_quoted_names_and_decimal_commas(tmp_path):
    quoted = '"a";"b";"label_c"\n0.5;2;1\n1;0;0\n'
    assert read_table(write_text(tmp_path / "t.csv", quoted)).feature_names == ("a", "b")
    with pytest.raises(DataError, match="column 'a' holds '0,5' at row 0, expected a number"):
        read_table(write_text(tmp_path / "t.csv", quoted.replace(".", ",")))


def test_table_empty_label_is_unknown(tmp_path):
    dataset = read_table(write_text(tmp_path / "t.csv", CSV.replace("0,2,0,0,0,0", "0,2,0,0,,NA")))
    expected = Y.copy()
    expected[1] = np.nan
    assert_holds(dataset, Y_expected=expected)


def test_table_pair_goes_by_column_name(tmp_path):
    train = write_text(tmp_path / "train.csv", "a,b,label_x\n1,2,0\n3,4,1\n")
    test = write_text(tmp_path / "test.csv", "label_x,b,a\n1,6,5\n")
    dataset = read_table(train, test)
    np.testing.assert_array_equal(dense(dataset.X_test), [[5, 6]])
    np.testing.assert_array_equal(dense(dataset.Y_test), [[1]])


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_npz_gives_back_what_was_written(tmp_path, kind):
    labels = Y.copy()
    labels[0, 1] = np.nan
    names = {"feature_names": ["å", "b", "c", "d"], "label_names": ["red", "blue"]}
    dataset = Dataset("small", kind(X), kind(labels), kind(X[1:]), kind(labels[1:]), **names)
    write_npz(dataset, tmp_path / "small.npz")
    again = read_npz(tmp_path / "small.npz")
    assert_holds(again, Y_expected=labels)
    np.testing.assert_array_equal(dense(again.Y_test), labels[1:])
    assert (again.name, again.feature_names, again.label_names) == ("small", dataset.feature_names, ("red", "blue"))
    assert sparse.issparse(again.X_train) == sparse.issparse(dataset.X_train)
    assert [file.name for file in tmp_path.iterdir()] == ["small.npz"]


def test_npz_without_names_stays_so(tmp_path):
    write_npz(Dataset("small", X, Y, label_names=["y0", "y1"]), tmp_path / "small.npz")
    again = read_npz(tmp_path / "small.npz")
    assert (again.feature_names, again.label_names) == (("x0", "x1", "x2", "x3"), ("y0", "y1"))
    assert again.numbered == ("feature_names",)


@pytest.mark.skipif(os.name != "posix", reason="links need no rights there")
def test_npz_is_written_to_where_a_link_leads(tmp_path):
    (tmp_path / "link.npz").symlink_to(tmp_path / "small.npz")
    write_npz(Dataset("small", X, Y), tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert_holds(read_npz(tmp_path / "small.npz"))


def test_npz_of_plain_arrays(tmp_path):
    np.savez(tmp_path / "p.npz", X=X.astype(np.float64), Y=Y.astype(bool))
    assert_holds(read_npz(tmp_path / "p.npz"))


def test_npz_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "small.npz"
    write_npz(Dataset("small", X, Y), path)
    before = path.read_bytes()

    def half_written(file, **arrays):
        file.write(b"PK")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", half_written)
    with pytest.raises(OSError, match="disk full"):
        write_npz(Dataset("small", X * 2, Y), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["small.npz"]
