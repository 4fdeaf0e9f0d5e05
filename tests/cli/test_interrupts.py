"""Ctrl-C works at every moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from taskmap.cli.interrupts import noticed


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restore interrupts as in a terminal, because background processes of a shell ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # the signal's handler runs between two steps of Python, here
        pass


class _Busy:
    def __del__(self) -> None:
        interrupt()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_ignores_is_noticed() -> None:
    with noticed() as interrupted:
        assert not interrupted()
        busy = _Busy()
        del busy
        assert interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_others_are_raised() -> None:
    with noticed(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_handler_of_the_user_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGINT)
        with noticed() as interrupted:
            assert signal.getsignal(signal.SIGINT) is handler
            assert not interrupted()
    finally:
        signal.signal(signal.SIGINT, before)

    def in_thread() -> None:
        with noticed() as interrupted:
            assert not interrupted()

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
