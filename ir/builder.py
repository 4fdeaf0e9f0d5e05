"""An immediate-mode builder of statements, with which schedules write kernels where script is too rigid.

b = Builder()
with b.loop("i", rows, LoopKind.PARALLEL) as i:
    total = b.let("total", x[i, 0] + x[i, 1])
    b.store(y, (i,), total)
kernel_body = b.body()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from typing import cast as typed

from taskmap.ir.construct import as_expr, as_index, cast, constant_value, index, ne, static_size
from taskmap.ir.errors import LoweringError, TypeMismatchError
from taskmap.ir.nodes import (
    Allocate,
    Barrier,
    Body,
    Buffer,
    Const,
    Dim,
    Evaluate,
    Expr,
    ExprLike,
    For,
    If,
    Invoke,
    Let,
    LoopKind,
    MappedFor,
    MatMul,
    Move,
    Region,
    Scope,
    Stmt,
    Store,
    TensorMap,
    Var,
)
from taskmap.ir.types import DType

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.isa.entry import Instruction
    from taskmap.ir.source import SourceLocation


@dataclass(frozen=True, slots=True)
class _When:
    """The place where the last ``when`` ended, and the value of its condition if that was known."""

    body: list[Stmt]
    length: int
    known: int | float | bool | None


class Builder:
    """Collects statements in program order; ``with`` opens the body of a loop or a branch.

    ``source`` becomes the location of each statement made while it is set.
    """

    def __init__(self, source: SourceLocation | None = None) -> None:
        self.source = source
        self._bodies: list[list[Stmt]] = [[]]
        self._when: _When | None = None

    def body(self) -> Body:
        """The finished statements. Raises LoweringError while a loop or a branch is still open."""
        if len(self._bodies) != 1:
            raise LoweringError("body() is called while a loop or a branch is still open")
        return tuple(self._bodies[0])

    def emit(self, *stmts: Stmt) -> None:
        """Append finished statements."""
        self._bodies[-1].extend(stmts)

    @contextmanager
    def _open(self) -> Iterator[list[Stmt]]:
        inner: list[Stmt] = []
        depth = len(self._bodies)
        self._bodies.append(inner)
        try:
            yield inner
        finally:
            del self._bodies[depth:]

    @contextmanager
    def loop(self, name: str, extent: ExprLike, kind: LoopKind = LoopKind.SERIAL, *, unroll: int = 0) -> Iterator[Expr]:
        """for name in range(extent). Extent 1 emits only the body, with index 0; extent 0 emits nothing."""
        count = as_index(extent)
        known = constant_value(count)
        source = self.source
        with self._open() as inner:
            var = Var(name)
            yield index(0) if known == 1 else var
        if known == 1:
            self.emit(*inner)
        elif inner and (known is None or known > 0):
            self.emit(For(var, count, kind, tuple(inner), unroll, source))

    @contextmanager
    def grid(
        self, names: Sequence[str], extents: Sequence[ExprLike], kind: LoopKind = LoopKind.SERIAL
    ) -> Iterator[tuple[Expr, ...]]:
        """Nested loops, outermost first, all of one kind."""
        if not names:
            yield ()
            return
        with self.loop(names[0], extents[0], kind) as i, self.grid(names[1:], extents[1:], kind) as rest:
            yield (i, *rest)

    @contextmanager
    def mapped(self, names: Sequence[str], mapping: TaskMapping, worker: ExprLike) -> Iterator[tuple[Var, ...]]:
        """for names in mapping.on(worker); the statement remains a MappedFor until it is lowered."""
        variables = tuple(Var(n) for n in names)
        source = self.source
        with self._open() as inner:
            yield variables
        if inner:
            self.emit(MappedFor(variables, mapping, as_index(worker), tuple(inner), source))

    def let(self, name: str, value: ExprLike, dtype: DType | None = None) -> Expr:
        """Name a value. A constant or a variable needs no name and is returned unchanged."""
        expr = as_expr(value, dtype)
        expr = expr if dtype is None else cast(expr, dtype)
        if isinstance(expr, (Const, Var)) or constant_value(expr) is not None:
            return expr
        var = Var(name, expr.dtype, expr.lanes)
        self.emit(Let(var, expr, self.source))
        return var

    def store(self, buffer: Buffer, indices: ExprLike | Sequence[ExprLike], value: ExprLike) -> None:
        """buffer[indices] = value, converted to the buffer's type. Raises TypeMismatchError for a wrong rank."""
        given = tuple(indices) if isinstance(indices, Sequence) else (indices,)
        if len(given) != buffer.rank:
            raise TypeMismatchError(f"{buffer!r} has {buffer.rank} dimensions but is indexed with {len(given)}")
        expr = cast(as_expr(value, buffer.dtype), buffer.dtype)
        self.emit(Store(buffer, tuple(as_index(i) for i in given), expr, self.source))

    @contextmanager
    def when(self, cond: ExprLike) -> Iterator[None]:
        """if cond. A condition known to be true emits only its body; one known to be false emits nothing."""
        test = _condition(cond)
        known = constant_value(test)
        source = self.source
        with self._open() as inner:
            yield
        if known is None:
            self.emit(If(test, tuple(inner), (), source))
        elif known:
            self.emit(*inner)
        self._when = _When(self._bodies[-1], len(self._bodies[-1]), known)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """else, directly after ``when``. Raises LoweringError anywhere else."""
        when = self._when
        if when is None or when.body is not self._bodies[-1] or when.length != len(when.body):
            raise LoweringError("otherwise() does not follow when()")
        self._when = None
        with self._open() as inner:
            yield
        if when.known is None:
            when.body.append(replace(typed(If, when.body.pop()), orelse=tuple(inner)))
        elif not when.known:
            self.emit(*inner)

    def allocate(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[Dim],
        scope: Scope = Scope.LOCAL,
        *,
        strides: Sequence[Dim] | None = None,
        owner: TaskMapping | None = None,
        layout: object | None = None,
        init: ExprLike | None = None,
    ) -> Buffer:
        """A new buffer, uninitialised or filled with ``init``."""
        dims = tuple(_known(d) for d in shape)
        steps = None if strides is None else tuple(strides)
        buffer = Buffer(name, dtype, dims, scope, steps, 0, layout, owner)
        self.emit(Allocate(buffer, self.source))
        if init is not None:
            self.fill(buffer, init)
        return buffer

    def fill(self, buffer: Buffer, value: ExprLike) -> None:
        """Every element of ``buffer`` = value. Loops over registers are unrolled, for registers have no addresses."""
        kind = LoopKind.UNROLLED if buffer.scope is Scope.REGISTER else LoopKind.SERIAL
        with self.grid([f"{buffer.name}_{d}" for d in range(buffer.rank)], buffer.shape, kind) as at:
            self.store(buffer, at, value)

    def barrier(self) -> None:
        """Synchronise all threads of the block."""
        self.emit(Barrier(self.source))

    def evaluate(self, value: ExprLike) -> None:
        """An expression for its effect."""
        self.emit(Evaluate(as_expr(value), self.source))

    def invoke(self, instruction: Instruction, *operands: Region | Expr | TensorMap) -> None:
        """One instruction of the table, for its effect."""
        self.emit(Invoke(instruction, operands, self.source))

    def move(
        self,
        dst: Region | Buffer,
        src: Region | Buffer,
        *,
        mapping: TaskMapping | None = None,
        worker: Expr | None = None,
        asynchronous: bool = False,
    ) -> None:
        """dst = src, element by element; on a GPU divided among threads by ``mapping``: see ``Move``."""
        self.emit(Move(region_of(dst), region_of(src), self.source, mapping, worker, asynchronous))

    def matmul(self, c: Region | Buffer, a: Region | Buffer, b: Region | Buffer) -> None:
        """c += a @ b on regions with the matrices in their last two dimensions."""
        self.emit(MatMul(region_of(c), region_of(a), region_of(b), self.source))


def _condition(cond: ExprLike) -> Expr:
    test = as_expr(cond)
    return test if test.dtype.is_bool else ne(test, 0)


def _known(dim: Dim) -> Dim:
    value = static_size(dim)
    return dim if value is None else value


def region(buffer: Buffer, start: Sequence[ExprLike], shape: Sequence[Dim]) -> Region:
    """The part of ``buffer`` of ``shape`` that begins at ``start``. Raises TypeMismatchError for a wrong rank."""
    if not len(start) == len(shape) == buffer.rank:
        raise TypeMismatchError(
            f"{buffer!r} has {buffer.rank} dimensions; region is given {len(start)} and {len(shape)}"
        )
    return Region(buffer, tuple(as_index(s) for s in start), tuple(_known(d) for d in shape))


def region_of(value: Region | Buffer) -> Region:
    """A region unchanged, or the whole of a buffer."""
    return value if isinstance(value, Region) else region(value, (0,) * value.rank, value.shape)
