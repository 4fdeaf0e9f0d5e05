"""A lower bound on a kernel's time on a GPU, from the simulator's counters.

Each resource alone would take its own time; the longest bounds the kernel. Williams, Waterman and Patterson, "Roofline:
an insightful visual performance model for multicore architectures", CACM 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir.target import GpuTarget

_SECTOR = 32
_L2_BYTES_PER_CLOCK = 64
"""The most bytes that one SM loads from L2 in a clock cycle."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds that each resource takes by itself, by name; operations of tensor cores, and bytes of DRAM."""

    gpu: GpuTarget
    seconds_of: Mapping[str, float]
    operations: int
    dram_bytes: int

    @property
    def bound(self) -> str:
        """The resource that takes longest."""
        return max(self.seconds_of, key=lambda name: self.seconds_of[name])

    @property
    def seconds(self) -> float:
        """A lower bound on the kernel's time."""
        return self.seconds_of[self.bound]

    @property
    def intensity(self) -> float:
        """Operations of tensor cores per byte of DRAM."""
        return self.operations / self.dram_bytes if self.dram_bytes else math.inf

    def __str__(self) -> str:
        lines = [f"on {self.gpu.name}: at least {_time(self.seconds)}, bound by {self.bound}"]
        lines += [f"  {what:14}{_time(t):>10}" for what, t in self.seconds_of.items()]
        if self.operations:
            rate = self.operations / self.seconds / 1e12
            lines.append(f"  {self.intensity:.1f} operations per byte of DRAM; {rate:.3g} TFLOP/s at that time")
        return "\n".join(lines)


def roofline(counters: Mapping[str, int], footprint: int, gpu: GpuTarget) -> Roofline:
    """The bounds of one launch on ``gpu``. footprint: bytes of global memory that are read or written at least once.

    DRAM moves the footprint once. L2, shared memory and tensor cores work for the SM with the most blocks. Products of
    8-bit elements are twice as fast as of 16 bits, those of 32 bits half as fast.
    """
    blocks = counters["blocks"]
    most = math.ceil(blocks / gpu.cores) / blocks if blocks else 0.0  # the share of the busiest SM
    clock, rate = gpu.clock, gpu.f16_rate
    tensor = counters["tensor bytes"] / 2 * most / (rate * clock) if rate else 0.0
    return Roofline(
        gpu,
        {
            "DRAM": footprint / gpu.memory_bandwidth,
            "L2": counters["global sectors"] * _SECTOR * most / (_L2_BYTES_PER_CLOCK * clock),
            "shared memory": counters["shared wavefronts"] * most / clock,
            "tensor cores": tensor,
        },
        counters["tensor operations"],
        footprint,
    )


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
