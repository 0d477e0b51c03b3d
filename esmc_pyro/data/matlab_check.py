"""A look through a MATLAB 5 to 7.2 file before SciPy reads it.

SciPy looks a data element's type code up in a table without checking it, so a damaged or hostile code ends
the whole process. Here every element of the wanted matrices must have a number type and lie inside its parent.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_NUMBER_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}  # 8 to 64 bit integers, single, double
_WHOLE_NUMBER_TYPES = {1, 2, 3, 4, 5, 6, 12, 13}
_MATRIX, _COMPRESSED = 14, 15
_SPARSE_CLASS, _OPAQUE_CLASS = 5, 17
_NUMBER_CLASSES = set(range(6, 16))
_OTHER_CLASSES = {1: "cells", 2: "structures", 3: "objects", 4: "text", 16: "a function"}
_COMPLEX = 0x800
_HEADER_BYTES = 128


@dataclass(frozen=True)
class _Element:
    """A tag and the bytes it speaks of."""

    code: int
    data: memoryview


def check_matlab(content: bytes, wanted: Collection[str]) -> None:
    """Raise a ValueError unless every matrix called one of `wanted` is built as it should be."""
    if 0 in content[:4]:
        return  # version 4, which SciPy reads in plain Python
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("the header names no byte order")
    for element in _elements(memoryview(content)[_HEADER_BYTES:], order, padded=False):
        if element.code == _COMPRESSED:
            unpacked = memoryview(zlib.decompress(element.data))
            element = next(_elements(unpacked, order, padded=False))
        if element.code != _MATRIX:
            raise ValueError(f"an element of type {element.code} stands where a variable should")
        _check_variable(element.data, order, wanted)


def _check_variable(data: memoryview, order: str, wanted: Collection[str]) -> None:
    if len(data) == 0:
        raise ValueError("a variable is empty")
    parts = _elements(data, order, padded=True)
    flags = next(parts)
    if flags.code != 6 or len(flags.data) != 8:
        raise ValueError("a variable has no flags")
    (bits,) = struct.unpack_from(f"{order}I", flags.data)
    kind = bits & 0xFF
    if kind == _OPAQUE_CLASS:
        return  # has no name, so it is never wanted
    dimensions, name = next(parts), bytes(next(parts).data).decode("latin-1")
    if name not in wanted:
        return
    if len(dimensions.data) != 8:
        raise ValueError(f"{name} has {len(dimensions.data) // 4} dimensions, not 2")
    if kind != _SPARSE_CLASS and kind not in _NUMBER_CLASSES:
        raise ValueError(f"{name} holds {_OTHER_CLASSES.get(kind, 'something else')}, not numbers")
    expected = [_WHOLE_NUMBER_TYPES] * 2 if kind == _SPARSE_CLASS else []
    expected += [_NUMBER_TYPES] * (2 if bits & _COMPLEX else 1)
    codes = [part.code for part in parts]
    if len(codes) != len(expected) or any(code not in types for code, types in zip(codes, expected, strict=True)):
        raise ValueError(f"{name} is made of elements of type {codes}")


def _elements(data: memoryview, order: str, *, padded: bool) -> Iterator[_Element]:
    """The elements that follow each other in `data`; inside a variable they are padded to 8 bytes."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError("a tag is cut off")
        code, size = struct.unpack_from(f"{order}II", data, at)
        if code >> 16:  # a small element: size and type share the first half, up to 4 bytes of data the second
            size, code, start, end = code >> 16, code & 0xFFFF, at + 4, at + 8
            if size > 4:
                raise ValueError("a small element is too large")
        else:
            start = at + 8
            end = start + size + (-size % 8 if padded else 0)
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes is cut off")
        yield _Element(code, data[start : start + size])
        at = end
