"""The peaks of a CPU: measurements are plausible for every vector width of this machine."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from taskmap.backend.cpu.host import ISAS, detect_host
from taskmap.backend.cpu.peaks import measured_peaks
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore


@pytest.mark.parametrize("isa", [isa for isa in ISAS if detect_host().supports(isa)])
def test_peaks(isa: str, cache_dir: Path) -> None:
    host = detect_host()
    target = host.target(isa)  # type: ignore[arg-type]  # one of ISAS
    rate, levels = measured_peaks(target, 2, find_toolchain(isa=isa), KernelStore())
    assert isfinite(rate)
    assert rate > 1e7
    assert next(iter(levels)) == "L2"
    assert list(levels)[-1] == "memory"
    assert levels["L2"][0] == target.l2 * min(2, host.physical_cores)
    assert levels["memory"][0] == 0, "memory holds everything"
    assert all(isfinite(found) and found > 1e6 for _, found in levels.values())
    capacities = [capacity for capacity, _ in levels.values()][:-1]
    assert capacities == sorted(capacities)
