"""Tensors and a JSON description in one safetensors file: versioned, checksummed, checked before it is used.

The file's metadata holds ``format``, ``version``, ``package`` (which version of this package wrote it), ``config``
(JSON) and ``checksum``, a SHA-256 over all of these and every tensor. Large tensors that are the same are written once.
Nothing in the file is ever run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from esmc_pyro.files import write_atomic

Array = npt.NDArray[Any]
DTYPES = {"F32": "float32", "F64": "float64", "I64": "int64", "U8": "uint8"}
LARGE = 2**16  # bytes of a tensor that is not written twice
MOST_COPIES = 64  # so that a small file cannot fill the memory
FIELDS = ("format", "version", "package", "config", "checksum")


@dataclass(frozen=True)
class Format:
    """A kind of file: its name, the newest version that is understood, what people call it, and the error it raises."""

    name: str
    version: int
    what: str
    error: type[ValueError]


def write(path: str | PathLike[str], kind: Format, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write the file whole or not at all; nothing is touched before everything is known to fit the format."""
    return write_atomic(path, to_bytes(kind, config, tensors))


def to_bytes(kind: Format, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The file's content. Tensors keep the order of their axes in memory: sums over them then round alike."""
    orders, arrays = {}, {}
    copies: dict[str, str] = {}
    written: dict[str, str] = {}  # the first name of each content
    for name, tensor in tensors.items():
        order = _memory_order(tensor)
        if order != list(range(tensor.dim())):
            orders[name] = order
        laid = tensor.detach().permute(order).contiguous()
        array = laid.numpy()
        if str(array.dtype) not in DTYPES.values():
            raise ValueError(f"tensor {name!r} must be of {sorted(DTYPES.values())}; got {array.dtype}")
        first = written.setdefault(fingerprint(laid), name) if array.nbytes >= LARGE else name
        if first == name or len(copies) == MOST_COPIES:
            arrays[name] = array
        else:
            copies[name] = first
    head = {
        "format": kind.name,
        "version": str(kind.version),
        "package": installed_version("esmc-pyro"),
        "config": json.dumps({"content": config, "orders": orders, "copies": copies}, allow_nan=False),
    }
    return safetensors.numpy.save(arrays, head | {"checksum": _checksum(head, arrays)})


def read(path: str | PathLike[str], kind: Format) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a file of this kind; else ``kind.error``, one sentence that names the file."""
    path = Path(path)
    try:
        if not path.is_file():
            raise kind.error("there is no such file" if not path.exists() else f"a {kind.what} is a file; this is none")
        return from_bytes(path.read_bytes(), kind)
    except OSError as error:
        raise kind.error(f"{path}: it cannot be read ({error.strerror})") from None
    except kind.error as error:
        raise kind.error(f"{path}: {error}") from None


def from_bytes(data: bytes, kind: Format) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """As ``read``, from the file's content; the sentence does not name the file."""
    head = _head(data, kind)
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, OverflowError, MemoryError) as error:
        raise kind.error(f"it is damaged or cut short: its tensors do not fit the file ({error})") from None
    checksum = head.pop("checksum")
    if checksum != _checksum(head, arrays):
        raise kind.error("it is damaged: its checksum does not match its content")
    config = parse(head["config"], kind)
    config.setdefault("copies", {})  # which earlier versions lack
    if set(config) != {"content", "orders", "copies"} or not all(isinstance(part, dict) for part in config.values()):
        raise kind.error("its description must hold the objects 'content', 'orders' and 'copies'")
    arrays |= _copies(config["copies"], arrays, kind)
    try:
        tensors = {name: _tensor(array, config["orders"].get(name), kind) for name, array in arrays.items()}
    except MemoryError as error:
        raise kind.error(f"its tensors do not fit in memory ({error})") from None
    return config["content"], tensors


def parse(text: str | bytes, kind: Format) -> dict[str, Any]:
    """A JSON object without repeated keys and with finite numbers only."""

    def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        pairs = list(pairs)
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is repeated")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    def finite(number: str) -> float:
        if not np.isfinite(float(number)):
            raise ValueError(f"{number} is too large")
        return float(number)

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError too
        raise kind.error(f"it is damaged or no {kind.what}: its header is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise kind.error(f"it is damaged or no {kind.what}: its header must be a JSON object")
    return value


def fingerprint(*tensors: Tensor) -> str:
    """A SHA-256 over shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().contiguous().numpy()
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _head(data: bytes, kind: Format) -> dict[str, str]:
    """The metadata, its format and version checked; the size in the first eight bytes is compared, not believed."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise kind.error(f"it is cut short or no {kind.what}: {len(data)} bytes do not hold the header they speak of")
    header = parse(data[8 : 8 + size], kind)
    head = header.pop("__metadata__", None)
    if not isinstance(head, dict) or head.get("format") != kind.name:
        raise kind.error(f"it is no {kind.what}: its header does not say {kind.name!r}")
    version = head.get("version")
    if not isinstance(version, str) or not version.isdecimal() or len(version) > 9 or int(version) < 1:
        raise kind.error(f"its version must be a whole number from 1 on; got {version!r:.40}")
    if int(version) > kind.version:
        writer = head.get("package")
        raise kind.error(
            f"it was written in version {version} of the format (by esmc-pyro {writer!s:.20}); "
            f"this package reads up to version {kind.version}, a newer one is needed"
        )
    if set(head) != set(FIELDS) or not all(isinstance(value, str) for value in head.values()):
        raise kind.error(f"its header must hold the texts {list(FIELDS)}; got {sorted(head)!s:.200}")
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.get("dtype") not in tuple(DTYPES):
            raise kind.error(f"its tensor {name!r:.60} must be of {sorted(DTYPES.values())}")
    return head


def _checksum(head: Mapping[str, str], arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps(dict(head), sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.data)
    return digest.hexdigest()


def _copies(copies: Mapping[str, Any], arrays: Mapping[str, Array], kind: Format) -> dict[str, Array]:
    """The tensors that are written under the name of another, by their own."""
    if len(copies) > MOST_COPIES:
        raise kind.error(f"at most {MOST_COPIES} of its tensors may be copies; got {len(copies)}")
    for name, first in copies.items():
        if name in arrays or not isinstance(first, str) or first not in arrays:
            raise kind.error(f"its tensor {name!r:.60} must be there, or be a copy of one that is; got {first!r:.60}")
    return {name: arrays[first] for name, first in copies.items()}


def _memory_order(tensor: Tensor) -> list[int]:
    """The axes from the slowest in memory to the fastest; the plain order where that is not the whole story."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    return order if tensor.permute(order).is_contiguous() else list(range(tensor.dim()))


def _tensor(array: Array, order: Any, kind: Format) -> Tensor:
    tensor = torch.from_numpy(np.array(array))  # a copy: aligned, writable, and not the file's bytes
    if order is None:
        return tensor
    if not isinstance(order, list) or not all(type(axis) is int for axis in order):
        raise kind.error(f"the axes of a tensor must be a list of whole numbers; got {order!r:.60}")
    if sorted(order) != list(range(tensor.dim())):
        raise kind.error(f"the axes of a tensor must be each of 0 to {tensor.dim() - 1} once; got {order!r:.60}")
    return tensor.permute([order.index(axis) for axis in range(tensor.dim())])
