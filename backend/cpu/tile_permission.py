"""The system's permission to use the tile registers of AMX, requested once per process.

Linux grants the state component XTILEDATA on request: arch_prctl(ARCH_REQ_XCOMP_PERM, 18). All threads of the process
and its forks then have it. Source: Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import lru_cache

TILE_FEATURES = ("amx_tile", "amx_int8", "amx_bf16")
"""The CPU features that need the permission."""
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@lru_cache(maxsize=1)
def tiles_are_granted() -> bool:
    """True if this process may use tile registers. False on other systems and processors, and on a refusal."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    number, request, component = (ctypes.c_long(x) for x in (_ARCH_PRCTL, _REQUEST, _TILE_DATA))
    return bool(libc.syscall(number, request, component) == 0)
