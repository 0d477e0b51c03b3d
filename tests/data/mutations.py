"""Bytes that are nearly a good file, and the promise every reader keeps for any bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from esmc_pyro.data import DataError, Dataset

# What breaks parsers: signs of the formats, numbers at their limits, quotes left open, bytes that are no text.
TOKENS = [
    *(
        b"{",
        b"}",
        b",",
        b";",
        b":",
        b"\t",
        b" ",
        b"\n",
        b"\r",
        b"\0",
        b'"',
        b"'",
        b"\\",
        b"%",
        b"%s",
        b"#",
        b"?",
        b"@data",
    ),
    *(b"@attribute q {0,1}\n", b"-1", b"0", b"1", b"2", b"1e400", b"1e39", b"nan", b"inf", b"4194303", b"2147483648"),
    *(b"9" * 30, b"0x1", b"1_0", b"\xff\xfe", b"\xef\xbb\xbf", "é∞".encode(), b"<!ENTITY a 'b'>", b"&a;", b"]]>"),
]


@st.composite
def mutated(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` after one to six cuts, repeats, replaced bytes or inserted tokens."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 12))
        match draw(st.sampled_from(["token", "cut", "byte", "repeat", "end"])):
            case "token":
                content[at : at + length] = draw(st.sampled_from(TOKENS))
            case "cut":
                del content[at : at + length]
            case "byte":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
            case "repeat":
                content[at:at] = content[at : at + length] * 3
            case "end":
                del content[at:]
    return bytes(content)


def near(good: bytes) -> st.SearchStrategy[bytes]:
    """Mostly mutations of a good file, sometimes any bytes at all."""
    return st.one_of(mutated(good), mutated(good), mutated(good), st.binary(max_size=200))


def is_read_or_refused(read: Callable[[Path], Dataset], name: str, content: bytes) -> bool:
    """Whether the reader made a dataset of `content`; any error but a DataError goes through."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            dataset = read(path)
        except DataError:
            return False
    assert dataset.X_train.shape == (dataset.n_train, dataset.n_features)
    assert dataset.Y_train.shape == (dataset.n_train, dataset.n_labels)
    return True
