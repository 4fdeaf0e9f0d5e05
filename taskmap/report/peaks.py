"""The roofline's ceilings for a compilation's target: measured on a CPU, known data of a GPU."""

from __future__ import annotations

import logging
from functools import lru_cache

from taskmap.backend.cpu.peaks import measured_peaks
from taskmap.ir.errors import TaskmapError
from taskmap.ir.target import GpuTarget
from taskmap.report.roofline import Peaks, cpu_peaks, gpu_peaks
from taskmap.targets.cpu import CpuPlatform
from taskmap.targets.platform import Platform

_log = logging.getLogger(__name__)


def peaks_of(platform: Platform, threads: int) -> Peaks | None:
    """The ceilings of a platform's target; those of a CPU are measured, once per process.

    None if they cannot be determined.
    """
    if isinstance(platform, CpuPlatform):
        return _of_cpu(platform, threads)
    return gpu_peaks(platform.target) if isinstance(platform.target, GpuTarget) else None


@lru_cache(maxsize=8)
def _of_cpu(platform: CpuPlatform, threads: int) -> Peaks | None:
    try:
        rate, levels = measured_peaks(platform.target, threads, platform.toolchain, platform.store)
    except (TaskmapError, MemoryError) as error:
        _log.warning("the peaks of this machine cannot be measured: %s", error)
        return None
    return cpu_peaks(rate, levels)
