"""Python's cyclic garbage collector, held back while a graph is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile, unless somebody else turns it on.

    A compilation makes several hundred thousand nodes and leaves few cycles. Counting them, the collector would walk
    all objects of the process, most of them PyTorch's, which costs as much as importing, planning and loading together.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
