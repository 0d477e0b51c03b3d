"""Small work takes one thread, and the caller's threads are his again afterwards."""

from __future__ import annotations

import pytest
import torch

from esmc_pyro import threads


@pytest.fixture
def _two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("multiplications", "inside"), [(0, 1), (threads.SMALL - 1, 1), (threads.SMALL, 2)])
def test_small_work_takes_one_thread(multiplications: float, inside: int) -> None:
    with threads.few_threads(multiplications):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_threads_are_given_back_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), threads.few_threads(0):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
