"""What a schedule needs to know of a processor, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A processor. Sizes are bytes, per core; ``l3`` is shared by all cores.

    ``vector_registers`` counts architectural registers of ``vector_bytes`` each. ``cores`` is what schedules plan for;
    a kernel runs correctly on any number.
    """

    kind: str
    isa: str
    vector_bytes: int
    vector_registers: int
    cores: int
    l1: int = 32 * 1024
    l2: int = 1024 * 1024
    l3: int = 32 * 1024 * 1024

    def lanes(self, element_bytes: int) -> int:
        """How many elements of ``element_bytes`` bytes one vector register holds."""
        return max(1, self.vector_bytes // element_bytes)

    def __str__(self) -> str:
        return f"{self.kind}:{self.isa}"


_CPU_ISAS = {"avx512": (64, 32), "avx2": (32, 16), "generic": (16, 16)}


def cpu_target(isa: str, cores: int, l1: int = 32 << 10, l2: int = 1 << 20, l3: int = 32 << 20) -> Target:
    """The CPU target of an instruction set: avx512, avx2 or generic (128-bit vectors)."""
    vector_bytes, registers = _CPU_ISAS[isa]
    return Target("cpu", isa, vector_bytes, registers, cores, l1, l2, l3)
