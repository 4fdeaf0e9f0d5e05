"""The effect of invoked instructions in the interpreter, from their specs and owners alone.

Asynchronous copies complete at once, so commits and waits have no effect: only the simulator sees whether a kernel
waits for the data it uses. Barriers in shared memory (mbarrier) and named barriers do make threads wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from taskmap.ir.interp.collectives import TOGETHER, product
from taskmap.ir.interp.expressions import Environment, ExpressionCompiler
from taskmap.ir.interp.operands import InstructionCall, unknown
from taskmap.ir.interp.scheduler import Until
from taskmap.ir.interp.thread_ops import ALONE
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import (
    BarrierSpec,
    FenceSpec,
    GridSpec,
    GroupSpec,
    MatMulSpec,
    MbarrierSpec,
    PrefetchSpec,
    RegisterHoldSpec,
    RegisterLimitSpec,
    TileStateSpec,
)
from taskmap.ir.nodes import Expr, Invoke, Region

Array = NDArray[Any]
Coords = tuple[int, ...]


NOTHING = (FenceSpec, GroupSpec, PrefetchSpec, RegisterLimitSpec, RegisterHoldSpec, GridSpec, TileStateSpec)
"""Specs that change no value, given that copies complete at once."""


class Invocations:
    """The instructions of one kernel, each compiled once to a function of a frame, or of the frames of a group."""

    def __init__(self, expressions: ExpressionCompiler) -> None:
        self.expressions = expressions

    def region(self, region: Region) -> Callable[[Environment], tuple[Coords, Coords]]:
        """(start, extents) of a region in a frame."""
        start = [self.expressions.compile(s) for s in region.start]
        extents = [self.expressions.compile(n) if isinstance(n, Expr) else n for n in region.shape]
        return lambda frame: (tuple(s(frame) for s in start), tuple(n(frame) if callable(n) else n for n in extents))

    def operands(self, s: Invoke) -> Callable[[Environment], list[Any]]:
        """Regions become (start, extents), values are evaluated, tensor maps stay."""
        getters: list[Callable[[Environment], Any]] = []
        for operand in s.operands:
            if isinstance(operand, Region):
                getters.append(self.region(operand))
            elif isinstance(operand, Expr):
                getters.append(self.expressions.compile(operand))
            else:
                getters.append(lambda frame, kept=operand: kept)  # type: ignore[misc]  # a default binds it now
        return lambda frame: [get(frame) for get in getters]

    def alone(self, s: Invoke) -> Callable[[Environment], None]:
        """An instruction of one thread that never waits."""
        instruction, spec, get = s.instruction, s.instruction.spec, self.operands(s)
        if isinstance(spec, NOTHING):
            return lambda frame: None
        effect = ALONE.get(type(spec))
        if isinstance(spec, MatMulSpec):
            effect = _product_alone
        if effect is None:
            raise unknown(instruction, s.source)

        def run(frame: Environment) -> None:
            given = get(frame)
            effect(InstructionCall(s, instruction, frame, given))

        return run

    def together(self, s: Invoke, frames: Sequence[Environment]) -> None:
        """An instruction of a group of threads."""
        effect = TOGETHER.get(type(s.instruction.spec))
        if effect is None:
            raise unknown(s.instruction, s.source)
        get = self.operands(s)
        effect([InstructionCall(s, s.instruction, frame, get(frame), lane) for lane, frame in enumerate(frames)])

    def waits(self, s: Invoke) -> Callable[[Environment], Until | None] | None:
        """The condition that an instruction waits for after its effect; None for one that never waits."""
        spec, get = s.instruction.spec, self.operands(s)
        if isinstance(spec, MbarrierSpec) and spec.action == "wait":

            def completed(frame: Environment) -> Until:
                call = InstructionCall(s, s.instruction, frame, get(frame))
                barrier, parity = call.mbarrier(), int(call.named("parity"))
                return Until(lambda: barrier.has_completed(parity), "the phase of its mbarrier", s.source)

            return completed
        if isinstance(spec, BarrierSpec) and spec.among == "threads":

            def arrived(frame: Environment) -> Until | None:
                call = InstructionCall(s, s.instruction, frame, get(frame))
                number, threads = int(call.named("id")), int(call.named("threads"))
                rounds = frame.block.named.setdefault(number, [0])
                rounds[0] += 1
                target = -(-rounds[0] // threads) * threads
                if spec.action == "arrive":
                    return None
                return Until(lambda: rounds[0] >= target, f"barrier {number}", s.source)

            return arrived
        return None


def _product_alone(call: InstructionCall) -> None:
    product([call])


def is_collective(instruction: Instruction) -> bool:
    """True if several threads must synchronise to execute an instruction."""
    spec = instruction.spec
    return (
        instruction.workers > 1
        and not isinstance(spec, NOTHING)
        and not (isinstance(spec, BarrierSpec) and spec.among == "threads")
    )


def may_wait(instruction: Instruction) -> bool:
    """True if an instruction of one thread may make it wait."""
    spec = instruction.spec
    return (isinstance(spec, MbarrierSpec) and spec.action == "wait") or (
        isinstance(spec, BarrierSpec) and spec.among == "threads"
    )
