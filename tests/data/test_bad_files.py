"""Bad files, one a row, and the whole sentence each gets; and files that lie about their size to take the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sample_files import (
    CSV,
    EXTREME,
    MEKA,
    MULAN_DENSE,
    MULAN_SPARSE,
    MULAN_XML,
    SVMLIGHT,
    X,
    Y,
    write_mat,
    write_mulan,
    write_text,
)
from scipy import sparse
from scipy.io import savemat

from esmc_pyro.data import DataError, load_dataset, read_meka, read_mulan
from esmc_pyro.data.formats import READERS
from esmc_pyro.data.lines import Lines

BILLION_LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><labels><label name="&b;"/></labels>'
OUTSIDE_ENTITY = '<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/hostname">]><labels><label name="&a;"/></labels>'

PAIRS = "expected labels, then index:value pairs with rising indices."
NO_ROW = "the row cannot be taken apart, expected values between commas."
ARRAYS = "X_train and Y_train (with X_test and Y_test or without), X_all and Y_all, or X and Y."
CLAIMS = "cannot be read as a .npz file (X.npy claims shape (1000000000, 1000), more than the file holds)."

# the file, its text, what is said after the file's name ("…" stands for the words of another library)
TEXT_FILES = [
    ("a.arff", "", ": the file ends before @data, expected an ARFF header and rows."),
    ("a.arff", "hello\n", "line 1: the line starts with 'hello', expected @relation, @attribute or @data."),
    ("a.arff", "@relation x\n@data\n", "line 2: @data comes before any @attribute, expected at least one."),
    ("a.arff", MEKA.split("{0 1,")[0], "line 8: the file ends without a row, expected rows after @data."),
    ("a.arff", MEKA.replace("blue", "red"), "line 3: attribute 'red' is declared twice, expected names that differ."),
    (
        "a.arff",
        MEKA.replace("d numeric", "d date"),
        "line 7: attribute 'd' has type 'date', expected numeric, string or a list like {0,1}.",
    ),
    (
        "a.arff",
        MEKA.replace("red {0,1}", "red {0,0}"),
        "line 2: attribute 'red' lists a value twice, expected values that differ.",
    ),
    ("a.arff", MEKA.replace("d numeric", "d"), "line 7: the attribute is declared 'd', expected a name and a type."),
    ("a.arff", MEKA.replace("5 3", "6 3"), "line 11: the row names a column beyond the last, expected columns 0 to 5."),
    (
        "a.arff",
        MEKA.replace("0 1,1 1", "0 1,0 1"),
        "line 11: the row names a column more than once, expected each at most once.",
    ),
    (
        "a.arff",
        MEKA.replace("{3 2}", "0,0,0,2,0,0"),
        "line 10: the row is dense and rows above are sparse, or the reverse; expected one kind.",
    ),
    (
        "a.arff",
        MEKA.replace("3 2", "3 two"),
        "line 10: the row holds text in a numeric column, expected a number or ?.",
    ),
    ("a.arff", MEKA.replace("{3 2}", "{3 2"), "line 10: " + NO_ROW),
    ("a.arff", MEKA.replace("{0 1,1 1", "{0 1,1 2"), "line 11: 'blue' is '2', expected one of its declared values."),
    ("a.arff", MEKA.replace("-C 2", "-C 6"), ": the relation says -C 6, expected 1 to 5 of 6 attributes."),
    (
        "a.arff",
        MEKA.replace("-C 2", ""),
        ": the relation is 'small:  -split-percentage 66', expected -C and the number of labels.",
    ),
    ("a.arff", MEKA.replace("red {0,1}", "red string"), ": label 'red' is declared as text, expected {0,1}."),
    (
        "a.arff",
        MEKA.replace("red {0,1}", "red {1,0}"),
        ": label 'red' is declared {1,0} in a sparse file, expected {0,1}.",
    ),
    ("a.arff", MEKA.replace("3 2", "3 ?"), ": X_train holds nan at row 1, column 1 (b), expected finite numbers."),
    ("a.txt", "3 4\n" + EXTREME, "line 1: the row cannot be read (…), " + PAIRS),
    (
        "a.txt",
        EXTREME.replace("3 4 2", "4 4 2"),
        ": 3 rows came (blank lines are none), expected 4, as the first line says.",
    ),
    ("a.txt", EXTREME.replace("3 4 2", "3 3 2"), "line 4: feature 3 came, expected 0 to 2."),
    ("a.txt", EXTREME.replace("3 4 2", "3 4 1"), "line 4: label 1 came, expected 0 to 0."),
    ("a.txt", EXTREME.replace("0,1", "0,1.5"), "line 4: label 1.5 came, expected whole numbers from 0 up."),
    ("a.txt", "0 4 2\n", ": holds no row, expected at least one."),
    (
        "a.txt",
        EXTREME.replace("4 2", "999999999999 2"),
        ": the number of features in the first line is 999999999999, expected at most 4194304.",
    ),
    ("a.svm", "7 3:1 2:1\n", "line 1: the row cannot be read (…), " + PAIRS),
    ("a.svm", SVMLIGHT.replace("12", "nan"), "line 3: label nan came, expected whole numbers from 0 up."),
    ("a.svm", SVMLIGHT.replace("4:3", "4:inf"), ": X_train holds inf at row 2, column 3, expected finite numbers."),
    ("a.svm", "1:1\n", ": holds no label, expected a number before the features of at least one row."),
    ("a.svm", "1 99999999:1\n", ": the largest feature index is 99999999, expected at most 4194304."),
    ("a.csv", "", ": is empty, expected a line of column names."),
    ("a.csv", "a,label_b\n", ": holds no row, expected at least one below the column names."),
    ("a.csv", CSV + "1,2,3\n", "line 5: the line has 3 values, expected 6, one for each column."),
    ("a.csv", CSV + "1,2,3,4,1,0,9\n", "line 5: the line has 7 values, expected 6, one for each column."),
    (
        "a.csv",
        CSV.replace("b,c", "a,c"),
        "line 1: the column name 'a' is there more than once, expected names that differ.",
    ),
    (
        "a.csv",
        CSV.replace("b,c", " a,c"),
        "line 1: the column name 'a' is there more than once, expected names that differ.",
    ),
    (
        "a.csv",
        CSV.replace("a,", ",", 1),
        "line 1: column 1 has no name, expected one (pandas writes its index so: index=False).",
    ),
    ("a.csv", CSV.replace("3,1,1", "many,1,1"), ": column 'd' holds 'many' at row 2, expected a number."),
    ("a.csv", CSV.replace("3,1,1", ",1,1"), ": X_train holds nan at row 2, column 3 (d), expected finite numbers."),
    ("a.csv", CSV.replace("3,1,1", "3,1,yes"), ": column 'label_blue' holds 'yes' at row 2, expected 0, 1 or nothing."),
    (
        "a.csv",
        "a,b\n1,2\n",
        ": no column starts with 'label_', expected labels among 'a', 'b': "
        "say label_columns, label_prefix or tag_column.",
    ),
    ("a.csv", "label_b\n1\n", ": has no column left for features, expected at least one."),
    (
        "a.csv",
        CSV + '1,2,3,4,1,"0\n',
        "line 5: the line cannot be taken apart (unexpected end of data), expected values and closed quotes.",
    ),
]


def said(path: Path, sentence: str) -> str:
    return f"{path}{sentence}" if sentence.startswith(":") else f"{path}, {sentence}"


def assert_says(error: pytest.ExceptionInfo[DataError], sentence: str) -> None:
    pattern = ".*".join(re.escape(part) for part in sentence.split("…"))
    assert re.fullmatch(pattern, str(error.value)), f"{error.value}\n{sentence}"


@pytest.mark.parametrize(("name", "text", "sentence"), TEXT_FILES, ids=[row[2][:60] for row in TEXT_FILES])
def test_text_file(tmp_path, name, text, sentence):
    path = write_text(tmp_path / name, text)
    with pytest.raises(DataError) as error:
        load_dataset(path)
    assert_says(error, said(path, sentence))


MULAN = [
    (
        "arff",
        MULAN_DENSE.replace("0,0,2,none,0,0", "0,0,2,none,0"),
        "line 14: the row has 5 values, expected 6, one for each @attribute.",
    ),
    ("arff", MULAN_DENSE.replace("2,none", "2,5"), "line 14: 'third' is '5', expected one of its declared values."),
    (
        "arff",
        MULAN_DENSE.replace("blue", "green"),
        ": no attribute is called 'blue', expected every label of small.xml.",
    ),
    ("arff", MULAN_SPARSE.replace("{2 2}", "{-1 2}"), "line 13: " + NO_ROW),
    ("xml", "<labels/>", ": names no label, expected <label name=...> elements."),
    ("xml", "<labels><label/></labels>", ": label 1 has no name, expected <label name=...>."),
    ("xml", MULAN_XML.replace("blue", "red"), ": names 2 labels but only 1 differ, expected each once."),
    ("xml", MULAN_XML.replace("</labels>", ""), "line 5: is not well-formed XML (…)."),
    ("xml", BILLION_LAUGHS, ": was refused (DTDForbidden), expected XML without a document type or entities."),
    ("xml", OUTSIDE_ENTITY, ": was refused (DTDForbidden), expected XML without a document type or entities."),
]


@pytest.mark.parametrize(("kind", "text", "sentence"), MULAN, ids=[row[2][:60] for row in MULAN])
def test_mulan_file(tmp_path, kind, text, sentence):
    write_mulan(tmp_path, **({"text": text} if kind == "arff" else {"xml": text}))
    with pytest.raises(DataError) as error:
        load_dataset(tmp_path / "small.arff")
    assert_says(error, said(tmp_path / f"small.{kind}", sentence))


def test_test_file_with_other_columns(tmp_path):
    write_mulan(tmp_path)
    other = write_text(tmp_path / "other.arff", MULAN_DENSE.replace("second", "2nd"))
    with pytest.raises(DataError) as error:
        read_mulan(tmp_path / "small.arff", other, xml=tmp_path / "small.xml")
    assert str(error.value) == f"{other}: feature 1 is '2nd', expected 'second', as in small.arff."


def npz_bytes(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npz_with_pickle() -> bytes:
    return npz_bytes(X=np.array([{"a": 1}], dtype=object), Y=Y)


def npz_claiming(shape: tuple[int, ...]) -> bytes:
    """An archive whose array header, and the archive's own list, claim far more than is there."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("X.npy", member.getvalue())
    return file.getvalue()


