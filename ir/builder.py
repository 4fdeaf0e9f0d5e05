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

from taskmap.ir import nodes as ir
from taskmap.ir.construct import as_expr, as_index, cast, constant_value, index, ne, static_size
from taskmap.ir.errors import LoweringError, TypeMismatchError
from taskmap.ir.types import DType

if TYPE_CHECKING:
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.isa.entry import Instruction
    from taskmap.ir.source import SourceLocation


@dataclass(frozen=True, slots=True)
class _When:
    """The place where the last ``when`` ended, and the value of its condition if that was known."""

    body: list[ir.Stmt]
    length: int
    known: int | float | bool | None


class Builder:
    """Collects statements in program order; ``with`` opens the body of a loop or a branch.

    ``source`` becomes the location of each statement made while it is set.
    """

    def __init__(self, source: SourceLocation | None = None) -> None:
        self.source = source
        self._bodies: list[list[ir.Stmt]] = [[]]
        self._when: _When | None = None

    def body(self) -> ir.Body:
        """The finished statements. Raises LoweringError while a loop or a branch is still open."""
        if len(self._bodies) != 1:
            raise LoweringError("body() is called while a loop or a branch is still open")
        return tuple(self._bodies[0])

    def emit(self, *stmts: ir.Stmt) -> None:
        """Append finished statements."""
        self._bodies[-1].extend(stmts)

    @contextmanager
    def _open(self) -> Iterator[list[ir.Stmt]]:
        inner: list[ir.Stmt] = []
        depth = len(self._bodies)
        self._bodies.append(inner)
        try:
            yield inner
        finally:
            del self._bodies[depth:]

    @contextmanager
    def aside(self) -> Iterator[list[ir.Stmt]]:
        """Collects the statements of its block without emitting them."""
        with self._open() as inner:
            yield inner

    @contextmanager
    def loop(
        self,
        name: str,
        extent: ir.ExprLike,
        kind: ir.LoopKind = ir.LoopKind.SERIAL,
        *,
        unroll: int = 0,
        shared: ir.Expr | None = None,
    ) -> Iterator[ir.Expr]:
        """for name in range(extent). Extent 1 emits only the body, with index 0; extent 0 emits nothing."""
        count = as_index(extent)
        known = constant_value(count)
        source = self.source
        with self._open() as inner:
            var = ir.Var(name)
            yield index(0) if known == 1 else var
        if known == 1:
            self.emit(*inner)
        elif inner and (known is None or known > 0):
            self.emit(ir.For(var, count, kind, tuple(inner), unroll, source, shared))

    @contextmanager
    def grid(
        self, names: Sequence[str], extents: Sequence[ir.ExprLike], kind: ir.LoopKind = ir.LoopKind.SERIAL
    ) -> Iterator[tuple[ir.Expr, ...]]:
        """Nested loops, outermost first, all of one kind."""
        if not names:
            yield ()
            return
        with self.loop(names[0], extents[0], kind) as i, self.grid(names[1:], extents[1:], kind) as rest:
            yield (i, *rest)

    @contextmanager
    def mapped(self, names: Sequence[str], mapping: TaskMapping, worker: ir.ExprLike) -> Iterator[tuple[ir.Var, ...]]:
        """for names in mapping.on(worker); the statement remains a MappedFor until it is lowered."""
        variables = tuple(ir.Var(n) for n in names)
        source = self.source
        with self._open() as inner:
            yield variables
        if inner:
            self.emit(ir.MappedFor(variables, mapping, as_index(worker), tuple(inner), source))

    def let(self, name: str, value: ir.ExprLike, dtype: DType | None = None) -> ir.Expr:
        """Name a value. A constant or a variable needs no name and is returned unchanged."""
        expr = as_expr(value, dtype)
        expr = expr if dtype is None else cast(expr, dtype)
        if isinstance(expr, (ir.Const, ir.Var)) or constant_value(expr) is not None:
            return expr
        var = ir.Var(name, expr.dtype, expr.lanes)
        self.emit(ir.Let(var, expr, self.source))
        return var

    def store(self, buffer: ir.Buffer, indices: ir.ExprLike | Sequence[ir.ExprLike], value: ir.ExprLike) -> None:
        """buffer[indices] = value, converted to the buffer's type. Raises TypeMismatchError for a wrong rank."""
        given = tuple(indices) if isinstance(indices, Sequence) else (indices,)
        if len(given) != buffer.rank:
            raise TypeMismatchError(f"{buffer!r} has {buffer.rank} dimensions but is indexed with {len(given)}")
        expr = cast(as_expr(value, buffer.dtype), buffer.dtype)
        self.emit(ir.Store(buffer, tuple(as_index(i) for i in given), expr, self.source))

    @contextmanager
    def when(self, cond: ir.ExprLike) -> Iterator[None]:
        """if cond. A condition known to be true emits only its body; one known to be false emits nothing."""
        test = _condition(cond)
        known = constant_value(test)
        source = self.source
        with self._open() as inner:
            yield
        if known is None:
            self.emit(ir.If(test, tuple(inner), (), source))
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
            when.body.append(replace(typed(ir.If, when.body.pop()), orelse=tuple(inner)))
        elif not when.known:
            self.emit(*inner)

    def allocate(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[ir.Dim],
        scope: ir.Scope = ir.Scope.LOCAL,
        *,
        strides: Sequence[ir.Dim] | None = None,
        owner: TaskMapping | None = None,
        layout: object | None = None,
        init: ir.ExprLike | None = None,
    ) -> ir.Buffer:
        """A new buffer, uninitialised or filled with ``init``."""
        dims = tuple(_known(d) for d in shape)
        steps = None if strides is None else tuple(strides)
        buffer = ir.Buffer(name, dtype, dims, scope, steps, 0, layout, owner)
        self.emit(ir.Allocate(buffer, self.source))
        if init is not None:
            self.fill(buffer, init)
        return buffer

    def fill(self, buffer: ir.Buffer, value: ir.ExprLike) -> None:
        """Every element of ``buffer`` = value. Loops over registers are unrolled, for registers have no addresses."""
        kind = ir.LoopKind.UNROLLED if buffer.scope is ir.Scope.REGISTER else ir.LoopKind.SERIAL
        with self.grid([f"{buffer.name}_{d}" for d in range(buffer.rank)], buffer.shape, kind) as at:
            self.store(buffer, at, value)

    def barrier(self) -> None:
        """Synchronise all threads of the block."""
        self.emit(ir.Barrier(self.source))

    def evaluate(self, value: ir.ExprLike) -> None:
        """An expression for its effect."""
        self.emit(ir.Evaluate(as_expr(value), self.source))

    def invoke(self, instruction: Instruction, *operands: ir.Region | ir.Expr | ir.TensorMap) -> None:
        """One instruction of the table, for its effect."""
        self.emit(ir.Invoke(instruction, operands, self.source))

    def move(
        self,
        dst: ir.Region | ir.Buffer,
        src: ir.Region | ir.Buffer,
        *,
        mapping: TaskMapping | None = None,
        worker: ir.Expr | None = None,
        asynchronous: bool = False,
        clipped: bool = False,
        exact: tuple[int, ...] = (),
    ) -> None:
        """dst = src, element by element; on a GPU divided among threads by ``mapping``: see ``Move``."""
        to, source = region_of(dst), region_of(src)
        self.emit(ir.Move(to, source, self.source, mapping, worker, asynchronous, clipped, exact))

    def matmul(self, c: ir.Region | ir.Buffer, a: ir.Region | ir.Buffer, b: ir.Region | ir.Buffer) -> None:
        """c += a @ b on regions with the matrices in their last two dimensions."""
        self.emit(ir.MatMul(region_of(c), region_of(a), region_of(b), self.source))


def _condition(cond: ir.ExprLike) -> ir.Expr:
    test = as_expr(cond)
    return test if test.dtype.is_bool else ne(test, 0)


def _known(dim: ir.Dim) -> ir.Dim:
    value = static_size(dim)
    return dim if value is None else value


def region(buffer: ir.Buffer, start: Sequence[ir.ExprLike], shape: Sequence[ir.Dim]) -> ir.Region:
    """The part of ``buffer`` of ``shape`` that begins at ``start``. Raises TypeMismatchError for a wrong rank."""
    if not len(start) == len(shape) == buffer.rank:
        raise TypeMismatchError(
            f"{buffer!r} has {buffer.rank} dimensions; region is given {len(start)} and {len(shape)}"
        )
    return ir.Region(buffer, tuple(as_index(s) for s in start), tuple(_known(d) for d in shape))


def region_of(value: ir.Region | ir.Buffer) -> ir.Region:
    """A region unchanged, or the whole of a buffer."""
    return value if isinstance(value, ir.Region) else region(value, (0,) * value.rank, value.shape)
