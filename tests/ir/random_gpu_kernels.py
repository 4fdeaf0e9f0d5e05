"""Random kernels of blocks and threads: well-formed, in bounds, without races, and all of the output is written."""

from __future__ import annotations

from hypothesis import strategies as st

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import select
from taskmap.ir.nodes import Buffer, Dim, GpuLaunch, Kernel, LoopKind, Scope, Var
from taskmap.ir.types import f32
from taskmap.ir.workers import BLOCKS, THREAD
from tests.ir.random_kernels import COLS, ROWS, index_exprs, values

THREADS = 8
_TILE = (4, 8)
MAPPINGS: tuple[TaskMapping, ...] = (
    spatial(4, 2) * repeat(1, 4),
    repeat(4, 1) * spatial(1, 8),
    spatial(2, 4) * repeat(2, 2),
    repeat(2, 2) * spatial(2, 4),
    repeat(1, 2) * spatial(4, 2) * repeat(1, 2),
)


@st.composite
def gpu_kernels(draw: st.DrawFn) -> Kernel:
    """A kernel on x: f32[6, 8], y: f32[rows, 4, 8]: each block fills a shared tile, and works on it in registers."""
    sizes: list[Dim] = [ROWS, Var("rows")]
    size = draw(st.sampled_from(sizes))
    x, y = Buffer("x", f32, (ROWS, COLS)), Buffer("y", f32, (size, *_TILE))
    block = BLOCKS[0]
    b = Builder()
    shared = b.allocate("tile", f32, _TILE, Scope.SHARED)
    with b.mapped(("i", "j"), draw(st.sampled_from(MAPPINGS)), THREAD) as (i, j):
        b.store(shared, (i, j), draw(values(x, (block, i, j), 2)))
    b.barrier()
    owner = draw(st.sampled_from(MAPPINGS))
    acc = b.allocate("acc", f32, _TILE, Scope.REGISTER, owner=owner)
    with b.mapped(("i", "j"), owner, THREAD) as (i, j):
        b.store(acc, (i, j), draw(values(x, (block, j), 1)))
    kind = draw(st.sampled_from((LoopKind.SERIAL, LoopKind.UNROLLED)))
    with b.loop("k", draw(st.sampled_from([3, 4])), kind) as k, b.mapped(("i", "j"), owner, THREAD) as (i, j):
        t = b.let("t", shared[draw(index_exprs((i, j, k), _TILE[0])), draw(index_exprs((j, k), _TILE[1]))])
        with b.when(draw(st.sampled_from([t > 0.0, i < j, block < k + 1]))):
            b.store(acc, (i, j), acc[i, j] + t)
    if draw(st.booleans()):
        with b.mapped(("i", "j"), owner, THREAD) as (i, j):
            b.store(y, (block, i, j), select(j < 5, acc[i, j], acc[i, j] * 2.0))
    else:
        b.move(region(y, (block, 0, 0), (1, *_TILE)), acc)
    dims = (size,) if isinstance(size, Var) else ()
    return Kernel("random_gpu", (x, y), (y,), dims, b.body(), GpuLaunch((size,), THREADS))
