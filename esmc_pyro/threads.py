"""How many threads some work is worth."""

from __future__ import annotations

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

# below so many multiplications a call, two threads are no faster than one
SMALL = 20_000_000


def few_threads(multiplications: float) -> threadpool_limits:
    """A block of calls with so many multiplications in the largest: of small ones, on one thread.

    Threads wait for each other at the end of every call, and while they wait they keep a processor: where others want
    it too, small calls on two threads were fifty times slower than on one.
    """
    return threadpool_limits(1 if multiplications < SMALL else None)
