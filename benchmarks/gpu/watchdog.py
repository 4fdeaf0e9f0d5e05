"""Ends a process that hangs in a call of the GPU's driver, from a thread in C, which does not need the
interpreter's lock."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import TextIO

START_SECONDS = 60.0
"""The time limit of a process until its first case: PyTorch's import and the GPU's context."""

CASE_SECONDS = 20.0
"""The time limit of a case that does not report that it lives."""


class Watchdog:
    """After some seconds without a sign of life, writes all threads' stacks to ``path`` and ends the process with
    status 1."""

    def __init__(self, path: Path | None, seconds: float = CASE_SECONDS) -> None:
        self._path, self.seconds = path, seconds
        self._file: TextIO | None = None

    def arm(self, seconds: float | None = None) -> None:
        """Allow this many seconds from now on; replaces the previous limit."""
        if self._file is None and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8")
        faulthandler.dump_traceback_later(seconds or self.seconds, exit=True, file=self._file or sys.stderr)

    def disarm(self) -> None:
        """Stop watching; nothing was written."""
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None and self._path is not None:
            self._file.close()
            self._file = None
            self._path.unlink(missing_ok=True)


def hang_file(record: Path) -> Path:
    """The file that receives the stacks of a hang in the part that writes ``record``."""
    return record.with_suffix(".hang.txt")
