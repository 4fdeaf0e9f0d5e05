"""Loads an operand's tiles into shared memory.

    load           elements -> registers, neighbouring threads side by side; the prologue is computed here
    store          registers -> shared memory
    copy_async     memory -> shared memory asynchronously, for operands that lie in memory unchanged

Edges are predicated: elements beyond the product's sizes are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, const, index, minimum
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind, Scope, Var
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.source import copy_chunk, source_of
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile
from taskmap.schedules.cuda.support.tile_partition import TilePartition
from taskmap.schedules.cuda.support.vectors import fills
from taskmap.schedules.strategies.product import positions


@dataclass(slots=True)
class SharedTileLoader:
    """The tiles of one operand: ``extent`` rows (or columns) from ``first`` on, ``depth`` of k at a time.

    fixed: the position along the batch. size_k: the length of the sum.
    """

    b: Builder
    factor: Operand
    fixed: dict[Var, Expr]
    first: Expr
    extent: int
    depth: int
    size_k: Dim
    share: TilePartition
    threads: int
    tile: SharedTile
    held: Buffer = field(init=False)

    def allocate(self, name: str) -> None:
        """Allocates registers for one tile."""
        f = self.factor
        shape = (self.share.rows, self.share.chunks, f.lanes)
        self.held = self.b.allocate(name, f.expr.dtype, shape, Scope.REGISTER, owner=self.share.owner(f.lanes))

    def load(self, values: Inliner, k0: Expr) -> None:
        """Loads the tile whose sum begins at ``k0`` into registers."""
        f, b = self.factor, self.b

        def one(row: Expr, chunk: Expr, inside: Inliner) -> None:
            inner = inside.simplifier(chunk * f.lanes)
            mn, k = (row, inner) if f.along_k else (inner, row)
            test = self.inside(mn, k, k0, inside)

            def element(v: Expr, local: Inliner) -> None:
                at_mn, at_k = (mn, k + v) if f.along_k else (mn + v, k)
                value = self.element(local, self.first + at_mn, k0 + at_k)
                b.store(self.held, (row, chunk, v), value)

            with b.when(test):
                self.lanes(inside, element)
            with b.otherwise():
                zero = const(0, f.expr.dtype)
                self.lanes(inside, lambda v, local: b.store(self.held, (row, chunk, v), zero))

        self.each_chunk(values, one)

    def store_tile(self, values: Inliner, stage: Expr) -> None:
        """Stores the registers in stage ``stage`` of shared memory."""
        f, b = self.factor, self.b

        def one(row: Expr, chunk: Expr, inside: Inliner) -> None:
            def element(v: Expr, local: Inliner) -> None:
                inner = chunk * f.lanes + v
                mn, k = (row, inner) if f.along_k else (inner, row)
                b.store(self.tile.buffer, self.tile.at(stage, mn, k, local), self.held[row, chunk, v])

            self.lanes(inside, element, vector=self.tile.along_k == f.along_k)

        self.each_chunk(values, one)

    def copy_async(self, values: Inliner, stage: Expr, k0: Expr) -> None:
        """Copies the tile whose sum begins at ``k0`` into stage ``stage`` asynchronously, in the copy group that is
        committed next. Threads without a chunk to copy store zeros."""
        f = self.factor

        def one(row: Expr, chunk: Expr, inside: Inliner) -> None:
            inner = inside.simplifier(chunk * f.lanes)
            mn, k = (row, inner) if f.along_k else (inner, row)
            test = self.inside(mn, k, k0, inside)
            at_mn = self.clamped(mn, f.size, self.first, self.extent, not f.along_k, inside)
            at_k = self.clamped(k, self.size_k, k0, self.depth, f.along_k, inside)
            found = source_of(values.task, inside.simplifier, lambda v: self.element(v, at_mn, at_k))
            assert found is not None
            line = (1, f.lanes) if f.along_k else (f.lanes, 1)
            to = region(self.tile.buffer, self.tile.at(stage, mn, k, inside), self.tile.shape(*line))
            copy_chunk(self.b, to, found, f.lanes, test)

        self.each_chunk(values, one)

    def clamped(self, at: Expr, size: Dim, first: Expr, extent: int, is_inner: bool, values: Inliner) -> Expr:
        """Clamps ``at`` to a position inside the operand, so that an address is always valid."""
        where = first + at
        if fills(size, extent):
            return values.simplifier(where)
        return values.simplifier(minimum(where, index(size) - (self.factor.lanes if is_inner else 1)))

    def element(self, values: Inliner, mn: Expr, k: Expr) -> Expr:
        """The operand's element at (row, number of the term)."""
        f = self.factor
        return values.expand(f.expr, {**self.fixed, **positions((f.mn, f.k), (mn, k), values)})

    def inside(self, mn: Expr, k: Expr, k0: Expr, values: Inliner) -> Expr:
        """True if a chunk lies within the product's sizes; a chunk is never partly inside."""
        test = as_expr(True)
        if not fills(self.factor.size, self.extent):
            test = test & values.simplifier(self.first + mn < self.factor.size)
        if not fills(self.size_k, self.depth):
            test = test & values.simplifier(k0 + k < self.size_k)
        return test

    def each_chunk(self, values: Inliner, body: Callable[[Expr, Expr, Inliner], None]) -> None:
        """Calls ``body`` for the chunks of a tile that belong to this thread."""
        b, s = self.b, self.share
        alone = s.workers == self.threads
        with b.when(True if alone else s.workers > THREAD):
            worker = THREAD if alone else THREAD % s.workers
            with b.mapped(["row", "chunk"], s.mapping, worker) as (row, chunk):
                inside = values.nested()
                inside.bind(row, s.rows)
                inside.bind(chunk, s.chunks)
                body(row, chunk, inside)

    def lanes(self, values: Inliner, body: Callable[[Expr, Inliner], None], vector: bool = True) -> None:
        """Calls ``body`` for the elements of a chunk."""
        lanes = self.factor.lanes
        with self.b.loop("v", lanes, LoopKind.VECTOR if vector else LoopKind.UNROLLED) as v:
            local = values.nested()
            local.bind(v, lanes)
            body(v, local)