SPARSE_PARTS = {"X.data": np.ones(2), "X.indices": np.array([0, 9]), "X.indptr": np.array([0, 1, 2, 2])}
BINARY_FILES = [
    ("a.npz", b"", "cannot be read as a .npz file (it is no zip archive)."),
    ("a.npz", npz_with_pickle(), "cannot be read as a .npz file (…allow_pickle=False)."),
    ("a.npz", npz_claiming((10**9, 10**3)), CLAIMS),
    ("a.npz", npz_bytes(X=X), "holds X, expected " + ARRAYS),
    (
        "a.npz",
        npz_bytes(X=X, Y=Y, label_names=np.arange(2)),
        "label_names has shape (2,) of int64, expected a list of texts.",
    ),
    (
        "a.npz",
        npz_bytes(Y=Y, **{"X.indptr": np.zeros(4, int)}),
        "X lacks a part, expected X.data, X.indices, X.indptr, X.shape.",
    ),
    ("a.npz", npz_bytes(Y=Y, **SPARSE_PARTS, **{"X.shape": np.array([3, 4])}), "X is a damaged sparse matrix (…)."),
    (
        "a.npz",
        npz_bytes(Y=Y, **SPARSE_PARTS, **{"X.shape": np.array([3, 2**40])}),
        "the number of columns of X is 1099511627776, expected at most 4194304.",
    ),
    ("a.npz", npz_bytes(X=X, Y=np.array([["a", "b"]] * 3)), "Y_train holds <U1 values, expected numbers."),
    ("a.mat", b"MATLAB 7.3 MAT-file, Platform: GLNXA64", "is a MATLAB 7.3 (HDF5) file, expected one saved with -v7."),
    ("a.csv.gz", gzip.compress(CSV.encode() * 9)[:-20], "cannot be read after line …)."),
    ("a.arff.bz2", b"not packed", "cannot be read after line 0 (…)."),
    ("a.parquet", b"PAR1 and then nothing", "cannot be read as Parquet (ArrowInvalid)."),
]


