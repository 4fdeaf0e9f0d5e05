"""The tensor IR. All of it:

expressions   Const Var Unary Binary Compare Select Cast Load Call      scalar, or vector when lanes > 1
              Ramp Broadcast LaneReduce                                 vector only
              Reduce Scatter                                            only inside compute definitions, as is the
                                                                        Recurrence of taskmap.ir.recurrence
              Intrinsic                                                 one instruction, made by lowering
statements    Store For MappedFor If Let Allocate Barrier Evaluate
              Invoke                                                    one instruction with effects
specs         Move MatMul                                               decomposed until an instruction does each piece
the rest      Buffer Region TensorMap Kernel

Every node is frozen. Expressions compare by structure, variables and buffers by identity. ``Let`` and ``Allocate`` are
visible in the statements after them in the same body. Comparison operators build IR (``a < b``); equality does not,
because structural equality needs it: write ``eq(a, b)``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from taskmap.ir.types import DType, boolean, i64
from taskmap.ir.util.lazy import lazily

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.isa.table import Instruction
    from taskmap.ir.source import SourceLocation

_ids = itertools.count()


class Expr:
    """An expression: ``dtype`` is its element type, ``lanes`` its vector width (1 for a scalar)."""

    __slots__ = ("_hash",)
    dtype: DType
    lanes: int
    _hash: int

    def __add__(self, other: ExprLike) -> Expr:
        return _build.binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return _build.binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return _build.binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return _build.binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return _build.binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return _build.binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return _build.binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return _build.binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return _build.binary("floordiv", self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return _build.binary("floordiv", other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return _build.binary("mod", self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return _build.binary("mod", other, self)

    def __and__(self, other: ExprLike) -> Expr:
        return _build.binary("and", self, other)

    def __rand__(self, other: ExprLike) -> Expr:
        return _build.binary("and", other, self)

    def __or__(self, other: ExprLike) -> Expr:
        return _build.binary("or", self, other)

    def __ror__(self, other: ExprLike) -> Expr:
        return _build.binary("or", other, self)

    def __xor__(self, other: ExprLike) -> Expr:
        return _build.binary("xor", self, other)

    def __rxor__(self, other: ExprLike) -> Expr:
        return _build.binary("xor", other, self)

    def __lshift__(self, other: ExprLike) -> Expr:
        return _build.binary("shl", self, other)

    def __rlshift__(self, other: ExprLike) -> Expr:
        return _build.binary("shl", other, self)

    def __rshift__(self, other: ExprLike) -> Expr:
        return _build.binary("shr", self, other)

    def __rrshift__(self, other: ExprLike) -> Expr:
        return _build.binary("shr", other, self)

    def __neg__(self) -> Expr:
        return _build.unary("neg", self)

    def __invert__(self) -> Expr:
        return _build.unary("not", self)

    def __lt__(self, other: ExprLike) -> Expr:
        return _build.compare("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return _build.compare("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return _build.compare("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return _build.compare("ge", self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the value of {self!r} is not known while the program is being built; use select() or if_()")


ExprLike = Expr | int | float | bool
"""An operand of IR arithmetic: an expression, or a number that becomes a constant."""
Dim = int | Expr
"""The extent of a dimension: static, or an expression of symbolic sizes."""


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. Integers and bools hold int or bool, floats hold float (inf and nan included)."""

    value: int | float | bool
    dtype: DType
    lanes: int = 1

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A named value: a loop index, a Let, or a symbolic size. Equal only to itself; ``uid`` orders variables by age."""

    name: str
    dtype: DType = i64
    lanes: int = 1
    uid: int = field(default_factory=lambda: next(_ids))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    """op: neg, not (logical on bool, bitwise on integers), abs."""

    op: str
    a: Expr
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """op: add sub mul div floordiv mod min max and or xor shl shr; operands share type and lanes.

    floordiv and mod round toward minus infinity. tdiv and tmod are the same for operands proved non-negative (a pass
    introduces them). min and max return NaN if either operand is NaN, as torch.minimum and torch.maximum do.
    """

    op: str
    a: Expr
    b: Expr
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """op: lt le gt ge eq ne; the result is bool."""

    op: str
    a: Expr
    b: Expr
    lanes: int
    dtype: DType = boolean


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """a where cond holds, else b. Both sides are evaluated, so loads in either must be in bounds."""

    cond: Expr
    a: Expr
    b: Expr
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion of a value, as Tensor.to(dtype)."""

    a: Expr
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """buffer[indices]; a vector if an index is one."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: DType
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A mathematical function by name (exp, tanh, ...; ``taskmap.ir.functions`` has the table), element-wise."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Ramp(Expr):
    """base, base + stride, ..., base + (lanes - 1) * stride."""

    base: Expr
    stride: Expr
    lanes: int
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Broadcast(Expr):
    """A scalar in every lane."""

    a: Expr
    lanes: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class LaneReduce(Expr):
    """All lanes of a vector reduced to one scalar; op: sum prod max min or and."""

    op: str
    a: Expr
    dtype: DType
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """A reduction inside a compute definition. op: sum prod max min any all argmax argmin (first winner; NaN wins)."""

    op: str
    axes: tuple[tuple[Var, Dim], ...]
    body: Expr
    dtype: DType
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Scatter(Expr):
    """The element at ``here`` of a tensor that starts as ``initial`` and then takes, for every position of ``axes`` in
    row-major order, ``body`` at ``at``: out[here] = initial; for axes: out[at] = out[at] op body.

    op: sum prod max min any all as in Reduce, or last, which replaces. Only as a whole compute definition, whose axes
    are ``here``; at and body do not depend on them.
    """

    op: str
    here: tuple[Expr, ...]
    initial: Expr
    axes: tuple[tuple[Var, Dim], ...]
    at: tuple[Expr, ...]
    body: Expr
    dtype: DType
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Intrinsic(Expr):
    """The value of one instruction of the table (``taskmap.ir.isa.table``).

    On a CPU: the new value of args[0]; args: c, a and b, whole registers, with one lane for every slot that the
    instruction's owner gives to this worker. On a GPU: the result of an instruction that has one (a shuffle, a vote, an
    atomic); args: one per parameter. An operand in memory is a Load, which stands for its address.
    """

    instruction: Instruction
    args: tuple[Expr, ...]
    dtype: DType
    lanes: int


class Scope(Enum):
    """The memory of a buffer: global, a core's (or block's) scratch, registers, or an instruction's fragment."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"
    REGISTER = "register"
    FRAGMENT = "fragment"


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A tensor in memory: its logical ``shape``, and the address of each element as offset + sum(index * stride), in
    elements.

    ``strides`` None means row-major. A buffer with addresses that are not strided has a ``layout``, a callable from
    indices to address (``taskmap.ir.algebra.layout``). ``owner`` distributes a register buffer over workers.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    scope: Scope = Scope.GLOBAL
    strides: tuple[Dim, ...] | None = None
    offset: Dim = 0
    layout: object | None = None
    owner: TaskMapping | None = None

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        return _build.load(self, indices if isinstance(indices, tuple) else (indices,))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


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
    """for var in range(extent). Start is always 0 and step 1. ``unroll`` is a hint to the C compiler (0: none)."""

    var: Var
    extent: Expr
    kind: LoopKind
    body: Body
    unroll: int = 0
    source: SourceLocation | None = None


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
    mapping's. asynchronous: with cp.async, if the target has it; must be committed and waited for.
    """

    dst: Region
    src: Region
    source: SourceLocation | None = None
    mapping: TaskMapping | None = None
    worker: Expr | None = None
    asynchronous: bool = False


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


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function on buffers and sizes: ``buffers`` in argument order, then ``dims``, the symbolic sizes, each an i64.

    ``outputs`` are the buffers it writes; ``note`` describes its schedule. For a GPU only: ``grid`` and ``threads``;
    ``cluster``, the shape of a cluster in blocks; ``min_blocks``, the number of blocks that a multiprocessor should
    hold (0: unspecified), which limits registers; ``maps``, the tensor maps for TMA; ``workspace``, memory of fixed
    size private to each launch, initially undefined; ``counters``, the same of i32, initially 0, which the kernel
    resets to 0.
    """

    name: str
    buffers: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    dims: tuple[Var, ...]
    body: Body
    grid: tuple[Dim, ...] = ()
    threads: int = 0
    note: str = ""
    source: SourceLocation | None = None
    cluster: tuple[int, ...] = ()
    min_blocks: int = 0
    maps: tuple[TensorMap, ...] = ()
    workspace: tuple[Buffer, ...] = ()
    counters: tuple[Buffer, ...] = ()

    @property
    def own(self) -> tuple[Buffer, ...]:
        """The memory private to each launch."""
        return (*self.workspace, *self.counters)

    __repr__ = lazily("taskmap.ir.printer", "kernel_line")
    _repr_html_ = lazily("taskmap.ir.printer", "kernel_html")


