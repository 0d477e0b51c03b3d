"""How many of PyTorch's threads some work is worth."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# below so many multiplications a call, two threads are no faster than one
SMALL = 20_000_000

_lock = threading.Lock()
_inside = 0  # blocks on one thread that are open now, and how many threads there were before the first
_before = 1


@contextmanager
def few_threads(multiplications: float) -> Iterator[None]:
    """A block of calls with so many multiplications in the largest: of small ones, on one thread.

    Threads wait for each other at the end of every call, and while they wait they keep a processor: where others want
    it too, small calls are held up again and again. Fits may run in several of Python's threads: each leaves the number
    that the first found.
    """
    global _inside, _before
    if multiplications >= SMALL:
        yield
        return
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        _inside += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            torch.set_num_threads(_before)
            _inside -= 1
