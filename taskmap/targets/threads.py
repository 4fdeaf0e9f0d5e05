"""The number of threads of a call, which taskmap's plans follow: PyTorch's where it is loaded, or else OpenMP's."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.openmp_threads import openmp_threads
from taskmap.backend.library import have_openmp

_PROCESS = ctypes.CDLL(None)


def planned_threads() -> int:
    """The number of threads that a call gets."""
    torch = _torch()
    if torch is not None:
        return int(torch.get_num_threads())
    _one_for_each_core()
    return int(_PROCESS.omp_get_max_threads()) if hasattr(_PROCESS, "omp_get_max_threads") else 1


@contextmanager
def calls_on(count: int | None) -> Iterator[None]:
    """Within the block calls get ``count`` threads; None leaves the setting alone."""
    before = planned_threads()
    torch = _torch()
    if torch is None:
        with openmp_threads(count):
            yield
        return
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _torch() -> Any:
    """PyTorch, if this process has loaded it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_num_threads") else None


@lru_cache(maxsize=1)
def _one_for_each_core() -> None:
    """Sets OpenMP's number of threads as PyTorch does when it is loaded, unless the environment sets it."""
    if have_openmp() and _torch() is None and not os.environ.get("OMP_NUM_THREADS"):
        _PROCESS.omp_set_num_threads(min(detect_host().physical_cores, _PROCESS.omp_get_max_threads()))
