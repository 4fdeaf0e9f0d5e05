"""Waits for futures that an interrupt always ends.

A thread that sleeps on a lock without a limit can miss an interrupt for good: the signal sets a flag between the
interpreter's last look at it and the sleep, or reaches another thread. These waits look at the flag several times a
second.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

_T = TypeVar("_T")

_BEAT_SECONDS = 0.2


def first_done(futures: Collection[Future[_T]], seconds: float | None = None) -> set[Future[_T]]:
    """The futures that are done, once one of them is; after ``seconds``, if given, perhaps none."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _BEAT_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        done = wait(futures, timeout=min(left, _BEAT_SECONDS), return_when=FIRST_COMPLETED).done
        if done or not futures or left <= 0:
            return done


def each_done(futures: Collection[Future[_T]]) -> Iterator[Future[_T]]:
    """Every future once, as it becomes done."""
    left = set(futures)
    while left:
        done = first_done(left)
        left -= done
        yield from done
