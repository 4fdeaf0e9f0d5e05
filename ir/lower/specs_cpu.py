"""Specs become loops around instructions of the table.

Move(dst, src)       ->  loops that copy, the last dimension in vectors where it is contiguous
MatMul(c, a, b)      ->  for k: for i: for vectors of j: one multiply-add instruction, when c is in registers;
                         a c in memory is cut into tiles, and each tile is moved to registers and back
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import cast, index, ramp, static_size
from taskmap.ir.errors import LoweringError
from taskmap.ir.isa.table import CPU_INSTRUCTIONS, Instruction
from taskmap.ir.lower.clip import clipped_vector
from taskmap.ir.lower.conditions import NO_SPECS, KernelPass
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.lower.vector_widths import Columns, is_addressable
from taskmap.ir.nodes import (
    Body,
    Buffer,
    Dim,
    Expr,
    Intrinsic,
    Kernel,
    LoopKind,
    MatMul,
    Move,
    Ramp,
    Region,
    Scope,
    Stmt,
    Store,
)
from taskmap.ir.select.rows import Piece
from taskmap.ir.target import Target, cpu_target
from taskmap.ir.visit import map_body

_ROWS, _VECTORS = 4, 2
"""The register tile of a product with its result in memory; it leaves room for operands among 16 registers."""

PORTABLE = cpu_target("generic", 1)
"""The target of a kernel that is lowered without one."""


@dataclass(frozen=True, slots=True)
class LowerSpecs(KernelPass):
    """Move and MatMul become loops and instructions of the target."""

    target: Target = PORTABLE
    table: tuple[Instruction, ...] = CPU_INSTRUCTIONS
    name = "lower-specs"
    before = "each spec is local to one worker"
    after = "no Move and no MatMul is left"
    why_here = "before addresses replace indices, because regions are given in indices"
    ensures = (NO_SPECS,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel without specs. Raises LoweringError for regions of different shapes."""
        lowering = _Lowering(Columns(self.target, self.table))
        body = map_body(kernel.body, lowering.stmt)
        return kernel if body is kernel.body else replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _Lowering:
    columns: Columns

    def stmt(self, s: Stmt) -> Body | None:
        if isinstance(s, Move):
            return self.move(s)
        return self.matmul(s) if isinstance(s, MatMul) else None

    def move(self, s: Move) -> Body:
        b = Builder(s.source)
        to, from_ = _long(s.dst), _long(s.src)
        extents = [s.dst.shape[d] for d in to]
        if len(from_) != len(to):
            raise LoweringError(
                f"cannot move {_text(s.src)} to {_text(s.dst)}", where=s.source, why="the regions differ in shape."
            )
        kind = LoopKind.UNROLLED if _in_registers(s.dst.buffer, s.src.buffer) else LoopKind.SERIAL
        names = [f"m{d}" for d in range(len(extents))]
        wide = bool(extents) and self.is_wide(s, to[-1], from_[-1])
        outer = len(extents) - wide
        with b.grid(names[:outer], extents[:outer], kind) as at:
            for last in self.vectors(b, names[-1], extents[-1], s) if wide else ((),):
                offsets = (*at, *last)
                copy = _store(s.dst, _spread(s.dst, to, offsets), _load(s.src, *_spread(s.src, from_, offsets)))
                if s.clipped:
                    self.clipped(b, s, to, from_, offsets, copy)
                else:
                    b.emit(copy)
        return b.body()

    def clipped(
        self, b: Builder, s: Move, to: Sequence[int], from_: Sequence[int], offsets: Sequence[Expr], copy: Store
    ) -> None:
        """``copy``, of a vector or an element, if it lies inside global memory; its elements one by one at an edge."""
        last = offsets[-1] if offsets else None
        first = [*offsets[:-1], last.base if isinstance(last, Ramp) else last] if last is not None else []

        def at(e: Expr) -> tuple[Sequence[Expr], Sequence[Expr]]:
            here = [*first[:-1], first[-1] + e] if first else []
            return _at(s.dst, _spread(s.dst, to, here)), _at(s.src, _spread(s.src, from_, here))

        clipped_vector(b, s, last.lanes if last is not None else 1, at, lambda: b.emit(copy))

    def vectors(self, b: Builder, name: str, extent: Dim, s: Move) -> Iterator[tuple[Expr]]:
        """The last dimension's elements, vector by vector; inside loops if the extent is symbolic."""
        dtypes = (s.dst.buffer.dtype, s.src.buffer.dtype)
        n = static_size(extent)
        if n is None:
            for start, lanes in _blocks(b, name, extent, (self.columns.of_move(_MANY, *dtypes)[0].lanes, 1)):
                yield (_vector(start, lanes),)
        elif _in_registers(s.dst.buffer, s.src.buffer):
            for vector, _ in _each(self.columns.of_move(n, *dtypes)):
                yield (vector,)
        else:
            for piece in self.columns.of_move(n, *dtypes):
                with b.loop(name, piece.count) as j:
                    yield (_vector(j * piece.lanes + piece.start, piece.lanes),)

    def is_wide(self, s: Move, to: int, from_: int) -> bool:
        """True if the last dimension is copied in vectors: contiguous, or, next to registers, gathered from memory."""
        if not (is_addressable(s.dst.buffer) and is_addressable(s.src.buffer)):
            return False
        sides = [(s.dst.buffer, to), (s.src.buffer, from_)]
        registers = [(b, d) for b, d in sides if _in_registers(b)]
        return all(_is_contiguous(b, d) for b, d in registers or sides)

    def matmul(self, s: MatMul) -> Body:
        b = Builder(s.source)
        with b.grid([f"b{d}" for d in range(len(s.c.shape) - 2)], s.c.shape[:-2]) as at:
            c, a, right = (_matrix(r, at, s) for r in (s.c, s.a, s.b))
            (m, k), n = a.shape[-2:], right.shape[-1]
            if _in_registers(c.buffer):
                self.tile(b, c, a, right, (m, n, k), s)
            else:
                self.blocks(b, c, a, right, (m, n, k), s)
        return b.body()

    def tile(self, b: Builder, c: Region, a: Region, right: Region, sizes: tuple[Dim, Dim, Dim], s: MatMul) -> None:
        """c in registers: its elements are unrolled."""
        m, n, k = sizes
        rows, columns = static_size(m), static_size(n)
        if rows is None or columns is None:
            raise LoweringError(f"{_text(c)} is in registers and has a symbolic size", where=s.source)
        kind = LoopKind.UNROLLED if _in_registers(a.buffer, right.buffer) else LoopKind.SERIAL
        dtype = c.buffer.dtype
        with b.loop("k", index(k), kind) as kk, b.loop("i", rows, LoopKind.UNROLLED) as i:
            one = _load(a, i, kk)
            for piece in self.cut(columns, c.buffer, a.buffer, right.buffer):
                with b.loop("j", piece.count, LoopKind.UNROLLED) as vector:
                    j = _vector(vector * piece.lanes + piece.start, piece.lanes)
                    total, y = _load(c, i, j), _load(right, kk, j)
                    if piece.by is None:
                        b.emit(_store(c, (i, j), total + cast(one, dtype) * cast(y, dtype)))
                        continue
                    _, takes_a, takes_b = (t for t, _ in piece.by.operands)
                    args = (total, cast(one, takes_a), cast(y, takes_b))
                    b.emit(_store(c, (i, j), Intrinsic(piece.by, args, dtype, total.lanes)))

    def cut(self, n: int, c: Buffer, a: Buffer, right: Buffer) -> tuple[Piece, ...]:
        """The columns of a tile in vectors, by instructions for these types or for operands converted to c's."""
        wide = is_addressable(c) and is_addressable(right) and _is_contiguous(c, c.rank - 1)
        if _in_registers(right):
            wide = wide and _is_contiguous(right, right.rank - 1)
        if not wide:
            return (Piece(0, n, 1),)
        return self.columns.of_matmul(n, a.dtype, right.dtype, c.dtype)

    def blocks(self, b: Builder, c: Region, a: Region, right: Region, sizes: tuple[Dim, Dim, Dim], s: MatMul) -> None:
        """c in memory: computed in register tiles, smaller ones at the edges."""
        m, n, k = sizes
        widths = [piece.lanes for piece in self.cut(_MANY - 1, c.buffer, a.buffer, right.buffer)]
        lanes = widths[0]
        narrow = min(w for w in widths if w >= min(_NARROW, lanes)) if static_size(n) is None else lanes
        for row, rows in _blocks(b, "rows", m, (_ROWS, 1)):
            for column, columns in _blocks(b, "columns", n, (_VECTORS * lanes, lanes, narrow, 1)):
                acc = b.allocate("acc", c.buffer.dtype, (rows, columns), Scope.REGISTER)
                part = _part(c, (row, column), (rows, columns))
                b.emit(*self.move(Move(region(acc, (0, 0), acc.shape), part, s.source)))
                whole = region(acc, (0, 0), acc.shape)
                left, below = _part(a, (row, 0), (rows, k)), _part(right, (0, column), (k, columns))
                self.tile(b, whole, left, below, (rows, columns, k), s)
                b.emit(*self.move(Move(part, whole, s.source)))


