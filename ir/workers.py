"""The variables that tell a GPU thread which one it is. They are free in a kernel with a grid; nothing defines them.

THREAD is below Kernel.threads; BLOCKS[d] is below Kernel.grid[d].
"""

from __future__ import annotations

from taskmap.ir.nodes import Dim, Kernel, Var

THREAD = Var("thread")
BLOCKS = (Var("block_x"), Var("block_y"), Var("block_z"))


def worker_extents(kernel: Kernel) -> dict[Var, Dim]:
    """The worker variables that ``kernel`` has, each with how many values it takes; none for a CPU kernel."""
    extents: dict[Var, Dim] = dict(zip(BLOCKS, kernel.grid, strict=False))
    if kernel.threads:
        extents[THREAD] = kernel.threads
    return extents