@pytest.mark.parametrize(("name", "content", "sentence"), BINARY_FILES, ids=[row[2][:60] for row in BINARY_FILES])
def test_binary_file(tmp_path, name, content, sentence):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load_dataset(path)
    assert_says(error, f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"Z": X}, "holds none of them, expected X_train and Y_train"),
        ({"X_train": X, "Y_train": Y, "X_test": X}, "holds X_test, X_train, Y_train, expected X_train and Y_train"),
        (
            {"X": X, "Y": np.array([["a"], ["b"]], dtype=object)},
            "cannot be read as a MATLAB file (ValueError: Y holds cells, not numbers).",
        ),
        ({"X": X, "Y": Y * 2 - 1}, "Y_train holds -1 at row 0, column 1, expected 0, 1 or NaN (unknown)"),
        ({"X": X * 1j, "Y": Y}, "X_train holds complex64 values, expected a matrix of numbers"),
    ],
)
def test_matlab_file(tmp_path, variables, sentence):
    path = write_mat(tmp_path / "a.mat", **variables)
    with pytest.raises(DataError) as error:
        load_dataset(path)
    assert f"{path}: {sentence}" in str(error.value)


@pytest.mark.parametrize("name", ["a.mat", "a.arff", "a.npz", "a.csv", "a.svm", "a.txt", "a.parquet"])
@pytest.mark.parametrize("there", [False, True], ids=["missing", "a folder"])
def test_file_that_cannot_be_opened(tmp_path, name, there):
    path = tmp_path / name
    if there:
        path.mkdir()
    readers = {".mat": "matlab", ".arff": "meka", ".npz": "npz", ".svm": "svmlight", ".txt": "extreme"}
    with pytest.raises(DataError, match=name):
        READERS[readers.get(path.suffix, "table")](path)


