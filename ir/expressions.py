"""The expressions of the tensor IR, and the buffers that they load from. `nodes` lists the whole IR.

Expressions compare by structure, variables and buffers by identity. Their operators build nodes: `construct` defines
them, and `nodes` loads it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from taskmap.ir.types import DType, boolean, i64

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.isa.table import Instruction

_ids = itertools.count()


class Expr:
    """An expression: ``dtype`` is its element type, ``lanes`` its vector width (1 for a scalar)."""

    __slots__ = ("_hash",)
    dtype: DType
    lanes: int
    _hash: int

    if TYPE_CHECKING:  # `construct` installs the operators: they build nodes

        def __add__(self, other: ExprLike) -> Expr: ...
        def __radd__(self, other: ExprLike) -> Expr: ...
        def __sub__(self, other: ExprLike) -> Expr: ...
        def __rsub__(self, other: ExprLike) -> Expr: ...
        def __mul__(self, other: ExprLike) -> Expr: ...
        def __rmul__(self, other: ExprLike) -> Expr: ...
        def __truediv__(self, other: ExprLike) -> Expr: ...
        def __rtruediv__(self, other: ExprLike) -> Expr: ...
        def __floordiv__(self, other: ExprLike) -> Expr: ...
        def __rfloordiv__(self, other: ExprLike) -> Expr: ...
        def __mod__(self, other: ExprLike) -> Expr: ...
        def __rmod__(self, other: ExprLike) -> Expr: ...
        def __and__(self, other: ExprLike) -> Expr: ...
        def __rand__(self, other: ExprLike) -> Expr: ...
        def __or__(self, other: ExprLike) -> Expr: ...
        def __ror__(self, other: ExprLike) -> Expr: ...
        def __xor__(self, other: ExprLike) -> Expr: ...
        def __rxor__(self, other: ExprLike) -> Expr: ...
        def __lshift__(self, other: ExprLike) -> Expr: ...
        def __rlshift__(self, other: ExprLike) -> Expr: ...
        def __rshift__(self, other: ExprLike) -> Expr: ...
        def __rrshift__(self, other: ExprLike) -> Expr: ...
        def __neg__(self) -> Expr: ...
        def __invert__(self) -> Expr: ...
        def __lt__(self, other: ExprLike) -> Expr: ...
        def __le__(self, other: ExprLike) -> Expr: ...
        def __gt__(self, other: ExprLike) -> Expr: ...
        def __ge__(self, other: ExprLike) -> Expr: ...

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

    if TYPE_CHECKING:  # as the operators of expressions

        def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr: ...

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def hash_once(kind: type[Expr], *names: str) -> None:
    """Give ``kind`` a structural hash over the fields ``names``, computed once per node: a hash that walked the whole
    expression at each look-up would make every memo quadratic."""
    fields, keep = attrgetter(*names), vars(Expr)["_hash"].__set__

    def structural(self: Expr) -> int:
        value: int | None = getattr(self, "_hash", None)  # an AttributeError would take longer than the hash
        if value is None:
            value = hash(fields(self))
            keep(self, value)
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
