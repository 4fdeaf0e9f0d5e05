"""Inlining: a task's elements as expressions at given indices. Every schedule is built on it.

``Inliner.element(buffer, indices)`` is the expression of one element. An input, or a stage whose output is already in
memory, becomes a load. Any other stage is expanded in place: a Let names each operand, so that it is evaluated once per
index, and its reductions become loops over an accumulator. So prologues and chains of element-wise stages fuse, and no
schedule knows of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import binary, cast, constant_value, identity, index, ne, product, select, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Compare, Dim, Expr, ExprLike, Load, Reduce, Scope, Select, Var
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f64, i64
from taskmap.ir.visit import children, rebuild

_PARTIAL = 64

Reader = Callable[[tuple[Expr, ...]], Expr]


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def wide_sum(dtype: DType) -> DType:
    """The type in which partial sums are added: they are few, so the wider type costs almost nothing."""
    return f64 if dtype.is_float else dtype


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """One step of a reduction."""
    return binary(_COMBINE[op], a, b)


@dataclass(slots=True)
class Inliner:
    """The elements of a task's tensors as expressions, emitted into ``builder``.

    ``readers`` maps each tensor that is already computed to the function that reads it; inputs are loaded from memory.
    ``reduced`` holds the results of reductions that the schedule emitted itself, by the identity of the Reduce node.
    Values named in a block must not be used after it: open a ``nested`` inliner inside each loop.
    """

    task: Task
    builder: Builder
    simplifier: Simplifier = field(default_factory=Simplifier)
    readers: dict[Buffer, Reader] = field(default_factory=dict)
    memo: dict[tuple[Buffer, tuple[Expr, ...]], Expr] = field(default_factory=dict)
    reduced: dict[int, Expr] = field(default_factory=dict)

    def nested(self) -> Inliner:
        """The same values, in a scope for names that end with the current block."""
        return Inliner(self.task, self.builder, self.simplifier, dict(self.readers), dict(self.memo), self.reduced)

    def bind(self, var: ExprLike, extent: Dim) -> None:
        """Declares a loop variable in [0, extent) to the simplifier; constants (elided loops) need no declaration."""
        if isinstance(var, Var):
            self.simplifier.bind(var, extent)

    def bind_value(self, var: ExprLike, limit: int) -> None:
        """Declares a named value in [0, limit] to the simplifier."""
        if isinstance(var, Var):
            self.simplifier.bind_range(var, (0, limit))

    def element(self, buffer: Buffer, indices: Sequence[ExprLike]) -> Expr:
        """The element of ``buffer`` at ``indices``."""
        where = tuple(self.simplifier(index(i)) for i in indices)  # type: ignore[arg-type]  # floats never index
        key = (buffer, where)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = self._element(buffer, where)
        return known

    def _element(self, buffer: Buffer, where: tuple[Expr, ...]) -> Expr:
        reader = self.readers.get(buffer)
        if reader is not None:
            return reader(where)
        stage = self.task.producers.get(buffer)
        if stage is None:
            return self.builder.let(buffer.name, buffer[where])
        if len(where) != len(stage.axes):
            raise ScheduleError(f"stage {stage.label!r} of {len(stage.axes)} axes is read with {len(where)} indices")
        value = self.expand(stage.body, dict(zip(stage.axes, where, strict=True)))
        return self.builder.let(stage.label or "value", value)

    def expand(self, expr: Expr, axes: dict[Var, Expr]) -> Expr:
        """``expr`` of a definition with its axes replaced, its loads resolved and its reductions emitted."""
        done: dict[Expr, Expr] = {}

        def visit(e: Expr) -> Expr:
            known = done.get(e)
            if known is None:
                known = done[e] = one(e)
            return known

        def one(e: Expr) -> Expr:
            if isinstance(e, Var):
                return axes.get(e, e)
            if isinstance(e, Load):
                return self.element(e.buffer, tuple(visit(i) for i in e.indices))
            if isinstance(e, Reduce):
                return self.reduce(e, axes)
            if isinstance(e, Select):
                holds = constant_value(visit(e.cond))
                if holds is not None:  # the other side is not even named
                    return visit(e.a if holds else e.b)
            kids = children(e)
            if not kids:
                return e
            new = rebuild(e, [visit(k) for k in kids])
            return self.simplifier(new) if new.dtype == i64 or (new.dtype.is_bool and isinstance(new, Compare)) else new

        return visit(expr)

    def reduce(self, e: Reduce, axes: dict[Var, Expr]) -> Expr:
        """The value of a reduction: serial loops over an accumulator in a register, unless the schedule has reduced it
        already."""
        if id(e) in self.reduced:
            return self.reduced[id(e)]
        if e.op in ("argmax", "argmin"):
            return self._arg_reduce(e, axes)
        b = self.builder
        count = math.prod(static_size(d) or _PARTIAL + 1 for _, d in e.axes)
        if e.op == "sum" and e.dtype.is_float and count > _PARTIAL:
            wide = wide_sum(e.dtype)
            total = b.allocate(f"{e.op}", wide, (1,), Scope.REGISTER, init=identity(e.op, wide))
            self._blocked(e, axes, list(e.axes), total)
            return b.let(e.op, cast(total[0], e.dtype))
        total = b.allocate(f"{e.op}", e.dtype, (1,), Scope.REGISTER, init=identity(e.op, e.dtype))
        self._loops(e, axes, list(e.axes), total)
        return b.let(e.op, total[0])

    def _loops(self, e: Reduce, axes: dict[Var, Expr], loops: list[tuple[Var, Dim]], total: Buffer) -> None:
        if not loops:
            value = self.nested().expand(e.body, axes)
            self.builder.store(total, 0, combine(e.op, total[0], value))
            return
        (var, extent), rest = loops[0], loops[1:]
        with self.builder.loop(var.name, extent) as i:
            self.bind(i, extent)
            self.nested()._loops(e, {**axes, var: i}, rest, total)

    def _blocked(self, e: Reduce, axes: dict[Var, Expr], loops: list[tuple[Var, Dim]], total: Buffer) -> None:
        """Sums of at most 64 terms each in the type of the terms, added up in f64, so that the rounding error of a long
        sum equals that of a short one.

        Method: blocked summation; Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 4.2.
        """
        (var, extent), rest = loops[0], loops[1:]
        if not rest:
            self._axis_blocked(e, axes, var, extent, total)
            return
        short = (static_size(product([d for _, d in rest])) or _PARTIAL + 1) <= _PARTIAL
        with self.builder.loop(var.name, extent) as i:
            self.bind(i, extent)
            inside = self.nested()
            if short:
                inside._part(e, total, lambda part: inside._loops(e, {**axes, var: i}, rest, part))
            else:
                inside._blocked(e, {**axes, var: i}, rest, total)

    def _axis_blocked(self, e: Reduce, axes: dict[Var, Expr], var: Var, extent: Dim, total: Buffer) -> None:
        """Blocked summation along one axis."""
        size = static_size(extent)
        whole: Dim = index(extent) // _PARTIAL if size is None else size // _PARTIAL
        tail: Dim = index(extent) % _PARTIAL if size is None else size % _PARTIAL
        with self.builder.loop(f"{var.name}_block", whole) as i:
            self.bind(i, whole)
            inside = self.nested()
            inside._part(e, total, lambda part: inside._along(e, axes, var, i * _PARTIAL, _PARTIAL, part))
        if static_size(tail) != 0:
            start = index(whole) * _PARTIAL
            inside = self.nested()
            inside._part(e, total, lambda part: inside._along(e, axes, var, start, tail, part))

    def _part(self, e: Reduce, total: Buffer, fill: Callable[[Buffer], None]) -> None:
        """One partial sum, computed by ``fill`` and added to ``total``."""
        part = self.builder.allocate("part", e.dtype, (1,), Scope.REGISTER, init=identity(e.op, e.dtype))
        fill(part)
        self.builder.store(total, 0, combine(e.op, total[0], cast(part[0], total.dtype)))

    def _along(self, e: Reduce, axes: dict[Var, Expr], var: Var, start: Expr, extent: Dim, total: Buffer) -> None:
        with self.builder.loop(var.name, extent) as j:
            self.bind(j, _PARTIAL if static_size(extent) is None else extent)
            self.nested()._loops(e, {**axes, var: self.simplifier(start + j)}, [], total)

    def _arg_reduce(self, e: Reduce, axes: dict[Var, Expr]) -> Expr:
        b = self.builder
        ((var, extent),) = e.axes
        dtype = e.body.dtype
        best = b.allocate("best", dtype, (1,), Scope.REGISTER, init=identity(e.op, dtype))
        where = b.allocate("where", i64, (1,), Scope.REGISTER, init=0)
        with b.loop(var.name, extent) as i:
            self.bind(i, extent)
            inner = self.nested()
            value = b.let("value", inner.expand(e.body, {**axes, var: i}))
            wins = value > best[0] if e.op == "argmax" else value < best[0]
            if dtype.is_float:
                wins = wins | (ne(value, value) & ~ne(best[0], best[0]))
            found = b.let("wins", wins)
            b.store(where, 0, select(found, i, where[0]))
            b.store(best, 0, select(found, value, best[0]))
        return b.let(e.op, where[0])
