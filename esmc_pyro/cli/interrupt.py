"""Ctrl-C during a long fit: each ends the stage that runs, none hits the moment when the result is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from esmc_pyro.cli.failure import say


class Interrupts:
    """Whether Ctrl-C came, and whether one that comes now may stop the work."""

    def __init__(self) -> None:
        self.came = False
        self.may_stop = True

    def __call__(self, *_: Any) -> None:
        self.came = True
        if self.may_stop:
            say("esmc fit: Ctrl-C ends this stage; again for the next.")
            raise KeyboardInterrupt


@contextmanager
def watch_interrupts() -> Iterator[Interrupts]:
    """Take note of every Ctrl-C inside the block: a fit ends early without a word when it catches one."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
