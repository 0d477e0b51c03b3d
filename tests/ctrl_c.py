"""Ctrl-C at a place of one's choice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest


def stop_at(patch: pytest.MonkeyPatch, home: Any, name: str, call: int) -> Iterator[int]:
    """Ctrl-C in the ``call``-th call of ``home.name``, counted from one; gives the count."""
    inner, calls = getattr(home, name), itertools.count(1)

    def stop(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return inner(*args, **options)

    patch.setattr(home, name, stop)
    return calls
