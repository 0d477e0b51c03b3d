"""The container of model files and checkpoints: large tensors that are the same are written once, and read apart."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from esmc_pyro import tensor_file
from esmc_pyro.tensor_file import LARGE, MOST_COPIES, Format

KIND = Format("a test", 1, "test file", ValueError)
ROWS = LARGE // (4 * 8)  # of 8 columns make a large tensor


def large(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(ROWS, 8)).astype(np.float32))


def back(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensor_file.from_bytes(tensor_file.to_bytes(KIND, {}, tensors), KIND)[1]


def test_the_same_tensor_is_written_once_and_comes_back_apart() -> None:
    given = {"a": large(), "b": large(), "c": large(1), "d": large().mT.contiguous().mT, "e": large().mT}
    one, all_ = (len(tensor_file.to_bytes(KIND, {}, part)) for part in ({"a": given["a"]}, given))
    assert 3 * LARGE < all_ < 3 * LARGE + 2048  # a, c, and d, whose numbers lie in another order in memory
    assert one > LARGE
    read = back(given)
    assert {name: (tensor.stride(), tensor.tolist()) for name, tensor in read.items()} == {
        name: (tensor.stride(), tensor.tolist()) for name, tensor in given.items()
    }
    read["b"] += 1
    assert torch.equal(read["a"], large())


def test_tensors_that_differ_in_shape_or_type_alone_are_not_the_same() -> None:
    zeros = {"a": torch.zeros(ROWS, 8), "b": torch.zeros(8, ROWS), "c": torch.zeros(ROWS, 8, dtype=torch.float64)}
    read = back(zeros)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in read.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in zeros.items()
    }


def test_copies_have_an_end() -> None:
    given = {f"t{place}": large() for place in range(MOST_COPIES + 3)}
    assert len(tensor_file.to_bytes(KIND, {}, given)) > 3 * LARGE
    assert all(torch.equal(tensor, large()) for tensor in back(given).values())


@pytest.mark.parametrize(
    ("copies", "sentence"),
    [
        ({"b": "c"}, "'b' must be there, or be a copy of one that is; got 'c'"),
        ({"b": 1}, "'b' must be there, or be a copy of one that is; got 1"),
        ({"a": "a"}, "'a' must be there"),
        ({"b": "a", "c": "b"}, "'c' must be there"),
        ({f"t{place}": "a" for place in range(MOST_COPIES + 1)}, f"at most {MOST_COPIES} .* got {MOST_COPIES + 1}"),
        ([], "must hold the objects"),
    ],
)
def test_copies_of_nothing_or_without_end_are_refused(copies: Any, sentence: str) -> None:
    arrays = {"a": np.zeros(3, np.float32)}
    config = json.dumps({"content": {}, "orders": {}, "copies": copies})
    head = {"format": KIND.name, "version": "1", "package": "1", "config": config}
    data = safetensors.numpy.save(arrays, head | {"checksum": tensor_file._checksum(head, arrays)})
    with pytest.raises(ValueError, match=sentence):
        tensor_file.from_bytes(data, KIND)


def test_tensors_that_do_not_fit_in_memory_are_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: Any) -> Any:
        raise MemoryError("unable to allocate 9 GiB")

    data = tensor_file.to_bytes(KIND, {}, {"a": large()})
    monkeypatch.setattr(tensor_file, "_tensor", no_memory)
    with pytest.raises(KIND.error, match=r"do not fit in memory \(unable to allocate 9 GiB\)"):
        tensor_file.from_bytes(data, KIND)
