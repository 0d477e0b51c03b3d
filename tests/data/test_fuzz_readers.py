"""Any bytes give every reader a dataset or a DataError, never another exception."""

from __future__ import annotations

import bz2
import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import is_read_or_refused, near
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
    write_mat,
    write_parquet,
)
from scipy import sparse

from esmc_pyro.data import (
    Dataset,
    read_extreme,
    read_matlab,
    read_meka,
    read_mulan,
    read_npz,
    read_svmlight,
    read_table,
    write_npz,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, bytes]:
    """Good files of the binary formats, by name."""
    folder: Path = tmp_path_factory.mktemp("good")
    write_mat(folder / "dense.mat")
    write_mat(folder / "sparse.mat", X=sparse.csc_array(X), Y=sparse.csc_array(Y))
    write_npz(Dataset("a", X, Y), folder / "dense.npz")
    write_npz(Dataset("a", sparse.csr_array(X), sparse.csr_array(Y)), folder / "sparse.npz")
    np.savez(folder / "plain.npz", X=X, Y=Y)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def read_with_list(path: Path) -> Dataset:
    """The file as ARFF, with a good label list beside it."""
    xml = path.with_name("good.xml")
    xml.write_text(MULAN_XML)
    return read_mulan(path, xml=xml)


def read_with_table(path: Path) -> Dataset:
    """The file as a label list, with a good ARFF file beside it."""
    table = path.with_name("good.arff")
    table.write_text(MULAN_DENSE)
    return read_mulan(table, xml=path)


TEXT = {
    "mulan dense": (read_with_list, "a.arff", MULAN_DENSE.encode()),
    "mulan sparse": (read_with_list, "a.arff", MULAN_SPARSE.encode()),
    "mulan xml": (read_with_table, "a.xml", MULAN_XML.encode()),
    "meka": (read_meka, "a.arff", MEKA.encode()),
    "meka bz2": (read_meka, "a.arff.bz2", bz2.compress(MEKA.encode())),
    "extreme": (read_extreme, "a.txt", EXTREME.encode()),
    "extreme gz": (read_extreme, "a.txt.gz", gzip.compress(EXTREME.encode(), mtime=0)),
    "svmlight": (read_svmlight, "a.svm", SVMLIGHT.encode()),
    "csv": (read_table, "a.csv", CSV.encode()),
    "tags": (partial(read_table, tag_column="tags", drop=["id"]), "a.tsv", TAGS.encode()),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_readers(name):
    read, file_name, good_file = TEXT[name]
    assert is_read_or_refused(read, file_name, good_file)

    @settings(max_examples=150)
    @given(near(good_file))
    def holds(content: bytes) -> None:
        is_read_or_refused(read, file_name, content)

    holds()


@pytest.mark.parametrize("name", ["dense.mat", "sparse.mat", "dense.npz", "sparse.npz", "plain.npz"])
def test_binary_readers(good, name):
    read = read_matlab if name.endswith(".mat") else read_npz
    assert is_read_or_refused(read, name, good[name])

    @settings(max_examples=150)
    @given(near(good[name]))
    def holds(content: bytes) -> None:
        is_read_or_refused(read, name, content)

    holds()


def test_parquet_reader(tmp_path):
    pytest.importorskip("pyarrow")
    good_file = write_parquet(tmp_path / "a.parquet").read_bytes()
    assert is_read_or_refused(read_table, "a.parquet", good_file)

    @settings(max_examples=100)
    @given(near(good_file))
    def holds(content: bytes) -> None:
        is_read_or_refused(read_table, "a.parquet", content)

    holds()


@settings(max_examples=100)
@given(st.lists(st.lists(st.text(alphabet="01?,{} '\"\\%x", max_size=6), max_size=4), max_size=4))
def test_arff_rows_of_any_kind(rows):
    """Rows made of the signs that rows are made of, under a good header."""
    head = MEKA.split("{0 1,")[0]
    is_read_or_refused(read_meka, "a.arff", (head + "\n".join(",".join(row) for row in rows)).encode())
