"""Lowering: from a scheduled kernel to one that a code generator can print. One straight list, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmap.ir.isa.table import Instruction, table_of
from taskmap.ir.lower.conditions import KernelPass
from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.mapped_loops import DistributeRegisters, LowerMappedLoops
from taskmap.ir.lower.peel import SplitInterior
from taskmap.ir.lower.registers import SpillRegisters, WidenRegisters
from taskmap.ir.lower.sides import SplitSides
from taskmap.ir.lower.specs_cpu import PORTABLE, LowerSpecs
from taskmap.ir.lower.tidy import Tidy, Unroll
from taskmap.ir.lower.twins import inlined
from taskmap.ir.lower.vectorize import Vectorize
from taskmap.ir.nodes import Kernel
from taskmap.ir.passes import Observer, both, run_pipeline
from taskmap.ir.target import GpuTarget, Target
from taskmap.ir.util.lazy import lazily

__all__ = ["lower", "pipeline"]


# Most processes lower for the CPU alone and verify nothing.
if TYPE_CHECKING:
    from taskmap.ir.lower.gpu import gpu_pipeline as _gpu_pipeline
    from taskmap.ir.lower.gpu import on_multiprocessors as _on_multiprocessors
    from taskmap.ir.verify.rules import verified as _verified
else:
    _gpu_pipeline = lazily("taskmap.ir.lower.gpu", "gpu_pipeline")
    _on_multiprocessors = lazily("taskmap.ir.lower.gpu", "on_multiprocessors")
    _verified = lazily("taskmap.ir.verify.rules", "verified")


def pipeline(target: Target | None = None, table: tuple[Instruction, ...] | None = None) -> tuple[KernelPass, ...]:
    """The passes that lower a kernel for ``target``, with the instructions of ``table`` (by default, all it has).

    Without a target the kernel runs on every CPU: specs become 128-bit vectors.
    """
    target = target or PORTABLE
    table = table_of(target) if table is None else table
    if target.kind == "cuda":
        return _gpu_pipeline(target, table)
    return (
        WidenRegisters(target, table),
        LowerSpecs(target, table),
        DistributeRegisters(),
        LowerMappedLoops(),
        Flatten(),
        Tidy(),
        SplitSides(),
        SplitInterior(),
        Vectorize(),
        Unroll(),
        Tidy(divisions=True),
        SpillRegisters(),
    )


def lower(
    kernel: Kernel,
    observe: Observer[Kernel] | None = None,
    target: Target | None = None,
    table: tuple[Instruction, ...] | None = None,
    *,
    verify: bool = False,
) -> Kernel:
    """The kernel after every pass of the pipeline; ``observe`` sees each step.

    ``verify``: the conditions of every pass and the rules of the verifier are checked, before and after every pass.
    Raises LoweringError if a pass cannot preserve the kernel's semantics, and VerifyError.
    """
    passes = pipeline(target, table)
    kernel = inlined(kernel)
    if isinstance(target, GpuTarget):
        kernel = _on_multiprocessors(kernel, target.cores)
    if not verify:
        return run_pipeline(passes, kernel, observe)
    return _verified(kernel, lambda watch: run_pipeline(passes, kernel, both(observe, watch), verify=True))
