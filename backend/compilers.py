"""Facts shared by the compilers of all targets: how many run at once, and which diagnostics are shown."""

from __future__ import annotations

import os
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of kernels that are ready and the number wanted, in the thread that asked for them."""

_SHOWN_LINES = 12


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_lines(text: str, mark: str = "error:") -> str:
    """The first lines of diagnostics, starting at the first with ``mark`` if there is one."""
    lines = text.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if mark in line), 0)
    shown = lines[first : first + _SHOWN_LINES]
    more = len(lines) - first - len(shown)
    return "\n".join([*shown, f"({more} more lines)"] if more > 0 else shown)
