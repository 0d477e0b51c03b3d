"""Small work takes one thread, and the caller's threads are his again afterwards."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
import torch

from esmc_pyro import threads


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def counts() -> set[int]:
    """What OpenMP and, where PyTorch was built with it, MKL would take."""
    found = re.findall(r"(?:omp|mkl)_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return {torch.get_num_threads(), *map(int, found)}


@pytest.mark.parametrize(("multiplications", "inside"), [(0, 1), (threads.SMALL - 1, 1), (threads.SMALL, 2)])
def test_small_work_takes_one_thread(multiplications: float, inside: int) -> None:
    with threads.few_threads(multiplications):
        assert counts() == {inside}
    assert counts() == {2}


def test_threads_are_given_back_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), threads.few_threads(0):
        raise KeyboardInterrupt
    assert counts() == {2}


def test_threads_are_given_back_whoever_ends_last() -> None:
    other_is_in, first_is_out = threading.Event(), threading.Event()

    def other() -> None:
        with threads.few_threads(0):
            other_is_in.set()
            assert first_is_out.wait(60)

    worker = threading.Thread(target=other)
    with threads.few_threads(0):
        worker.start()
        assert other_is_in.wait(60)
    first_is_out.set()
    worker.join()
    assert counts() == {2}
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2]
