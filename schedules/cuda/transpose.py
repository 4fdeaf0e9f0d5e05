"""Element-wise work on a GPU that reads along one axis of memory and writes along another, through shared memory.

    for i, j in repeat(4, 1) * spatial(8, 32):    tile[i, j] = x at (i, j)        neighbours j lie together in x
    barrier
    for j, i in repeat(4, 1) * spatial(8, 32):    y at (i, j) = f(tile[i, j])     neighbours i lie together in y

Lines of the tile are padded by one element, so that a column lies in as many banks as it has elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.construct import as_expr, ceil_div, index
from taskmap.ir.mapping import repeat, spatial
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Scope
from taskmap.ir.printer import print_dim
from taskmap.ir.task import Task
from taskmap.ir.visit import substitute
from taskmap.ir.workers import THREAD
from taskmap.schedules.cpu.positions import position_of, store_outputs
from taskmap.schedules.cpu.transpose import Transpose
from taskmap.schedules.cuda.launch import Launch
from taskmap.schedules.cuda.vectors import fills
from taskmap.schedules.values import Reader, Values

_SIDE = 32
_THREADS = 256
_PITCH = _SIDE + 1


def schedule_transpose(
    task: Task, t: Transpose, domain: Buffer, runs: Sequence[Sequence[int]], extents: Sequence[Dim]
) -> Kernel:
    """The kernel of a task whose outputs are written along one run of axes and some inputs read along another."""
    others = [r for r in range(len(runs)) if r not in (t.along, t.across)]
    tiles = [ceil_div(extents[r], _SIDE) for r in (t.along, t.across)]
    launch = Launch(task, (*(extents[r] for r in others), *tiles), _THREADS)
    b = launch.b
    values, (*outer, tile_a, tile_b) = launch.begin()
    first = {t.along: values.simplifier(tile_a * _SIDE), t.across: values.simplifier(tile_b * _SIDE)}
    mapping = repeat(_SIDE * _SIDE // _THREADS, 1) * spatial(_THREADS // _SIDE, _SIDE)

    def position(i: Expr, j: Expr, local: Values) -> list[Expr]:
        places = {**dict(zip(others, outer, strict=True)), t.along: first[t.along] + i, t.across: first[t.across] + j}
        return position_of(domain, runs, [places[r] for r in range(len(runs))], local)

    def inside(i: Expr, j: Expr, local: Values) -> Expr:
        test = as_expr(True)
        for r, at in ((t.along, i), (t.across, j)):
            if not fills(extents[r], _SIDE):
                test = test & local.simplifier(first[r] + at < index(extents[r]))
        return test

    staged = {
        w.buffer: b.allocate("tile", w.buffer.dtype, (_SIDE, _SIDE), Scope.SHARED, strides=(_PITCH, 1))
        for w in t.staged
    }
    with b.mapped(["i", "j"], mapping, THREAD) as (i, j):
        local = values.nested()
        local.bind(i, _SIDE)
        local.bind(j, _SIDE)
        with b.when(inside(i, j, local)):
            here = dict(zip(t.axes, position(i, j, local), strict=True))
            for w in t.staged:
                where = tuple(local.simplifier(substitute(e, here)) for e in w.indices)
                b.store(staged[w.buffer], (i, j), w.buffer[where])
    b.barrier()
    with b.mapped(["j", "i"], mapping, THREAD) as (j, i):
        local = values.nested()
        local.bind(i, _SIDE)
        local.bind(j, _SIDE)
        with b.when(inside(i, j, local)):
            for buffer, tile in staged.items():
                local.readers[buffer] = _element(b.let(buffer.name, tile[i, j]))
            store_outputs(b, local, domain, position(i, j, local), task.outputs)
    size = "x".join(map(print_dim, extents))
    return launch.kernel(f"cuda.transpose({size}, tile={_SIDE}x{_SIDE}, threads={_THREADS})")


def _element(value: Expr) -> Reader:
    return lambda where: value
