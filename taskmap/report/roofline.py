"""The roofline of a report: what a target can do at best, and the least time that a kernel can take on it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir.target import Target

_NARROW = ("f16[", "bf16[")
_L2_BYTES_PER_CLOCK = 64
"""What one SM takes from L2 in a clock, at best."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit: ``rate`` of a memory in bytes per second, or of arithmetic in operations per second.

    capacity: of a memory, in bytes; 0 where it holds everything, and for arithmetic.
    """

    name: str
    rate: float
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class Peaks:
    """The ceilings of a target: its memories, the smallest first, and its arithmetic, the slowest first.

    origin: where the numbers are from.
    """

    memories: tuple[Ceiling, ...]
    arithmetic: tuple[Ceiling, ...]
    origin: str

    def memory(self, moved: int) -> Ceiling:
        """The smallest memory that holds ``moved`` bytes: what a kernel works on may lie there from kernel to
        kernel."""
        return next((m for m in self.memories if m.capacity == 0 or moved <= m.capacity), self.memories[-1])

    def unit(self, inputs: tuple[str, ...], product: bool) -> Ceiling:
        """What computes on inputs of these types: tensor cores for products of 16-bit elements, where there are any."""
        narrow = product and bool(inputs) and inputs[0].startswith(_NARROW)
        return self.arithmetic[-1] if narrow else self.arithmetic[0]

    def seconds(self, operations: int, moved: int, inputs: tuple[str, ...], product: bool) -> float:
        """The least time in which a kernel can do so many operations and move so many bytes.

        product: whether the operations are those of a contraction or attention.
        """
        return max(operations / self.unit(inputs, product).rate, moved / self.memory(moved).rate)


def cpu_peaks(rate: float, levels: Mapping[str, tuple[int, float]]) -> Peaks:
    """The ceilings of a CPU as they were measured (backend/cpu/peaks.py): operations of f32 per second, and by level of
    memory its bytes and the bytes that are read from it per second."""
    memories = tuple(Ceiling(name, found, capacity) for name, (capacity, found) in levels.items())
    return Peaks(memories, (Ceiling("f32", rate),), "measured on this machine")


def gpu_peaks(gpu: Target) -> Peaks | None:
    """The ceilings of a GPU, by its data."""
    if not (gpu.clock and gpu.memory_bandwidth and gpu.f32_rate):
        return None
    clocks = gpu.clock * gpu.cores
    memories = (
        Ceiling("L2", float(_L2_BYTES_PER_CLOCK * clocks), gpu.l2),
        Ceiling("DRAM", float(gpu.memory_bandwidth)),
    )
    arithmetic = [Ceiling("f32", float(gpu.f32_rate * clocks))]
    if gpu.f16_rate:
        arithmetic.append(Ceiling("f16 tensor cores", float(gpu.f16_rate * clocks)))
    return Peaks(memories, tuple(arithmetic), f"data sheet of {gpu.name or gpu.isa}")
