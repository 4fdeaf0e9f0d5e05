"""Waits for a process that may hang, by its own processor time, because it may have to wait for the processor."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

PATIENCE = 10
"""The wait for a process that does not get the processor, as a multiple of its time limit."""


def answers(pipe: Connection, pid: int | None, seconds: int) -> bool:
    """True if output arrives before the process has worked for ``seconds``; it may have to wait for the processor."""
    begun = _worked(pid)
    for _ in range(PATIENCE):
        if pipe.poll(seconds):
            return True
        if _worked(pid) - begun > seconds / 2:
            return False
    return False


def _worked(pid: int | None) -> float:
    """Processor seconds used by a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
