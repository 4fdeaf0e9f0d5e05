"""One thread's part in an instruction: its operands, and the state shared by the threads of its block.

An operand in registers is this thread's slots, in order; one in memory is every element of its region.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.fragments import Fragment, fragment
from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.expressions import Environment, ExpressionCompiler, Value
from taskmap.ir.interp.memory import CheckedAccess, Memory, region_indices
from taskmap.ir.interp.wgmma import Described
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Buffer, Dim, Invoke, Region
from taskmap.ir.source import SourceLocation

Array = NDArray[Any]
Coords = tuple[int, ...]


@dataclass(slots=True)
class Mbarrier:
    """The arrivals and bytes that its phase still waits for, and the number of completed phases."""

    count: int
    pending: int
    bytes: int = 0
    phases: int = 0

    def change(self, arrivals: int = 0, bytes: int = 0) -> None:
        """``arrivals`` threads have arrived, and ``bytes`` more are awaited (fewer, if negative)."""
        self.pending -= arrivals
        self.bytes += bytes
        if self.pending < 0:
            raise VerifyError(
                f"an mbarrier of {self.count} arrivals has one more", why="its phase was already complete."
            )
        if self.pending == 0 and self.bytes == 0:
            self.pending = self.count
            self.phases += 1

    def has_completed(self, parity: int) -> bool:
        """True if the phase of this parity is over."""
        return self.phases % 2 != parity % 2


@dataclass(slots=True)
class BlockContext:
    """The state that threads of one block share besides memory: mbarriers by place, named barriers by number, and the
    operands of wgmma by the values of their descriptors."""

    mbarriers: dict[tuple[int, int], Mbarrier] = field(default_factory=dict)
    named: dict[int, list[int]] = field(default_factory=dict)
    descriptors: list[Described] = field(default_factory=list)


@dataclass(slots=True)
class InstructionOperand:
    """A region in one thread, with access to its elements in the instruction's order."""

    memory: Memory
    at: tuple[Array, ...]
    access: CheckedAccess

    def load(self) -> Array:
        return np.asarray(self.memory.load(self.at, self.access, False))

    def store(self, values: Array) -> None:
        self.memory.store(self.at, values, self.access)

    def first(self, n: int) -> InstructionOperand:
        return InstructionOperand(self.memory, tuple(a[:n] for a in self.at), self.access)

    @property
    def count(self) -> int:
        return len(self.at[0]) if self.at else 1


def unknown(instruction: Instruction, source: SourceLocation | None) -> VerifyError:
    return VerifyError(
        f"the interpreter does not execute {instruction.name}",
        where=source,
        why=f"it is {instruction.spec}.",
        hint="Run the kernel in the simulator.",
    )


@dataclass(slots=True)
class InstructionCall:
    """One thread's part in an instruction."""

    stmt: Invoke
    instruction: Instruction
    frame: Environment
    given: list[Any]
    lane: int = 0

    def index(self, name: str) -> int:
        return next(i for i, p in enumerate(self.instruction.parameters) if p.name == name)

    def named(self, name: str) -> Value:
        return self.given[self.index(name)]

    def of_place(self, *places: Place, effect: str = "") -> list[tuple[Parameter, Region, tuple[Coords, Coords]]]:
        rows = zip(self.instruction.parameters, self.stmt.operands, self.given, strict=True)
        return [(p, o, g) for p, o, g in rows if p.place in places and effect in p.effect and isinstance(o, Region)]

    def registers(self) -> list[InstructionOperand]:
        """The register operands in order, each the slots of this lane."""
        return [self.slots(o, *g) for _, o, g in self.of_place(Place.REGISTERS)]

    def slots(self, region: Region, start: Coords, extents: Coords) -> InstructionOperand:
        owner = region.buffer.owner
        if owner is None:
            return self.elements(region.buffer, start, extents)
        held = fragment(owner, extents, self.instruction.workers)
        if not isinstance(held, Fragment):
            raise VerifyError(f"{self.instruction.name} cannot take a part of {region.buffer!r}", why=held)
        coords = np.array([[s + c for s, c in zip(start, at, strict=True)] for at in held.held[self.lane]], np.int64)
        return self.operand(region.buffer, tuple(coords.T))

    def elements(self, b: Buffer, start: Coords, extents: Coords) -> InstructionOperand:
        """All elements of a region, in row-major order."""
        return self.operand(b, tuple(region_indices(start, extents)))

    def operand(self, b: Buffer, at: tuple[Array, ...]) -> InstructionOperand:
        return InstructionOperand(self.frame.buffer(b), at, self.frame.access_to(b))

    def memory(
        self, effect: str = "", *, places: tuple[Place, ...] = (Place.SHARED, Place.GLOBAL, Place.MEMORY)
    ) -> InstructionOperand:
        (_, region, given), *_ = [x for x in self.of_place(*places, effect=effect) if x[0].name != "barrier"]
        return self.elements(region.buffer, *given)

    def geometry(self, b: Buffer) -> tuple[Coords, Coords, int]:
        """Shape, strides and offset of a buffer that may have been flattened, by the kernel's sizes."""

        def size(d: Dim) -> int:
            return d if isinstance(d, int) else int(ExpressionCompiler().compile(d)(self.frame))

        return tuple(map(size, b.shape)), tuple(map(size, strides_of(b))), size(b.offset)

    def mbarrier(self) -> Mbarrier:
        key = self.mbarrier_place()
        try:
            found: Mbarrier = self.frame.block.mbarriers[key]
        except KeyError:
            raise VerifyError("an mbarrier is used before it is initialised") from None
        return found

    def mbarrier_place(self) -> tuple[int, int]:
        i = self.index("barrier")
        region = self.stmt.operands[i]
        assert isinstance(region, Region)
        memory = self.frame.buffer(region.buffer)
        at = memory.address(self.given[i][0])
        return id(memory.storage), int(at)
