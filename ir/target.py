"""Processors as data: the facts that a schedule needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from taskmap.ir.errors import InvalidOptionError
from taskmap.ir.features import FEATURES, ISA_FEATURES, in_order

__all__ = ["GPUS", "CpuTarget", "GpuTarget", "Target", "cpu_target", "cuda_target", "gpu_named"]


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A CPU. Sizes are bytes, per core; ``l3`` is shared by all cores.

    ``vector_registers`` counts architectural registers of ``vector_bytes`` each. Schedules plan for ``cores`` cores; a
    kernel runs correctly on any number. ``features``: the instruction-set extensions that kernels may use, in the order
    of ``taskmap.ir.features``; ``isa`` is the largest instruction set among them.
    """

    kind: ClassVar[Literal["cpu"]] = "cpu"

    isa: str
    vector_bytes: int
    vector_registers: int
    cores: int
    l1: int = 32 * 1024
    l2: int = 1024 * 1024
    l3: int = 32 * 1024 * 1024
    features: tuple[str, ...] = ()

    def lanes(self, element_bytes: int) -> int:
        """The number of elements of ``element_bytes`` bytes in one vector register."""
        return max(1, self.vector_bytes // element_bytes)

    def __str__(self) -> str:
        return f"{self.kind}:{self.isa}"


DEPENDENT_LAUNCH = 90
"""The first compute capability with programmatic dependent launch."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A GPU. name: of the product. cores: streaming multiprocessors (SMs). vector_bytes: the widest load of a thread.

    registers_per_thread: the limit of 32-bit registers. Sizes are bytes: ``l2`` is shared by all SMs; shared_per_block
    is the limit of a block's shared memory, shared_per_sm what an SM has. memory_bandwidth: bytes per second. clock:
    Hz, boosted. f32_rate, f16_rate: floating-point operations of one SM per clock, for f32 without and for f16 with
    tensor cores. l2_rate: bytes that the TMA of one SM loads from L2 per clock; threads reach three quarters of that.
    tf32: products of f32 may round their operands to tf32, which tensor cores multiply. dependent_launch: a kernel may
    start while the one before it ends, and waits for its results itself.
    """

    kind: ClassVar[Literal["cuda"]] = "cuda"

    name: str
    isa: str
    cores: int
    l2: int
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    memory_bandwidth: int
    clock: int
    f32_rate: int
    f16_rate: int
    l2_rate: float = 32
    tf32: bool = False
    dependent_launch: bool = False
    vector_bytes: int = 16
    registers_per_thread: int = 255

    @property
    def capability(self) -> int:
        """The compute capability as one number, 90 for sm_90a."""
        return int(re.sub(r"\D", "", self.isa))

    def lanes(self, element_bytes: int) -> int:
        """The number of elements of ``element_bytes`` bytes in the widest load of one thread."""
        return max(1, self.vector_bytes // element_bytes)

    def __str__(self) -> str:
        return f"{self.kind}:{self.isa}"


Target = CpuTarget | GpuTarget
"""A processor as data."""


_CPU_ISAS = {"avx512": (64, 32), "avx2": (32, 16), "generic": (16, 16)}


def cpu_target(
    isa: str,
    cores: int,
    l1: int = 32 << 10,
    l2: int = 1 << 20,
    l3: int = 32 << 20,
    features: Iterable[str] = (),
) -> CpuTarget:
    """The CPU target of an instruction set: avx512, avx2 or generic (128-bit vectors), with more ``features``.

    Raises InvalidOptionError for a feature that is unknown, or that needs others.
    """
    vector_bytes, registers = _CPU_ISAS[isa]
    extra = tuple(features)
    every = in_order((*ISA_FEATURES[isa], *extra))
    for name in extra:
        if name not in FEATURES:
            raise InvalidOptionError(f"unknown CPU feature {name!r}", hint=f"Use some of {', '.join(FEATURES)}.")
        if lacking := [need for need in FEATURES[name] if need not in every]:
            raise InvalidOptionError(
                f"the CPU feature {name} cannot be used with {isa}",
                why=f"it needs {', '.join(lacking)} too.",
                hint="Name these features too, or a larger instruction set.",
            )
    return CpuTarget(isa, vector_bytes, registers, cores, l1, l2, l3, every)


def _gpu(
    name: str,
    isa: str,
    sms: int,
    clock: float,
    bandwidth: float,
    l2: int,
    shared: int,
    threads: int,
    f32: int,
    f16: int,
) -> GpuTarget:
    """A GPU: clock in GHz, bandwidth in GB/s, L2 in MiB, shared memory of an SM in KiB. On sm_80 and newer the system
    reserves 1 KiB of it per block."""
    isa_number = int(re.sub(r"\D", "", isa))
    return GpuTarget(
        name=name,
        isa=isa,
        cores=sms,
        l2=l2 << 20,
        shared_per_block=(shared - (isa_number >= 80)) << 10,
        shared_per_sm=shared << 10,
        registers_per_sm=65536,
        threads_per_sm=threads,
        memory_bandwidth=round(bandwidth * 1e9),
        clock=round(clock * 1e9),
        f32_rate=f32,
        f16_rate=f16,
    )


# NVIDIA's data sheets and architecture white papers; "CUDA C++ Programming Guide", table of compute capabilities.
GPUS: dict[str, GpuTarget] = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4", "sm_75", 40, 1.59, 320, 4, 64, 1024, 128, 1024),
        _gpu("A100", "sm_80", 108, 1.41, 2039, 40, 164, 2048, 128, 2048),
        _gpu("RTX 3090", "sm_86", 82, 1.695, 936, 6, 100, 1536, 256, 512),
        _gpu("RTX 4090", "sm_89", 128, 2.52, 1008, 72, 100, 1536, 256, 512),
        _gpu("H100", "sm_90a", 132, 1.83, 3350, 50, 228, 2048, 256, 4096),
        _gpu("H200", "sm_90a", 132, 1.83, 4800, 50, 228, 2048, 256, 4096),
        _gpu("B200", "sm_100a", 148, 1.85, 8000, 126, 228, 2048, 256, 8192),
    )
}
"""The GPUs that taskmap knows by name."""

