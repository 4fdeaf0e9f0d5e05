"""Progress for people who wait: a bar on a terminal; for commands with redirected output, a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

_PATIENCE = 1.0  # seconds before a bar is worth showing
_BETWEEN_LINES = 2.0
_BETWEEN_SECONDS = 1.0
_CLEAR = "\x1b[K"  # of the rest of a terminal's line
_in_lines = False
_waits_shown = False


class Show(Protocol):
    """Takes the number of items done, the number wanted, and a text about the current item."""

    def __call__(self, done: int, wanted: int, more: str = "") -> None: ...


@contextmanager
def progress_in_lines() -> Iterator[None]:
    """Within the block, progress is also written when stderr is not a terminal: a line every two seconds. For commands;
    library calls stay quiet there."""
    global _in_lines  # no context variable: compilations may run in other threads
    before, _in_lines = _in_lines, True
    try:
        yield
    finally:
        _in_lines = before


@contextmanager
def waits_shown(wanted: bool = True) -> Iterator[None]:
    """Within the block, `waiting` names on a terminal the work in progress. For commands; library calls stay quiet."""
    global _waits_shown  # as above
    before, _waits_shown = _waits_shown, wanted
    try:
        yield
    finally:
        _waits_shown = before


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """For work of unknown length, such as an import: after a second, a line on the terminal names the work and its
    duration; the line disappears when the work is done.
    """
    if not (_waits_shown and sys.stderr.isatty()):
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done, sys.stderr), name="taskmap-waiting", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, done: threading.Event, stream: TextIO) -> None:
    started = time.monotonic()
    if done.wait(_PATIENCE):
        return
    while True:
        stream.write(f"\r{_CLEAR}taskmap: {what}, {time.monotonic() - started:.0f} s")
        stream.flush()
        if done.wait(_BETWEEN_SECONDS):
            break
    stream.write(f"\r{_CLEAR}")
    stream.flush()


@contextmanager
def progress(what: str, total: int) -> Iterator[Show]:
    """Yields a function that takes the number of items done, the number wanted, and a text about the current item.

    After a second, a bar on stderr shows them if stderr is a terminal; elsewhere see progress_in_lines.
    """
    started = said = time.monotonic()
    bar: Any = None

    def show(done: int, wanted: int, more: str = "") -> None:
        nonlocal bar, said
        if bar is None and not sys.stderr.isatty():
            if _in_lines and time.monotonic() - said >= _BETWEEN_LINES:
                said = time.monotonic()
                print(f"taskmap: {what}: {done}/{wanted} {more}".rstrip(), file=sys.stderr, flush=True)
            return
        if bar is None:
            if time.monotonic() - started < _PATIENCE:
                return
            from tqdm import tqdm  # noqa: PLC0415  loaded only when a bar is shown

            bar = tqdm(desc=f"taskmap: {what}", total=wanted, leave=False)
        bar.total = wanted
        bar.update(done - bar.n)
        bar.set_postfix_str(more, refresh=bool(more))

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
