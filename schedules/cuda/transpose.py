"""Element-wise work on a GPU that reads along one axis of memory and writes along another, through shared memory.

    for i, j in repeat(4, 1) * spatial(8, 32):    tile[i, j] = x at (i, j)        neighbours j lie together in x
    barrier
    for j, i in repeat(4, 1) * spatial(8, 32):    y at (i, j) = f(tile[i, j])     neighbours i lie together in y

Lines of the tile are padded by one element, so that a column lies in as many banks as it has elements.

Elements of fewer than 32 bits are moved as vectors if sizes and addresses allow it: a thread reads up to 16 bytes along
j, and writes as many along i, which it gathers from as many lines of a tile of 64 × 64. Lines are then padded by one
word of 32 bits, and a warp takes 8 columns of 4 vectors, so that its lanes use different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.construct import as_expr, ceil_div, index
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, LoopKind, Scope
from taskmap.ir.printer import print_dim
from taskmap.ir.task import Task
from taskmap.ir.visit import substitute
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import position_of, store_outputs
from taskmap.schedules.common.transpose_domain import Transpose
from taskmap.schedules.cuda.support.launch import Launch
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes

_THREADS = 256
_WORD = 4


@dataclass(frozen=True, slots=True)
class _Tile:
    """A square of ``side`` elements, of which a thread takes ``lanes`` neighbours at a time."""

    side: int
    lanes: int

    @property
    def reading(self) -> TaskMapping:
        """The mapping of threads to the vectors that they read: line, and vector in the line."""
        across = self.side // self.lanes
        return repeat(self.side * across // _THREADS, 1) * spatial(_THREADS // across, across)

    @property
    def writing(self) -> TaskMapping:
        """The mapping of threads to the vectors that they write: column, and vector in the column."""
        if self.lanes == 1:
            return self.reading
        down = self.side // self.lanes
        warps = spatial(_THREADS // down // 8, down // 4)
        return repeat(self.side * down // _THREADS, 1) * warps * spatial(8, 4)

    def pitch(self, element: int) -> int:
        """The distance between lines, for elements of ``element`` bytes."""
        return self.side + (1 if self.lanes == 1 else max(1, _WORD // element))


def _tile(
    t: Transpose, domain: Buffer, runs: Sequence[Sequence[int]], extents: Sequence[Dim], walks: Sequence[MemoryStep]
) -> _Tile:
    staged = {id(w.buffer) for w in t.staged}
    rest = [w for w in walks if id(w.buffer) not in staged]
    lanes = min(
        vector_lanes(t.staged, t.axes, runs[t.across], domain.shape),
        vector_lanes(rest, t.axes, runs[t.along], domain.shape),
    )
    while lanes > 1 and not (fills(extents[t.along], lanes) and fills(extents[t.across], lanes)):
        lanes //= 2
    narrow = min(w.buffer.dtype.bytes for w in t.staged) < _WORD
    return _Tile(64, lanes) if narrow and lanes > 1 else _Tile(32, 1)


def schedule_transpose(
    task: Task,
    t: Transpose,
    domain: Buffer,
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    walks: Sequence[MemoryStep],
) -> Kernel:
    """The kernel of a task whose outputs are written along one run of axes and some inputs read along another.

    walks: all accesses, in terms of the axes.
    """
    tile = _tile(t, domain, runs, extents, walks)
    side, lanes = tile.side, tile.lanes
    others = [r for r in range(len(runs)) if r not in (t.along, t.across)]
    tiles = [ceil_div(extents[r], side) for r in (t.along, t.across)]
    launch = Launch(task, (*(extents[r] for r in others), *tiles), _THREADS)
    b = launch.b
    values, (*outer, tile_a, tile_b) = launch.begin()
    first = {t.along: values.simplifier(tile_a * side), t.across: values.simplifier(tile_b * side)}

    def position(i: Expr, j: Expr, local: Inliner) -> list[Expr]:
        places = {**dict(zip(others, outer, strict=True)), t.along: first[t.along] + i, t.across: first[t.across] + j}
        return position_of(domain, runs, [places[r] for r in range(len(runs))], local)

    def inside(i: Expr, j: Expr, local: Inliner) -> Expr:
        test = as_expr(True)
        for r, at in ((t.along, i), (t.across, j)):
            if not fills(extents[r], side):
                test = test & local.simplifier(first[r] + at < index(extents[r]))
        return test

    staged = {
        w.buffer: b.allocate(
            "tile", w.buffer.dtype, (side, side), Scope.SHARED, strides=(tile.pitch(w.buffer.dtype.bytes), 1)
        )
        for w in t.staged
    }

    def read(i: Expr, j: Expr, local: Inliner) -> None:
        here = dict(zip(t.axes, position(i, j, local), strict=True))
        for w in t.staged:
            where = tuple(local.simplifier(substitute(e, here)) for e in w.indices)
            b.store(staged[w.buffer], (i, j), w.buffer[where])

    def write(i: Expr, j: Expr, local: Inliner) -> None:
        for buffer, held in staged.items():
            local.readers[buffer] = _element(b.let(buffer.name, held[i, j]))
        store_outputs(b, local, domain, position(i, j, local), task.outputs)

    with b.mapped(["i", "j"], tile.reading, THREAD) as (i, j):
        local = values.nested()
        local.bind(i, side)
        local.bind(j, side // lanes)
        with b.when(inside(i, j * lanes, local)):
            if lanes == 1:
                read(i, j, local)
            else:
                with b.loop("v", lanes, LoopKind.VECTOR) as v:
                    local.bind(v, lanes)
                    read(i, j * lanes + v, local)
    b.barrier()
    with b.mapped(["j", "i"], tile.writing, THREAD) as (j, i):
        local = values.nested()
        local.bind(i, side // lanes)
        local.bind(j, side)
        with b.when(inside(i * lanes, j, local)):
            if lanes == 1:
                write(i, j, local)
            else:
                with b.loop("v", lanes, LoopKind.VECTOR) as v:
                    local.bind(v, lanes)
                    write(i * lanes + v, j, local)
    size = "x".join(map(print_dim, extents))
    return launch.kernel(f"cuda.transpose({size}, tile={side}x{side}, threads={_THREADS}, lanes={lanes})")


def _element(value: Expr) -> Reader:
    return lambda where: value
