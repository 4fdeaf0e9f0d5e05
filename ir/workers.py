"""The variables that identify a GPU thread. They are free in a kernel with a grid; the launch defines them.

THREAD is below GpuLaunch.threads; BLOCKS[d] is below GpuLaunch.grid[d].
"""

from __future__ import annotations

from taskmap.ir.nodes import Binary, Dim, GpuLaunch, Kernel, Var

THREAD = Var("thread")
MULTIPROCESSORS = Var("multiprocessors")
"""Those of the target, which lowering knows. A grid may have as many blocks."""
_MOST_MULTIPROCESSORS = 1024
BLOCKS = (Var("block_x"), Var("block_y"), Var("block_z"))


def depends_on_multiprocessors(launch: GpuLaunch) -> bool:
    """True if there are as many blocks as multiprocessors, rounded to whole clusters."""
    blocks = launch.grid[0] if launch.grid else 1
    while isinstance(blocks, Binary):
        blocks = blocks.a
    return blocks is MULTIPROCESSORS


def worker_extents(kernel: Kernel) -> dict[Var, Dim]:
    """The worker variables of ``kernel``, each with its number of values; empty for a CPU kernel."""
    if kernel.launch is None:
        return {}
    grid = kernel.launch.grid
    extents: dict[Var, Dim] = {**dict(zip(BLOCKS, grid, strict=False)), THREAD: kernel.launch.threads}
    if depends_on_multiprocessors(kernel.launch):
        extents[MULTIPROCESSORS] = _MOST_MULTIPROCESSORS + 1
    return extents
