"""Lowering: from a scheduled kernel to one that a code generator can print. One straight list, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskmap.ir.isa.table import Instruction, table_of
from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.mapped_loops import DistributeRegisters, LowerMappedLoops
from taskmap.ir.lower.peel import SplitInterior
from taskmap.ir.lower.registers import SpillRegisters, WidenRegisters
from taskmap.ir.lower.sides import SplitSides
from taskmap.ir.lower.specs_cpu import PORTABLE, LowerSpecs
from taskmap.ir.lower.tidy import Tidy, Unroll
from taskmap.ir.lower.vectorize import Vectorize
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.util.lazy import lazily

__all__ = ["lower", "pipeline"]


class LoweringPass(Protocol):
    """A pass of lowering: a rewrite that keeps what a kernel does."""

    @property
    def name(self) -> str:
        """A word for dumps and messages."""

    @property
    def why_here(self) -> str:
        """The reason for its place in the list."""

    def run(self, kernel: Kernel) -> Kernel:
        """The rewritten kernel."""


_gpu_pipeline: Callable[..., tuple[LoweringPass, ...]] = lazily("taskmap.ir.lower.gpu", "gpu_pipeline")


def pipeline(target: Target | None = None, table: tuple[Instruction, ...] | None = None) -> tuple[LoweringPass, ...]:
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
    observe: Callable[[str, Kernel], None] | None = None,
    target: Target | None = None,
    table: tuple[Instruction, ...] | None = None,
) -> Kernel:
    """The kernel after every pass of the pipeline; ``observe(pass name, kernel)`` is called after each.

    Raises LoweringError when a pass cannot keep the kernel's meaning.
    """
    for step in pipeline(target, table):
        kernel = step.run(kernel)
        if observe is not None:
            observe(step.name, kernel)
    return kernel
