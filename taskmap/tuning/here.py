"""The conditions of measurements on this machine, and the place of its records."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path

from taskmap import __version__
from taskmap.backend.cpu.host import detect_host, read_system
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.store.objects import default_path
from taskmap.tuning.record import Conditions

__all__ = ["conditions", "database_path", "version"]

TEMPLATES = 1
"""Version of the tunable operators' templates, incremented when their kernels become faster or slower."""


def conditions(toolchain: Toolchain, threads: int) -> Conditions:
    """The conditions that a time measured here and now depends on."""
    flags = hashlib.sha256(" ".join(toolchain.flags).encode()).hexdigest()[:8]
    return Conditions(
        device=device(),
        threads=threads,
        compiler=f"{toolchain.identity} flags {flags}",
        version=version(),
        clock=clock(),
    )


def version() -> str:
    """The version of taskmap and its templates."""
    return f"{__version__} templates {TEMPLATES}"


@lru_cache(maxsize=1)
def device() -> str:
    """The processor's name, with family and model, because virtual machines hide the name; and its usable cores."""
    host = detect_host()
    fields: dict[str, str] = {}
    for line in read_system(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    numbers = " ".join(
        f"{name} {fields[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in fields
    )
    return " ".join(filter(None, (host.model or platform.machine(), numbers, f"{host.logical_cpus} cores")))


def clock() -> float:
    """The first core's current frequency in MHz; 0 if the system does not report it."""
    for line in read_system(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("cpu MHz"):
            return float(line.partition(":")[2])
    return 0.0


def database_path(cache_dir: str | None = None) -> Path:
    """The database's path: in the folder of the kernel store."""
    root = default_path() if cache_dir is None else Path(os.path.abspath(cache_dir))
    return root / "tuning.sqlite"
