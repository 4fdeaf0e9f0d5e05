"""Interrupts that nothing swallows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C came meanwhile.

    It raises KeyboardInterrupt as ever; but Python ignores what is raised while an object is destroyed or a process
    forks, and a command that is interrupted there runs on to its end.
    """
    came = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # whoever set another knows what an interrupt is to do
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
