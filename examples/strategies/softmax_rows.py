"""Softmax of rows: a warp, or a core of a CPU, takes a row and reads it once. Stages are computed where they are moved
to: `move` is what Halide calls `compute_at` (Ragan-Kelley et al., PLDI 2013)."""

from taskmap.decompose import BLOCK, CORE, LOCAL, REGISTER, WARP, Compute, Level, Strategy, Task, reduced, stage, tensor
from taskmap.ir.nodes import Dim
from taskmap.ir.script.read import exp
from taskmap.ir.types import f32


def softmax(m: Dim, n: int) -> Task:
    """y[i, :] = softmax(x[i, :])."""
    x = tensor("x", f32[m, n])
    highest = stage("highest", (m,), lambda i: reduced("max", n, lambda k: x[i, k]))
    power = stage("power", (m, n), lambda i, j: exp(x[i, j] - highest[i]))
    total = stage("total", (m,), lambda i: reduced("sum", n, lambda k: power[i, k]))
    return Task.of("softmax", highest, power, total, stage("y", (m, n), lambda i, j: power[i, j] / total[i]))


def softmax_rows(m: Dim, n: int, worker: Level = WARP) -> Strategy:
    """Rows of n elements; a warp's lanes hold up to 64 each."""
    row = 32 * -(-n // 32)
    rows = Compute(softmax(m, n))
    mine = rows.tile(1, n).to(CORE) if worker is CORE else rows.tile(4, row).to(BLOCK).tile(1, row).to(WARP)
    place = LOCAL if worker is CORE else REGISTER
    return mine.move("x", place).move("highest", REGISTER).move("power", place).move("total", REGISTER).done()
