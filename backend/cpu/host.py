"""The host CPU: instruction set, cores and caches, read from /proc and /sys."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from taskmap.backend.cpu.tile_permission import TILE_FEATURES, tiles_are_granted
from taskmap.ir.errors import InvalidOptionError, UnsupportedError
from taskmap.ir.features import (
    ISA_FEATURES,
    SIMULATED_TILES,
    extra_features,
    in_order,
    missing_features,
    read_features,
)
from taskmap.ir.target import CpuTarget, cpu_target

Isa = Literal["generic", "avx2", "avx512"]
ISAS: tuple[Isa, ...] = get_args(Isa)
"""The instruction sets that C is generated for, each containing the ones before it."""

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One CPU. Cache sizes are in bytes: L1d and L2 of one core, L3 of one cluster of cores (0 if there is none).
    ``features``: those of ``taskmap.ir.features`` that it has, in their order."""

    machine: str
    model: str
    isa: Isa
    logical_cpus: int
    physical_cores: int
    l1d: int
    l2: int
    l3: int
    features: tuple[str, ...] = ()

    def supports(self, isa: Isa) -> bool:
        """True if code for `isa` runs on this CPU."""
        return ISAS.index(isa) <= ISAS.index(self.isa)

    def target(self, isa: Isa | None = None) -> CpuTarget:
        """This CPU as schedules see it, limited to `isa` if given."""
        return cpu_target(isa or self.isa, self.physical_cores, self.l1d, self.l2, self.l3 or self.l2)

    def chosen_features(self, isa: str | None, asked: str | None) -> tuple[str, ...]:
        """The features of a compilation beyond those of its instruction set: those that ``asked`` lists; if it is None,
        those of this CPU if ``isa`` is None, too, and none otherwise.

        Raises InvalidOptionError for an unknown feature, UnsupportedError for one that this CPU lacks.
        """
        if asked is None:
            return extra_features(self.features, self.isa) if isa is None else ()
        wanted = read_features(asked)
        if lacking := missing_features(wanted, (*self.features, SIMULATED_TILES)):
            raise UnsupportedError(
                f"cannot compile for {', '.join(lacking)}",
                why=f"this CPU ({self.model}) does not have {'them' if len(lacking) > 1 else 'it'}.",
                hint=f"Leave the features to detection, or use some of {', '.join(self.features) or 'none'}.",
            )
        return extra_features(wanted, isa or self.isa)


def parse_isa(name: str) -> Isa:
    """The instruction set called `name`. Raises InvalidOptionError if there is none."""
    for isa in ISAS:
        if isa == name:
            return isa
    raise InvalidOptionError(f"unknown instruction set {name!r}", hint=f"Use one of {', '.join(ISAS)}.")


@lru_cache(maxsize=8)
def detect_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> HostInfo:
    """The CPU described by `proc` and `sys`. A cautious guess replaces missing information; this never raises.

    Only CPUs that this process may run on are counted. Tile registers count only if the system grants them.
    """
    info = _first_cpuinfo_block(proc / "cpuinfo")
    flags = frozenset(info.get("flags", info.get("Features", "")).split())
    if flags & frozenset(TILE_FEATURES) and not tiles_are_granted():
        flags -= frozenset(TILE_FEATURES)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    caches = _cache_sizes(sys / f"devices/system/cpu/cpu{allowed[0]}/cache")
    return HostInfo(
        machine=platform.machine(),
        model=info.get("model name", info.get("CPU part", "unknown")),
        isa=next(isa for isa in reversed(ISAS) if flags >= frozenset(ISA_FEATURES[isa])),
        logical_cpus=len(allowed),
        physical_cores=_physical_cores(sys, allowed),
        l1d=caches.get(1, 32 << 10),
        l2=caches.get(2, 512 << 10),
        l3=caches.get(3, 0),
        features=in_order(flags),
    )


def _first_cpuinfo_block(path: Path) -> dict[str, str]:
    """Key and value of each line of the first processor in `path`; later processors of a machine are identical."""
    fields: dict[str, str] = {}
    for line in read_system(path).splitlines():
        key, colon, value = line.partition(":")
        if not colon and fields:
            break
        if colon:
            fields[key.strip()] = value.strip()
    return fields


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes of each level's data or unified cache, by level."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = (read_system(index / name).strip() for name in ("level", "type", "size"))
        digits = size.rstrip("KMG")
        if kind not in ("Data", "Unified") or not (level.isdigit() and digits.isdigit()):
            continue
        if int(digits) > 0:
            sizes[int(level)] = int(digits) * _UNITS.get(size[len(digits) :], 1)
    return sizes


def _physical_cores(sys: Path, cpus: list[int]) -> int:
    """The number of cores of the logical `cpus`; a CPU of unknown topology counts as a core of its own."""
    cores: set[tuple[str, str]] = set()
    for cpu in cpus:
        topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
        core = read_system(topology / "core_id").strip()
        cores.add((read_system(topology / "physical_package_id").strip(), core) if core else ("cpu", str(cpu)))
    return len(cores)


def read_system(path: Path) -> str:
    """The text of a file of the system; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