_MANY = 1 << 12
"""A number of columns that is enough for the widest instruction."""

_NARROW = 4
"""The narrowest vector at the end of a symbolic number of columns; the remaining columns are scalar."""


def _blocks(b: Builder, name: str, extent: Dim, sizes: Sequence[int]) -> Iterator[tuple[Expr, int]]:
    """(start, size) of blocks that cover ``extent``, each inside its loop: as many of the first size as fit, then of
    the next; a known remainder is one block. A size of 1 comes last."""
    start: Dim = 0
    for size in dict.fromkeys(sizes):
        known = static_size(extent)
        rest = index(extent) - start if known is None else known - (static_size(start) or 0)
        if isinstance(rest, int) and 0 < rest < size:
            continue
        if isinstance(rest, int) and size == 1 and rest:
            yield index(start), rest
            return
        count = index(rest) // size
        with b.loop(name, count) as block:
            yield block * size + start, size
        start = start + (rest // size * size if isinstance(rest, int) else count * size)


def _each(pieces: Sequence[Piece]) -> Iterator[tuple[Expr, Instruction | None]]:
    """The columns of each vector (a ramp) or one column, and the instruction that computes on it."""
    for piece in pieces:
        for start in range(piece.start, piece.start + piece.count * piece.lanes, piece.lanes):
            yield _vector(index(start), piece.lanes), piece.by


def _vector(start: Expr, lanes: int) -> Expr:
    """The indices of a vector, or of one element, from ``start`` on."""
    return ramp(start, 1, lanes) if lanes > 1 else start


def _spread(r: Region, dims: Sequence[int], offsets: Sequence[Expr]) -> list[Expr]:
    """An offset for every dimension of a region: those given along ``dims``, 0 along the others."""
    given = dict(zip(dims, offsets, strict=True))
    return [given.get(d, index(0)) for d in range(len(r.start))]


def _in_registers(*buffers: Buffer) -> bool:
    return any(b.scope is Scope.REGISTER for b in buffers)


def _is_contiguous(buffer: Buffer, d: int) -> bool:
    return static_size(strides_of(buffer)[d]) == 1


def _long(r: Region) -> list[int]:
    """The dimensions of a region that have, or may have, more than one element."""
    return [d for d, n in enumerate(r.shape) if static_size(n) != 1]


def _matrix(r: Region, batch: Sequence[Expr], s: MatMul) -> Region:
    """One matrix of a region, at indices ``batch`` of c's leading dimensions; a single matrix is broadcast."""
    lead = r.shape[:-2]
    at = list(batch[len(batch) - len(lead) :]) if len(lead) <= len(batch) else [index(0)] * (len(lead) - len(batch))
    at += list(batch) if len(lead) > len(batch) else []
    for d, n in enumerate(lead):
        if static_size(n) == 1:
            at[d] = index(0)
        elif d < len(lead) - len(batch):
            raise LoweringError(f"{_text(r)} has more matrices than {_text(s.c)}", where=s.source)
    start = tuple(x + o for x, o in zip(r.start, [*at, index(0), index(0)], strict=True))
    return Region(r.buffer, start, (*[1] * len(lead), *r.shape[-2:]))


def _part(r: Region, start: tuple[Dim | Expr, Dim | Expr], shape: tuple[Dim, Dim]) -> Region:
    """A part of a region of one matrix."""
    offsets = [*[index(0)] * (len(r.shape) - 2), *map(index, start)]
    first = tuple(x + o for x, o in zip(r.start, offsets, strict=True))
    return Region(r.buffer, first, (*r.shape[:-2], *shape))


def _at(r: Region, offsets: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of an element or a vector, from offsets along the last dimensions of a region."""
    lead = len(r.start) - len(offsets)
    return (*r.start[:lead], *map(_plus, r.start[lead:], offsets))


def _plus(start: Expr, offset: Expr) -> Expr:
    return ramp(start + offset.base, offset.stride, offset.lanes) if isinstance(offset, Ramp) else start + offset


def _load(r: Region, *offsets: Expr) -> Expr:
    return r.buffer[_at(r, offsets)]


def _store(r: Region, offsets: Sequence[Expr], value: Expr) -> Store:
    return Store(r.buffer, _at(r, offsets), cast(value, r.buffer.dtype))


def _text(r: Region) -> str:
    return f"a region of {r.buffer!r} of {list(r.shape)}"
