"""The tensor IR. All of it:

expressions   Const Var Unary Binary Compare Select Cast Load Call      scalar, or vector when lanes > 1
              Ramp Broadcast LaneReduce                                 vector only
              Reduce Scatter                                            only inside compute definitions, as is the
                                                                        Recurrence of taskmap.ir.recurrence
              Intrinsic                                                 one instruction, made by lowering
statements    Store For MappedFor If Let Allocate Barrier Evaluate
              Invoke                                                    one instruction with effects
specs         Move MatMul                                               decomposed until an instruction does each piece
the rest      Buffer Region TensorMap Kernel GpuLaunch

Every node is frozen. Expressions compare by structure, variables and buffers by identity. ``Let`` and ``Allocate`` are
visible in the statements after them in the same body. Comparison operators build IR (``a < b``); equality does not,
because structural equality needs it: write ``eq(a, b)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from taskmap.ir import construct as _operators  # noqa: F401  installs the operators of expressions
from taskmap.ir.errors import InputError
from taskmap.ir.expressions import (
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    ExprLike,
    Intrinsic,
    LaneReduce,
    Load,
    Ramp,
    Reduce,
    Scatter,
    Scope,
    Select,
    Unary,
    Var,
)
from taskmap.ir.util.lazy import lazily

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.isa.table import Instruction
    from taskmap.ir.source import SourceLocation

__all__ = [
    "Allocate", "Barrier", "Binary", "Body", "Broadcast", "Buffer", "Call", "Cast", "Compare", "Const", "Dim",
    "Evaluate", "Expr", "ExprLike", "For", "If", "Intrinsic", "Invoke", "Kernel", "LaneReduce", "Let", "Load",
    "LoopKind", "MappedFor", "MatMul", "Move", "Ramp", "Reduce", "Region", "Scatter", "Scope", "Select", "Stmt",
    "Store", "TensorMap", "Unary", "Var",
]  # fmt: skip


class LoopKind(Enum):
    """The execution of a loop."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    PARALLEL = "parallel"
    VECTOR = "vector"


class Stmt:
    """A statement."""

    __slots__ = ()


Body = tuple[Stmt, ...]
"""Statements in program order."""


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """buffer[indices] = value."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """for var in range(extent). Start is always 0 and step 1. ``unroll`` is a hint to the C compiler (0: none).

    ``shared``: a condition on the kernel's sizes; where it is false, one thread executes a parallel loop.
    """

    var: Var
    extent: Expr
    kind: LoopKind
    body: Body
    unroll: int = 0
    source: SourceLocation | None = None
    shared: Expr | None = None


@dataclass(frozen=True, slots=True)
class MappedFor(Stmt):
    """for vars in mapping.on(worker): the worker's tasks, in order."""

    vars: tuple[Var, ...]
    mapping: TaskMapping
    worker: Expr
    body: Body
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """if cond: then, else: orelse; cond is a scalar bool."""

    cond: Expr
    then: Body
    orelse: Body = ()
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """var names value from here to the end of the body."""

    var: Var
    value: Expr
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Allocate(Stmt):
    """The buffer exists from here to the end of the body; its initial content is undefined."""

    buffer: Buffer
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Barrier(Stmt):
    """All threads of the block arrive before any continues, and then see each other's writes."""

    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Evaluate(Stmt):
    """An expression evaluated for its effect."""

    value: Expr
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangular part of a buffer: its first element and its extent in each dimension."""

    buffer: Buffer
    start: tuple[Expr, ...]
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Move(Stmt):
    """dst = src, element by element; regions of equal shape (ignoring dimensions of extent one).

    On a GPU, a region of a distributed register buffer is moved by its holders. Otherwise, with a mapping, worker
    ``worker`` (by default the thread) moves its tasks, each a chunk of the regions: their shape divided by the
    mapping's. asynchronous: with cp.async, if the target has it; must be committed and waited for. clipped: elements
    beyond the end of a buffer in global memory are read as 0, and not written; exact: along these of its dimensions,
    none lies there.
    """

    dst: Region
    src: Region
    source: SourceLocation | None = None
    mapping: TaskMapping | None = None
    worker: Expr | None = None
    asynchronous: bool = False
    clipped: bool = False
    exact: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MatMul(Stmt):
    """c[i, j] += sum over k of a[i, k] * b[k, j], on regions with the matrices in their last two dimensions."""

    c: Region
    a: Region
    b: Region
    source: SourceLocation | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """The view through which TMA copies ``buffer``: boxes of ``box`` elements, one extent for each dimension. An
    argument of the kernel, made when the kernel is launched. ``swizzle``: the bytes over which 16-byte chunks are
    swizzled in shared memory (0: none). ``tensor``: shape and strides of a ``buffer`` that has been flattened.
    """

    name: str
    buffer: Buffer
    box: tuple[int, ...]
    swizzle: int = 0
    tensor: Buffer | None = None

    @property
    def seen(self) -> Buffer:
        """The buffer as a tensor of the box's rank."""
        return self.tensor or self.buffer