def hash_once(kind: type[Expr], *names: str) -> None:
    """Give ``kind`` a structural hash over the fields ``names``, computed once per node: a hash that walked the whole
    expression at each look-up would make every memo quadratic."""
    fields = attrgetter(*names)

    def structural(self: Expr) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash(fields(self))
            object.__setattr__(self, "_hash", value)
            return value

    kind.__hash__ = structural  # type: ignore[assignment]  # a dataclass makes its own, which this replaces


hash_once(Unary, "op", "a")
hash_once(Binary, "op", "a", "b")
hash_once(Compare, "op", "a", "b")
hash_once(Select, "cond", "a", "b")
hash_once(Cast, "dtype", "a")
hash_once(Load, "buffer", "indices")
hash_once(Call, "name", "args")
hash_once(Ramp, "base", "stride", "lanes")
hash_once(Broadcast, "a", "lanes")
hash_once(LaneReduce, "op", "a")
hash_once(Reduce, "op", "axes", "body")
hash_once(Scatter, "op", "at", "body")
hash_once(Intrinsic, "args")

from taskmap.ir import construct as _build  # noqa: E402  operators build nodes, and the constructors need the nodes

__all__ = [
    "Allocate", "Barrier", "Binary", "Body", "Broadcast", "Buffer", "Call", "Cast", "Compare", "Const", "Dim",
    "Evaluate", "Expr", "ExprLike", "For", "If", "Intrinsic", "Invoke", "Kernel", "LaneReduce", "Let", "Load",
    "LoopKind", "MappedFor", "MatMul", "Move", "Ramp", "Reduce", "Region", "Scatter", "Scope", "Select", "Stmt",
    "Store", "TensorMap", "Unary", "Var",
]  # fmt: skip
