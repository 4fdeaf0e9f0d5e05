"""The roofline of a report: the best rates of a target, and lower bounds on kernel times.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir.target import GpuTarget

_NARROW = ("f16[", "bf16[")
_L2_BYTES_PER_CLOCK = 64
"""Bytes that one SM can read from L2 per clock, at best."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit: ``rate`` of a memory in bytes per second, or of arithmetic in operations per second.

    capacity: of a memory, in bytes; 0 for unlimited memory, and for arithmetic.
    """

    name: str
    rate: float
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class Peaks:
    """The ceilings of a target: its memories, smallest first, and its arithmetic, slowest first.

    origin: the source of the numbers.
    """

    memories: tuple[Ceiling, ...]
    arithmetic: tuple[Ceiling, ...]
    origin: str

    def memory(self, moved: int) -> Ceiling:
        """The smallest memory that holds ``moved`` bytes: a kernel's data may stay there from kernel to
        kernel."""
        return next((m for m in self.memories if m.capacity == 0 or moved <= m.capacity), self.memories[-1])

    def unit(self, inputs: tuple[str, ...], product: bool) -> Ceiling:
        """The unit for inputs of these types: tensor cores for products of 16-bit elements, if there are any."""
        narrow = product and bool(inputs) and inputs[0].startswith(_NARROW)
        return self.arithmetic[-1] if narrow else self.arithmetic[0]

    def seconds(self, operations: int, moved: int, inputs: tuple[str, ...], product: bool) -> float:
        """A lower bound on the time of a kernel with this many operations and bytes moved.

        product: the operations are those of a contraction or attention.
        """
        return max(operations / self.unit(inputs, product).rate, moved / self.memory(moved).rate)


def cpu_peaks(rate: float, levels: Mapping[str, tuple[int, float]]) -> Peaks:
    """The ceilings of a CPU as measured (backend/cpu/peaks.py): f32 operations per second, and for each level of
    memory its size in bytes and its read rate in bytes per second."""
    memories = tuple(Ceiling(name, found, capacity) for name, (capacity, found) in levels.items())
    return Peaks(memories, (Ceiling("f32", rate),), "measured on this machine")


def gpu_peaks(gpu: GpuTarget) -> Peaks:
    """The ceilings of a GPU, from its data sheet."""
    clocks = gpu.clock * gpu.cores
    memories = (
        Ceiling("L2", float(_L2_BYTES_PER_CLOCK * clocks), gpu.l2),
        Ceiling("DRAM", float(gpu.memory_bandwidth)),
    )
    arithmetic = (
        Ceiling("f32", float(gpu.f32_rate * clocks)),
        Ceiling("f16 tensor cores", float(gpu.f16_rate * clocks)),
    )
    return Peaks(memories, arithmetic, f"data sheet of {gpu.name}")
