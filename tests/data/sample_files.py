"""The same three rows (four features, two labels) in every format, for the reader tests."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.io import savemat

X = np.array([[0.5, 0, 1, 0], [0, 2, 0, 0], [1, 0, 0, 3]], dtype=np.float32)
Y = np.array([[1, 0], [0, 0], [1, 1]], dtype=np.float32)

# The labels stand between features, and the XML lists them the other way round.
MULAN_HEADER = """% a comment
@relation small

@attribute 'first one' numeric
@attribute red {0,1}
@ATTRIBUTE\tsecond\tREAL
@attribute third {none, some}
@attribute blue {0, 1}
@attribute fourth integer

@data
"""
MULAN_DENSE = MULAN_HEADER + "0.5,1,0,some,0,0\n\n0,0,2,none,0,0\n% between\n1, 1, 0, none, 1, 3\n"
MULAN_SPARSE = MULAN_HEADER + "{0 0.5,1 1,3 some}\n{2 2}\n{0 1, 1 1, 4 1, 5 3}\n"
MULAN_XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="blue"></label><label name="red"/>
</labels>
"""
MEKA = """@relation 'small: -C 2 -split-percentage 66'
@attribute red {0,1}
@attribute blue {0,1}
@attribute a numeric
@attribute b numeric
@attribute c numeric
@attribute d numeric
@data
{0 1,2 0.5,4 1}
{3 2}
{0 1,1 1,2 1,5 3}
"""
EXTREME = "3 4 2\n0 0:0.5 2:1\n1:2\n0,1 0:1 3:3\n"
SVMLIGHT = "7 1:0.5 3:1 # a comment\n2:2\n7,12 1:1 4:3\n"
CSV = "a,b,c,d,label_red,label_blue\n0.5,0,1,0,1,0\n0,2,0,0,0,0\n1,0,0,3,1,1\n"
TAGS = 'id\ta\tb\tc\td\ttags\nu\t0.5\t0\t1\t0\tred\nv\t0\t2\t0\t0\t\nw\t1\t0\t0\t3\t"blue; red"\n'


def write_text(path: Path, text: str) -> Path:
    """Write `text`, compressed when the name says so."""
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))
    return path


def write_mulan(folder: Path, text: str = MULAN_DENSE, xml: str = MULAN_XML) -> Path:
    """small.arff and small.xml in `folder`."""
    write_text(folder / "small.xml", xml)
    return write_text(folder / "small.arff", text)


def write_mat(path: Path, **variables: object) -> Path:
    """A compressed .mat file; X_all and Y_all as small whole numbers where nothing else is said."""
    content = variables or {"X_all": (X * 2).astype(np.uint16), "Y_all": Y.astype(np.uint8)}
    savemat(path, content, do_compression=True)
    return path


def write_parquet(path: Path) -> Path:
    """The CSV table as Parquet."""
    frame = pd.DataFrame({name: X[:, i] for i, name in enumerate("abcd")})
    frame[["label_red", "label_blue"]] = Y
    frame.to_parquet(path)
    return path


def dense(matrix: object) -> np.ndarray:
    """A matrix of a dataset as an array."""
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)
