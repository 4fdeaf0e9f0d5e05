"""Loading shared objects, and the process's OpenMP runtime for them."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

_PAUSE_HARD = 2  # OpenMP 5.0, omp_pause_hard: give up all threads


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared object. It is never unloaded: threads of the OpenMP pool may still return through its code."""

    path: Path
    handle: ctypes.CDLL

    def address(self, symbol: str) -> int:
        """The address of the function `symbol`. Raises AttributeError if the object does not define it."""
        address = ctypes.cast(self.handle[symbol], ctypes.c_void_p).value
        if address is None:
            raise AttributeError(symbol)
        return address


def load_library(path: Path, *, visible: bool = False) -> Library:
    """Maps `path` into the process, every symbol bound at once. Raises OSError with the symbol that could not be bound.
    ``visible``: later objects may bind to its symbols."""
    ensure_openmp()
    return Library(path, ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL if visible else ctypes.RTLD_LOCAL))


def ensure_openmp() -> bool:
    """Makes the symbols of one GNU-compatible OpenMP runtime visible to kernels; False if there is none.

    Kernels are not linked against a runtime. `import torch` makes its own visible to the whole process, under whatever
    file name its wheel gives it, and that one is used, so that there is a single pool of threads. Without torch the
    system's libgomp is loaded; a torch imported later shares it, because the loader matches the name libgomp.so.1.
    """
    if hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        _survive_fork()
        return True
    for name in openmp_runtimes():
        try:
            runtime = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if hasattr(runtime, "GOMP_parallel"):
            _survive_fork()
            return True
    return False


def have_openmp() -> bool:
    """True if there is an OpenMP runtime for kernels: the system's, or PyTorch's."""
    if ensure_openmp():
        return True
    try:
        import_module("torch")
    except ImportError:
        return False
    return ensure_openmp()


@lru_cache(maxsize=1)
def _survive_fork() -> None:
    """Makes every os.fork release the forking thread's pool of OpenMP threads first.

    A child has none of its parent's threads, and libgomp would wait for them forever. Parent and child start new ones
    when they next need them. A runtime older than OpenMP 5.0 cannot do it; there a child hangs as before.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: pause(_PAUSE_HARD))


def openmp_runtimes() -> list[str]:
    """OpenMP runtimes: those that are loaded, but visible only to their loaders; then the system's."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "omp" in line and len(line.split()) > 5}
    mapped = sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")))
    return [*mapped, "libgomp.so.1"]
