"""Rules about the types, widths and ranks inside single nodes and statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.construct import static_size
from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.functions import check_call
from taskmap.ir.printer import print_expr
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import DType, boolean, i32, i64
from taskmap.ir.verify.violation import Violation
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts

_FLOAT_ONLY = {"div"}
_INTEGER_ONLY = {"and", "or", "xor", "shl", "shr", "tdiv", "tmod"}
_ARITHMETIC = {"add", "sub", "mul", "floordiv", "mod", "min", "max"}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_LANE_REDUCTIONS = {"sum", "prod", "max", "min", "and", "or"}


def every_expr(kernel: ir.Kernel) -> Iterator[tuple[ir.Stmt, ir.Expr]]:
    """Each expression node of a kernel, with the statement that contains it."""
    for stmt in walk_stmts(kernel.body):
        for root in stmt_exprs(stmt):
            for e in walk_exprs(root):
                yield stmt, e


def _unary(e: ir.Unary) -> str | None:
    if e.op not in ("neg", "not", "abs"):
        return f"there is no operation {e.op!r}"
    if e.op == "not" and e.a.dtype.is_float:
        return "not needs an integer or a bool"
    return None if e.dtype == e.a.dtype else f"its type is {e.dtype}, its operand's {e.a.dtype}"


def _binary(e: ir.Binary) -> str | None:
    if not e.a.dtype == e.b.dtype == e.dtype:
        return f"its type is {e.dtype}, its operands' are {e.a.dtype} and {e.b.dtype}"
    if e.op in _FLOAT_ONLY and not e.dtype.is_float:
        return f"{e.op} is for floats, not for {e.dtype}"
    if e.op in _INTEGER_ONLY and e.dtype.is_float:
        return f"{e.op} is for integers, not for {e.dtype}"
    return None if e.op in _FLOAT_ONLY | _INTEGER_ONLY | _ARITHMETIC else f"there is no operation {e.op!r}"


def _compare(e: ir.Compare) -> str | None:
    if e.op not in _COMPARISONS:
        return f"there is no comparison {e.op!r}"
    if e.dtype != boolean:
        return f"a comparison is bool, not {e.dtype}"
    return None if e.a.dtype == e.b.dtype else f"it compares {e.a.dtype} with {e.b.dtype}"


def _select(e: ir.Select) -> str | None:
    if e.cond.dtype != boolean:
        return f"its condition is {e.cond.dtype}, not bool"
    same = e.a.dtype == e.b.dtype == e.dtype
    return None if same else f"its type is {e.dtype}, its sides' are {e.a.dtype} and {e.b.dtype}"


def _load(e: ir.Load) -> str | None:
    return None if e.dtype == e.buffer.dtype else f"its type is {e.dtype}, but {e.buffer.name} holds {e.buffer.dtype}"


def _call(e: ir.Call) -> str | None:
    try:
        check_call(e)
    except TypeMismatchError as error:
        return error.what
    return None if len({a.dtype for a in e.args}) == 1 else "its arguments differ in type"


def _ramp(e: ir.Ramp) -> str | None:
    return None if e.base.dtype == e.stride.dtype == e.dtype == i64 else "a ramp is of i64"


def _broadcast(e: ir.Broadcast) -> str | None:
    return None if e.dtype == e.a.dtype else f"its type is {e.dtype}, its operand's {e.a.dtype}"


def _lane_reduce(e: ir.LaneReduce) -> str | None:
    if e.op not in _LANE_REDUCTIONS:
        return f"there is no lane reduction {e.op!r}"
    return None if e.dtype == e.a.dtype else f"its type is {e.dtype}, its operand's {e.a.dtype}"


def _intrinsic(e: ir.Intrinsic) -> str | None:
    if e.instruction.targets.kind == "cuda":
        return None if e.instruction.result is not None else f"{e.instruction.name} has no value"
    given = [(a.dtype, a.lanes) for a in e.args]
    wanted = [(t, owner.num_slots) for t, owner in e.instruction.operands]
    if given != wanted:
        return f"{e.instruction.name} takes registers of {_registers(wanted)}, not of {_registers(given)}"
    return None if (e.dtype, e.lanes) == wanted[0] else "its type is not that of its first operand"


def _registers(kinds: Sequence[tuple[DType, int]]) -> str:
    return ", ".join(f"{lanes} × {dtype}" for dtype, lanes in kinds)


_TYPES: dict[type, Callable[[Any], str | None]] = {
    ir.Unary: _unary,
    ir.Binary: _binary,
    ir.Compare: _compare,
    ir.Select: _select,
    ir.Load: _load,
    ir.Call: _call,
    ir.Ramp: _ramp,
    ir.Broadcast: _broadcast,
    ir.LaneReduce: _lane_reduce,
    ir.Intrinsic: _intrinsic,
}


def types(kernel: ir.Kernel) -> Iterator[Violation]:
    """The type of each node follows from the types of its operands."""
    for stmt, e in every_expr(kernel):
        why = _TYPES[type(e)](e) if type(e) in _TYPES else None
        if why:
            yield Violation(f"{print_expr(e)}: {why}.", stmt)
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, ir.Let) and stmt.var.dtype != stmt.value.dtype:
            yield Violation(f"{stmt.var.name} is {stmt.var.dtype} and names a value of {stmt.value.dtype}.", stmt)
        elif isinstance(stmt, ir.Store) and stmt.value.dtype != stmt.buffer.dtype:
            yield Violation(f"a value of {stmt.value.dtype} is stored to {stmt.buffer!r}.", stmt)


def _operands(e: ir.Expr) -> tuple[ir.Expr, ...]:
    """The operands whose width must equal that of the node."""
    if isinstance(e, (ir.Unary, ir.Cast)):
        return (e.a,)
    if isinstance(e, (ir.Binary, ir.Compare)):
        return (e.a, e.b)
    if isinstance(e, ir.Select):
        return (e.cond, e.a, e.b)
    return e.args if isinstance(e, ir.Call) else ()


def lanes(kernel: ir.Kernel) -> Iterator[Violation]:
    """Operands are as wide as their node; only ramps and broadcasts make vectors, and only lane reductions end them."""
    for stmt, e in every_expr(kernel):
        widths = {k.lanes for k in _operands(e)} | {e.lanes}
        if _operands(e) and len(widths) > 1:
            yield Violation(f"{print_expr(e)} has {e.lanes} lanes and mixes widths {sorted(widths)}.", stmt)
        elif isinstance(e, ir.Ramp) and (e.base.lanes, e.stride.lanes) != (1, 1):
            yield Violation(f"{print_expr(e)} is a ramp of vectors.", stmt)
        elif isinstance(e, ir.Broadcast) and e.a.lanes != 1:
            yield Violation(f"{print_expr(e)} broadcasts a vector.", stmt)
        elif isinstance(e, ir.LaneReduce) and e.lanes != 1:
            yield Violation(f"{print_expr(e)} reduces lanes, but is not a scalar.", stmt)
        elif isinstance(e, ir.Load) and {i.lanes for i in e.indices} - {1, e.lanes}:
            yield Violation(f"{print_expr(e)} has {e.lanes} lanes, but an index has another number.", stmt)
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, ir.Let) and stmt.var.lanes != stmt.value.lanes:
            yield Violation(f"{stmt.var.name} has {stmt.var.lanes} lanes and names {stmt.value.lanes}.", stmt)
        elif isinstance(stmt, ir.Store):
            width = max((i.lanes for i in stmt.indices), default=1)
            if {i.lanes for i in stmt.indices} - {1, width} or stmt.value.lanes != width:
                yield Violation(f"{stmt.value.lanes} lanes are stored to {width} elements.", stmt)


def ranks(kernel: ir.Kernel) -> Iterator[Violation]:
    """A buffer is indexed with one i64 index per dimension."""
    for stmt, e in every_expr(kernel):
        if isinstance(e, ir.Load):
            yield from _indices(stmt, e.buffer.rank, e.indices, print_expr(e))
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, ir.Store):
            yield from _indices(stmt, stmt.buffer.rank, stmt.indices, stmt.buffer.name)


def _indices(stmt: ir.Stmt, rank: int, indices: tuple[ir.Expr, ...], text: str) -> Iterator[Violation]:
    if len(indices) != rank:
        yield Violation(f"{text} has {len(indices)} indices, but the buffer has {rank} dimensions.", stmt)
    for i in indices:
        if i.dtype != i64:
            yield Violation(f"the index {print_expr(i)} of {text} is {i.dtype}, not i64.", stmt)


def control(kernel: ir.Kernel) -> Iterator[Violation]:
    """Conditions are scalar bools; extents and workers are scalar i64."""
    for stmt in walk_stmts(kernel.body):
        cond = stmt.cond if isinstance(stmt, ir.If) else stmt.shared if isinstance(stmt, ir.For) else None
        if cond is not None and (cond.dtype, cond.lanes) != (boolean, 1):
            yield Violation(f"the condition is {cond.dtype} with {cond.lanes} lanes, not a scalar bool.", stmt)
        if isinstance(stmt, (ir.For, ir.MappedFor)):
            number = stmt.extent if isinstance(stmt, ir.For) else stmt.worker
            if (number.dtype, number.lanes) != (i64, 1):
                yield Violation(
                    f"{print_expr(number)} is {number.dtype} with {number.lanes} lanes, not a scalar i64.", stmt
                )


def reductions(kernel: ir.Kernel) -> Iterator[Violation]:
    """Reduce, Scatter and Recurrence belong in compute definitions; a kernel has loops and stores."""
    for stmt, e in every_expr(kernel):
        if isinstance(e, (ir.Reduce, ir.Scatter, Recurrence)):
            yield Violation(f"{print_expr(e)} is a reduction of a compute definition.", stmt)


def _extents(region: ir.Region) -> list[object]:
    return [n for n in (static_size(d) or d for d in region.shape) if n != 1]


def regions(kernel: ir.Kernel) -> Iterator[Violation]:
    """Regions have their buffer's rank; those of a move have equal shapes, and those of a matmul fit together."""
    for stmt in walk_stmts(kernel.body):
        parts: tuple[ir.Region, ...] = (stmt.dst, stmt.src) if isinstance(stmt, ir.Move) else ()
        parts = (stmt.c, stmt.a, stmt.b) if isinstance(stmt, ir.MatMul) else parts
        for r in parts:
            if not len(r.start) == len(r.shape) == r.buffer.rank:
                yield Violation(f"a region of {r.buffer!r} has {len(r.start)} starts and {len(r.shape)} extents.", stmt)
        if isinstance(stmt, ir.Move) and _extents(stmt.dst) != _extents(stmt.src):
            yield Violation(f"a region of {list(stmt.src.shape)} is moved to one of {list(stmt.dst.shape)}.", stmt)
        if isinstance(stmt, ir.MatMul) and min(r.buffer.rank for r in parts) < 2:
            yield Violation("an operand is not a matrix: it has fewer than two dimensions.", stmt)
        elif isinstance(stmt, ir.MatMul):
            (m, n), (m2, k), (k2, n2) = (r.shape[-2:] for r in parts)
            if (m, n, k) != (m2, n2, k2):
                yield Violation(f"matrices of {m2}×{k} and {k2}×{n2} do not make one of {m}×{n}.", stmt)