def peak_of_refusal(path: Path) -> int:
    """Bytes at the peak of a `load_dataset` that must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            load_dataset(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def mat4_claiming(rows: int, columns: int) -> bytes:
    return struct.pack("<iiiii", 0, rows, columns, 0, 2) + b"X\0" + bytes(16)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"99999999999 4000000 4000000\n0 0:1\n"),
        ("a.npz", npz_claiming((10**9, 10**3))),
        ("a.mat", mat4_claiming(2**31 - 1, 2**20)),
        (
            "a.arff.bz2",
            bz2.compress(b"@relation '-C 1'\n@attribute a {0,1}\n@attribute b real\n@data\n" + b"1" * 2**27),
        ),
        ("a.svm", b"1 4000000000:1\n"),
    ],
    ids=["extreme", "npz", "mat", "one long line", "svmlight"],
)
def test_sizes_are_not_believed(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert peak_of_refusal(path) < 3 * 2**26


@pytest.mark.parametrize("code", [0, 8, 14, 19, 200, 60000])
def test_matlab_type_codes_that_do_not_exist(tmp_path, code):
    """SciPy alone ends the process on these."""
    savemat(tmp_path / "a.mat", {"X": np.eye(3), "Y": np.eye(3)})
    content = bytearray((tmp_path / "a.mat").read_bytes())
    at = content.index(struct.pack("<II", 9, 72))
    content[at : at + 4] = struct.pack("<I", code)
    (tmp_path / "a.mat").write_bytes(content)
    with pytest.raises(DataError, match=rf"X is made of elements of type \[{code}\]"):
        load_dataset(tmp_path / "a.mat")


def test_sparse_matlab_rows_are_not_believed(tmp_path):
    tall = sparse.csc_array((2**31 - 1, 1))
    path = write_mat(tmp_path / "a.mat", X=tall, Y=tall)
    assert peak_of_refusal(path) < 2**26


def test_malformed_nominal_list_takes_no_time(tmp_path):
    path = write_text(tmp_path / "a.arff", "@relation '-C 1'\n@attribute a {" + "a," * 20000 + "} x\n@data\n")
    started = time.perf_counter()
    with pytest.raises(DataError, match="line 2: attribute 'a' has type"):
        read_meka(path)
    assert time.perf_counter() - started < 1


def test_lines_go_on_and_know_their_number(tmp_path):
    with Lines(write_text(tmp_path / "a.txt", "\ufeffone\ntwo\nthree")) as lines:
        assert next(lines.text()) == "one\n"
        assert list(lines) == [b"two\n", b"three"]
        assert lines.number == 3
