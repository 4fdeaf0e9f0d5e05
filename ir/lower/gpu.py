"""Lowering for a GPU: one straight list of passes, in order."""

from __future__ import annotations

from dataclasses import replace

from taskmap.ir.construct import index, static_size
from taskmap.ir.isa.table import Instruction
from taskmap.ir.lower.collapse import CollapseLoops
from taskmap.ir.lower.common_indices import NameIndices
from taskmap.ir.lower.conditions import KernelPass
from taskmap.ir.lower.copy_offsets import NameCopyOffsets
from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.instructions import LowerInvokes
from taskmap.ir.lower.mapped_loops import DistributeRegisters, LowerMappedLoops
from taskmap.ir.lower.provenance import NoteMappings
from taskmap.ir.lower.specs_cpu import LowerSpecs
from taskmap.ir.lower.specs_gpu import LowerGpuSpecs
from taskmap.ir.lower.tidy import Tidy
from taskmap.ir.lower.vectorize import Vectorize
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.visit import substitute
from taskmap.ir.workers import MULTIPROCESSORS, depends_on_multiprocessors


def on_multiprocessors(kernel: Kernel, count: int) -> Kernel:
    """The kernel for a GPU with ``count`` multiprocessors."""
    if kernel.launch is None or not depends_on_multiprocessors(kernel.launch):
        return kernel
    known = {MULTIPROCESSORS: index(count)}
    blocks = substitute(index(kernel.launch.grid[0]), known)
    return replace(kernel.launched(grid=(static_size(blocks) or blocks,)), body=substitute(kernel.body, known))


def gpu_pipeline(target: GpuTarget, table: tuple[Instruction, ...]) -> tuple[KernelPass, ...]:
    """The passes that lower a kernel of blocks and threads. Unrolled loops are left to the device compiler, which
    handles them well, so the text stays short."""
    return (
        NoteMappings(),
        LowerGpuSpecs(target, table),
        LowerSpecs(target, table),
        LowerInvokes(),
        DistributeRegisters(),
        LowerMappedLoops(unroll=16),
        Flatten(),
        Tidy(names=True),
        Vectorize(),
        Tidy(divisions=True, names=True),
        CollapseLoops(),
        NameCopyOffsets(),
        NameIndices(),
    )
