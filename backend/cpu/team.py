"""The threads that run parallel loops: a library to which every CPU kernel is bound (team.c).

Kernels call ``tm_parallel_1``, launch functions ``tm_team_1``. A process has one such library, visible to everything
that is loaded later; its threads are those of the process's OpenMP runtime, which PyTorch uses, too. Without such a
runtime loops are serial.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path

from taskmap.backend.image import load_image
from taskmap.backend.store.key import KernelSource

PARALLEL = "tm_parallel_1"
TEAM = "tm_team_1"
PARALLEL_DECLARATION = f"extern void {PARALLEL}(void (*loop)(const void *, i64, i64), const void *data, i64 extent);"
TEAM_DECLARATION = f"extern void {TEAM}(void (*body)(void *), void *argument, int threads);"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@lru_cache(maxsize=1)
def team_source() -> KernelSource:
    """The C of the library, stored under the name of one of its functions."""
    return KernelSource(PARALLEL, Path(__file__).with_name("team.c").read_text(encoding="utf-8"), "/* team */")


def have_team() -> bool:
    """True if this process has the library loaded and visible to kernels."""
    return hasattr(ctypes.CDLL(None), PARALLEL)


def load_team(content: bytes) -> None:
    """Loads the library, once in a process. It uses no more threads than the process may have processor time for.

    Raises OSError with the loader's reason.
    """
    load_image(content, visible=True)
    allowed = allowed_processors(_QUOTA)
    if allowed is not None:
        ctypes.c_int.in_dll(ctypes.CDLL(None), "tm_most_1").value = allowed


def allowed_processors(quota: Path) -> int | None:
    """The processors whose time a control group grants, by its file cpu.max (Linux cgroups, version 2); None: all."""
    try:
        granted, period = quota.read_text(encoding="ascii").split()
        return None if granted == "max" else max(1, math.ceil(int(granted) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None
