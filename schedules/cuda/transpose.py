"""Element-wise work on a GPU that reads along one axis of memory and writes along another, through shared memory.

    y[j, i] = x[i, j]
    Compute(y).tile(32, 32).to(BLOCK)
        .move("x", SHARED, by=repeat(4, 1) * spatial(8, 32)).pad(1)     neighbours j lie together in x
        .done(by=repeat(4, 1) * spatial(8, 32))                         neighbours i lie together in y

The positions j and i are those along two runs of axes; x is an input where it is read, and y the whole task, computed
from the elements of the tiles.

Lines of the tile are padded by one element, so that a column lies in as many banks as it has elements.

Elements of fewer than 32 bits are moved as vectors if sizes and addresses allow it: a thread reads up to 16 bytes along
j, and writes as many along i, which it gathers from as many lines of a tile of 64 × 64. Lines are then padded by one
word of 32 bits, and a warp takes 8 columns of 4 vectors, so that its lanes use different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.stages import Compute
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Buffer, Call, Dim, Expr, Kernel, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import loads_in, substitute
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import position_of, store_outputs
from taskmap.schedules.common.transpose_domain import Transpose
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes
from taskmap.schedules.strategies.fusion import Fusion, Read

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

    def padding(self, element: int) -> int:
        """The elements between lines, for elements of ``element`` bytes."""
        return 1 if self.lanes == 1 else max(1, _WORD // element)


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
    target: Target,
) -> Kernel:
    """The kernel of a task whose outputs are written along one run of axes and some inputs read along another.

    walks: all accesses, in terms of the axes.
    """
    tile = _tile(t, domain, runs, extents, walks)
    others = [r for r in range(len(runs)) if r not in (t.along, t.across)]
    anchor = _turned([w.buffer for w in t.staged], [extents[r] for r in (*others, t.across, t.along)])

    def position(order: Sequence[int], where: Sequence[Expr], values: Inliner) -> list[Expr]:
        places = dict(zip(order, where, strict=True))
        return position_of(domain, runs, [places[r] for r in range(len(runs))], values)

    def reader(w: MemoryStep) -> Read:
        def element(where: Sequence[Expr], values: Inliner) -> Expr:
            here = dict(zip(t.axes, position((*others, t.along, t.across), where, values), strict=True))
            return w.buffer[tuple(values.simplifier(substitute(e, here)) for e in w.indices)]

        return element

    def write(where: Sequence[Expr], turned: Expr, b: Builder, values: Inliner) -> None:
        for w, value in zip(t.staged, loads_in(turned), strict=True):
            values.readers[w.buffer] = _element(b.let(w.buffer.name, value))
        store_outputs(b, values, domain, position((*others, t.across, t.along), where, values), task.outputs)

    buffers = {b.name: b for b in (*anchor.inputs, *anchor.outputs)}
    kernel = kernel_on(_strategy(anchor, tile), task.name, buffers, buffers)
    reads = dict(zip(anchor.inputs, map(reader, t.staged), strict=True))
    kernel = Fusion(task, target, reads, {anchor.outputs[0]: write}, zeros=False).apply(kernel).launched(min_blocks=1)
    size = "x".join(print_dim(extents[r]) for r in range(len(runs)))
    note = f"cuda.transpose({size}, tile={tile.side}x{tile.side}, threads={_THREADS}, lanes={tile.lanes})"
    return replace(kernel, buffers=(*task.inputs, *task.outputs), outputs=task.outputs, dims=task.dims, note=note)


def _turned(staged: Sequence[Buffer], sizes: Sequence[Dim]) -> Task:
    """y[..., j, i] = elements at [..., i, j] of each staged tensor."""
    *lead, j, i = [*(Var(f"batch{n}") for n in range(len(sizes) - 2)), Var("j"), Var("i")]
    *outer, across, along = sizes
    inputs = [Buffer(f"x{n}", b.dtype, (*outer, along, across)) for n, b in enumerate(staged)]
    at = (*lead, i, j)
    values = tuple(b[at] for b in inputs)
    y = Buffer("y", values[0].dtype, tuple(sizes))
    return Task.of("turned", Stage(y, (*lead, j, i), Call("elements", values, y.dtype, 1)))


def _strategy(turned: Task, tile: _Tile) -> Strategy:
    """The decomposition of a transpose."""
    tree = Compute(turned).tile(tile.side, tile.side).to(Level.BLOCK).layout("column").group(1)
    for x in turned.inputs:
        tree = tree.move(x.name, Scope.SHARED, by=tile.reading).pad(tile.padding(x.dtype.bytes))
    return tree.done(by=tile.writing)


def _element(value: Expr) -> Reader:
    return lambda where: value
