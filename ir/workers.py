"""The variables that identify a GPU thread. They are free in a kernel with a grid; the launch defines them.

THREAD is below GpuLaunch.threads; BLOCKS[d] is below GpuLaunch.grid[d].
"""

from __future__ import annotations

from taskmap.ir.nodes import Dim, Kernel, Var

THREAD = Var("thread")
MULTIPROCESSORS = Var("multiprocessors")
"""Those of the target, which lowering knows. A grid may have as many blocks."""
_MOST_MULTIPROCESSORS = 1024
BLOCKS = (Var("block_x"), Var("block_y"), Var("block_z"))


def worker_extents(kernel: Kernel) -> dict[Var, Dim]:
    """The worker variables of ``kernel``, each with its number of values; empty for a CPU kernel."""
    if kernel.launch is None:
        return {}
    grid = kernel.launch.grid
    extents: dict[Var, Dim] = {**dict(zip(BLOCKS, grid, strict=False)), THREAD: kernel.launch.threads}
    if MULTIPROCESSORS in grid:
        extents[MULTIPROCESSORS] = _MOST_MULTIPROCESSORS + 1
    return extents
