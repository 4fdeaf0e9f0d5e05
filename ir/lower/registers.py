"""The form of register buffers: vectors where specs use them, memory where uses disagree in width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from taskmap.ir import nodes as ir
from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.isa.table import CPU_INSTRUCTIONS, Instruction
from taskmap.ir.lower.conditions import FLAT, NO_UNROLLED_LOOPS, NO_VECTOR_LOOPS, KernelPass
from taskmap.ir.lower.vector_widths import Columns, is_addressable
from taskmap.ir.select.rows import Piece
from taskmap.ir.target import Target
from taskmap.ir.visit import fresh, loads_in, map_body, replace_buffers, stmt_exprs, walk_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class WidenRegisters(KernelPass):
    """Unrolled loops over the columns of a tile become vector loops, in the widths in which specs address the tile.

    for j in unroll(20): acc[i, j] = 0.0     ->     for l in vector(16): acc[i, l] = 0.0
                                                    for l in vector(4): acc[i, 16 + l] = 0.0
    """

    target: Target
    table: tuple[Instruction, ...] = CPU_INSTRUCTIONS
    name = "widen-registers"
    before = "specs show the widths in which they address each register tile"
    after = "loops over the columns of a tile use the same widths"
    why_here = "before specs are lowered, while their buffers are known; registers are addressed in one width"

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel with vector loops."""
        tiles = {b for s in walk_stmts(kernel.body) for b in _operands(s) if b.scope is ir.Scope.REGISTER}
        if not tiles:
            return kernel
        columns = Columns(self.target, self.table)

        def widened(s: ir.Stmt) -> ir.Body | None:
            if not isinstance(s, ir.For) or s.kind is not ir.LoopKind.UNROLLED:
                return None
            tile = _tile_of(s, tiles)
            return tuple(_in_pieces(s, columns.of_move(int(tile.shape[-1]), tile.dtype))) if tile else None  # type: ignore[arg-type]  # the size of a tile is an int

        return replace(kernel, body=map_body(kernel.body, widened))


def _operands(s: ir.Stmt) -> tuple[ir.Buffer, ...]:
    """The buffers that a spec accesses row by row."""
    if isinstance(s, ir.Move):
        return s.dst.buffer, s.src.buffer
    return (s.c.buffer, s.b.buffer) if isinstance(s, ir.MatMul) else ()


def _tile_of(s: ir.For, tiles: set[ir.Buffer]) -> ir.Buffer | None:
    """The tile whose columns a loop visits, all alike and independent of each other; or None."""
    *lets, last = s.body
    if not isinstance(last, ir.Store) or not all(isinstance(x, ir.Let) for x in lets):
        return None
    loads = [e for x in s.body for root in stmt_exprs(x) for e in walk_exprs(root) if isinstance(e, ir.Load)]
    accesses = [(last.buffer, last.indices), *((e.buffer, e.indices) for e in loads)]
    if any(e.buffer is last.buffer and e.indices != last.indices for e in loads):
        return None
    used = [(b, at) for b, at in accesses if b in tiles]
    same_type = len({b.dtype for b, _ in used}) == 1
    if not used or not same_type or not all(_is_column(b, at, s) for b, at in used):
        return None
    if not any(e is s.var for root in last.indices for e in walk_exprs(root)):
        return None
    return used[0][0]


def _is_column(b: ir.Buffer, at: tuple[ir.Expr, ...], s: ir.For) -> bool:
    """True if the loop's variable is the column of this access and runs over all columns."""
    rest = any(e is s.var for i in at[:-1] for e in walk_exprs(i))
    return at[-1] is s.var and not rest and is_addressable(b) and static_size(b.shape[-1]) == constant_value(s.extent)


def _in_pieces(s: ir.For, pieces: tuple[Piece, ...]) -> Iterator[ir.Stmt]:
    for piece in pieces:
        if piece.lanes == 1:
            tail = ir.Var(s.var.name)
            body = fresh(s.body, {s.var: tail + piece.start})
            yield ir.For(tail, index(piece.count), ir.LoopKind.UNROLLED, body, source=s.source)
            continue
        for vector in range(piece.count):
            lane = ir.Var("lane")
            body = fresh(s.body, {s.var: lane + (piece.start + vector * piece.lanes)})
            yield ir.For(lane, index(piece.lanes), ir.LoopKind.VECTOR, body, source=s.source)


@dataclass(frozen=True, slots=True)
class SpillRegisters(KernelPass):
    """Register buffers with elements accessed in different widths move to local memory."""

    name = "spill-registers"
    before = "every index of a register is a constant"
    after = "each element of a register buffer is addressed in one width"
    why_here = "last, when every index of a register is a constant"
    requires = (FLAT, NO_VECTOR_LOOPS, NO_UNROLLED_LOOPS)

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel, with such buffers in local memory."""
        used: dict[ir.Buffer, set[tuple[int, int]]] = {}

        def use(b: ir.Buffer, indices: tuple[ir.Expr, ...]) -> None:
            if b.scope is ir.Scope.REGISTER:
                (where,) = indices
                start = constant_value(where.base if isinstance(where, ir.Ramp) else where)
                if start is not None:
                    used.setdefault(b, set()).add((int(start), where.lanes))

        for s in walk_stmts(kernel.body):
            if isinstance(s, ir.Store):
                use(s.buffer, s.indices)
        for e in loads_in(kernel.body):
            use(e.buffer, e.indices)
        spilled = {b: replace(b, scope=ir.Scope.LOCAL) for b, parts in used.items() if _overlap(parts)}
        return replace(kernel, body=replace_buffers(kernel.body, spilled)) if spilled else kernel


def _overlap(parts: set[tuple[int, int]]) -> bool:
    end = 0
    for start, lanes in sorted(parts):
        if start < end:
            return True
        end = start + lanes
    return False
