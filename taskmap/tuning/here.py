"""The conditions under which this machine measures, and where its records are kept."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path

from taskmap import __version__
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.store.objects import default_path
from taskmap.tuning.record import Conditions

__all__ = ["conditions", "database_path", "version"]

TEMPLATES = 1
"""Version of the templates of tunable operators, counted up when their kernels become faster or slower."""


def conditions(toolchain: Toolchain, threads: int) -> Conditions:
    """What a time measured here and now would depend on."""
    flags = hashlib.sha256(" ".join(toolchain.flags).encode()).hexdigest()[:8]
    return Conditions(
        device=device(),
        threads=threads,
        compiler=f"{toolchain.identity} flags {flags}",
        version=version(),
        clock=clock(),
    )


def version() -> str:
    """Of taskmap and its templates."""
    return f"{__version__} templates {TEMPLATES}"


@lru_cache(maxsize=1)
def device() -> str:
    """The processor's name, with family and model, since virtual machines hide the name; how many cores are usable."""
    host = detect_host()
    fields: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    numbers = " ".join(
        f"{name} {fields[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in fields
    )
    return " ".join(filter(None, (host.model or platform.machine(), numbers, f"{host.logical_cpus} cores")))


def clock() -> float:
    """MHz of the first core now; 0 where the system does not tell."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("cpu MHz"):
            return float(line.partition(":")[2])
    return 0.0


def database_path(cache_dir: str | None = None) -> Path:
    """Where records are kept: beside the kernel store, in its folder."""
    root = default_path() if cache_dir is None else Path(os.path.abspath(cache_dir))
    return root / "tuning.sqlite"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
