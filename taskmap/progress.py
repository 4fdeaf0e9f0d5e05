"""A progress bar that appears only when someone is waiting and looking."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 1.0  # seconds before a bar is worth showing


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with the number of things done and the number wanted.

    After a second, and only on a terminal, a bar on stderr shows them.
    """
    started = time.monotonic()
    bar: Any = None

    def show(done: int, wanted: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < _PATIENCE or not sys.stderr.isatty():
                return
            from tqdm import tqdm  # noqa: PLC0415  loaded only when a bar is shown

            bar = tqdm(desc=f"taskmap: {what}", total=wanted, leave=False)
        bar.total = wanted
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
