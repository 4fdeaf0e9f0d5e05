"""Notices Ctrl-C even where Python swallows it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed within the block.

    It still raises KeyboardInterrupt; but Python drops exceptions raised while an object is destroyed or a process
    forks, and a command interrupted at such a moment would run to its end.
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
    if before is not signal.default_int_handler:  # another handler decides what an interrupt does
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
