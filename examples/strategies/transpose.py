"""A transpose: a block reads a tile along the rows of x, and writes it along those of y. Each line of the tile in
shared memory ends with an unused element, so that the elements of a column are in different banks. The template for
GPUs (`schedules/cuda/transpose.py`) is this strategy."""

from taskmap.decompose import BLOCK, SHARED, Compute, Strategy, Task, stage, tensor
from taskmap.ir import repeat, spatial
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f32

LINES = repeat(4, 1) * spatial(8, 32)
"""The elements of a tile that each of 256 threads moves: a warp takes a line at a time."""


def transpose(m: Dim, n: Dim) -> Strategy:
    """y[j, i] = x[i, j]."""
    x = tensor("x", f32[m, n])
    turned = Task.of("transpose", stage("y", (n, m), lambda j, i: x[i, j]))
    return Compute(turned).tile(32, 32).to(BLOCK).layout("column").move("x", SHARED, by=LINES).pad(1).done(by=LINES)