def buffers(kernel: ir.Kernel) -> Iterator[Violation]:
    """There is one stride per dimension, a layout is callable, and an owner has the buffer's shape and covers it."""
    declared = [(None, b) for b in (*kernel.buffers, *kernel.own)]
    allocated = [(s, s.buffer) for s in walk_stmts(kernel.body) if isinstance(s, ir.Allocate)]
    for b in kernel.own:
        if any(static_size(n) is None for n in b.shape) or b.scope is not ir.Scope.GLOBAL:
            yield Violation(f"{b!r}, which is private to a launch, is not global memory of a fixed size.")
    for b in kernel.launch.counters if kernel.launch else ():
        if b.dtype != i32:
            yield Violation(f"the counters {b!r} are not i32.")
    for stmt, b in [*declared, *allocated]:
        if b.strides is not None and len(b.strides) != b.rank:
            yield Violation(f"{b!r} has {len(b.strides)} strides.", stmt)
        if b.layout is not None and not (callable(b.layout) and hasattr(b.layout, "size")):
            yield Violation(
                f"the layout of {b!r} is not a layout: it must be called with indices and have a size.", stmt
            )
        if b.owner is not None and tuple(b.owner.task_shape) != b.shape:
            yield Violation(f"{b!r} is owned by {b.owner}, which distributes {b.owner.task_shape} elements.", stmt)
        elif b.owner is not None and not b.owner.is_covering:
            yield Violation(f"{b!r} is owned by {b.owner}, which leaves an element without a holder.", stmt)
