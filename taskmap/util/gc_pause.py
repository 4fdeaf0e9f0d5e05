"""Pauses Python's cyclic garbage collector while a graph is compiled, or modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_frozen() -> Iterator[None]:
    """As ``collector_paused``; afterwards the collector passes over everything that exists. For commands, which keep
    what they import and compile until their process ends: otherwise the first collection walks all of it."""
    with collector_paused():
        yield
        gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause cyclic garbage collection within the block, unless other code turns it on.

    A compilation makes several hundred thousand nodes and leaves few cycles. Their number would trigger the collector,
    which walks all objects of the process, most of them PyTorch's; that costs as much as importing, planning and
    loading together.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