@dataclass(frozen=True, slots=True)
class Invoke(Stmt):
    """One instruction of the table, executed for its effect by its number of neighbouring threads.

    operands: one per parameter: a Region that it reads or writes, an Expr for a value, or a TensorMap. If several
    threads execute it together, a region is the whole tile, the same in all of them.
    """

    instruction: Instruction
    operands: tuple[Region | Expr | TensorMap, ...]
    source: SourceLocation | None = None

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that the instruction reads or writes."""
        return tuple(o for o in self.operands if isinstance(o, Region))

    @property
    def written(self) -> tuple[Region, ...]:
        """The regions that the instruction writes."""
        pairs = zip(self.instruction.parameters, self.operands, strict=False)
        return tuple(o for p, o in pairs if isinstance(o, Region) and "w" in p.effect)


@dataclass(frozen=True, slots=True)
class GpuLaunch:
    """The launch of a kernel on a GPU: ``grid``, the number of blocks along at most three axes, and ``threads``, those
    of a block.

    ``cluster``: the shape of a cluster in blocks; ``min_blocks``: the number of blocks that a multiprocessor should
    hold (0: unspecified), which limits registers; ``maps``: the tensor maps for TMA; ``workspace``: memory of fixed
    size private to each launch, initially undefined; ``counters``: the same of i32, initially 0, which the kernel
    resets to 0.
    """

    grid: tuple[Dim, ...]
    threads: int
    cluster: tuple[int, ...] = ()
    min_blocks: int = 0
    maps: tuple[TensorMap, ...] = ()
    workspace: tuple[Buffer, ...] = ()
    counters: tuple[Buffer, ...] = ()

    @property
    def own(self) -> tuple[Buffer, ...]:
        """The memory private to each launch."""
        return (*self.workspace, *self.counters)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function on buffers and sizes: ``buffers`` in argument order, then ``dims``, the symbolic sizes, each an i64.

    ``outputs`` are the buffers it writes; ``note`` describes its schedule; ``launch`` is None on a CPU.
    """

    name: str
    buffers: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    dims: tuple[Var, ...]
    body: Body
    launch: GpuLaunch | None = None
    note: str = ""
    source: SourceLocation | None = None

    @property
    def own(self) -> tuple[Buffer, ...]:
        """The memory private to each launch."""
        return () if self.launch is None else self.launch.own

    def launched(self, **changes: Any) -> Kernel:
        """The GPU kernel with other launch facts: ``kernel.launched(cluster=(2, 1, 1))``."""
        assert self.launch is not None, f"{self.name} is a CPU kernel"
        return replace(self, launch=replace(self.launch, **changes))

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """A kernel is data. Raises InputError, which says how to run it."""
        raise InputError(
            f"kernel {self.name!r} is not built",
            where=self.source,
            why="a Kernel is the program, not a function.",
            hint="Decorate the function with @taskmap.kernel to call it on tensors, or use taskmap.build: it "
            "writes its outputs in place. taskmap.simulate(kernel, ...) checks and counts.",
        )

    __repr__ = lazily("taskmap.ir.printer", "kernel_line")
    _repr_html_ = lazily("taskmap.ir.printer", "kernel_html")
