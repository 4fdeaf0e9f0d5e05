"""A transpose: a block, or a core, reads a tile along the rows of x, and writes it along those of y. Each line of the
tile in shared memory ends with an unused element, so that the elements of a column are in different banks. The
templates (`transpose.py` of `schedules/cuda` and `schedules/cpu`) are these strategies."""

from taskmap.decompose import BLOCK, CORE, LOCAL, SHARED, Compute, Strategy, Task, stage, tensor
from taskmap.ir import repeat, spatial
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f32

LINES = repeat(4, 1) * spatial(8, 32)
"""The elements of a tile that each of 256 threads moves: a warp takes a line at a time."""


def turned(m: Dim, n: Dim) -> Task:
    """y[j, i] = x[i, j]."""
    x = tensor("x", f32[m, n])
    return Task.of("transpose", stage("y", (n, m), lambda j, i: x[i, j]))


def transpose(m: Dim, n: Dim) -> Strategy:
    """By blocks of threads."""
    tree = Compute(turned(m, n)).tile(32, 32).to(BLOCK).layout("column")
    return tree.move("x", SHARED, by=LINES).pad(1).done(by=LINES)


def cpu_transpose(m: Dim, n: Dim) -> Strategy:
    """By cores, in vectors of 16."""
    tree = Compute(turned(m, n)).tile(32, 32).to(CORE).layout("column").parallel(20_000)
    return tree.move("x", LOCAL, lambda copy: copy.done().vectorize(16)).done().vectorize(16)