_TYPICAL = {75: "T4", 80: "A100", 86: "RTX 3090", 89: "RTX 4090", 90: "H100", 100: "B200"}


def gpu_named(name: str) -> GpuTarget:
    """A GPU by its product name: "H200", "rtx-4090". Raises InvalidOptionError for one not in GPUS."""
    wanted = re.sub(r"[^a-z0-9]", "", name.lower())
    for known, gpu in GPUS.items():
        if re.sub(r"[^a-z0-9]", "", known.lower()) == wanted:
            return gpu
    raise InvalidOptionError(
        f"unknown GPU {name!r}", why=f"taskmap knows {', '.join(GPUS)}.", hint="cuda_target('sm_80')"
    )


def cuda_target(isa: str, sms: int | None = None) -> GpuTarget:
    """A GPU by its instruction set, "sm_75" to "sm_100a": the data of a typical one, with ``sms`` multiprocessors.

    "sm_90a" includes the features specific to Hopper (wgmma), "sm_90" only those that later GPUs have too. Raises
    InvalidOptionError for an instruction set older than sm_75, or unknown.
    """
    number = re.fullmatch(r"sm_(\d+)[af]?", isa)
    known = [base for base in _TYPICAL if number and base <= int(number[1])]
    if not known:
        raise InvalidOptionError(
            f"unknown GPU instruction set {isa!r}", why="taskmap generates code for sm_75 and newer."
        )
    typical = GPUS[_TYPICAL[max(known)]]
    return replace(typical, isa=isa, cores=sms or typical.cores)
