"""Softmax of rows: a warp, a block, or a core of a CPU takes a row and reads it once. Stages are computed where they
are moved to: `move` is what Halide calls `compute_at` (Ragan-Kelley et al., PLDI 2013)."""

from taskmap.decompose import BLOCK, CORE, LOCAL, REGISTER, WARP, Compute, Level, Strategy, Task, reduced, stage, tensor
from taskmap.ir import repeat, spatial
from taskmap.ir.nodes import Dim, Scope
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
    return held(mine, LOCAL if worker is CORE else REGISTER).done()


def long_softmax_rows(m: Dim, n: int, threads: int = 256) -> Strategy:
    """Rows that a block holds: its threads exchange their sums by shuffles, its warps through shared memory."""
    each = -(-n // threads)
    row = Compute(softmax(m, n)).tile(1, threads * each).to(BLOCK)
    return held(row, REGISTER).done(by=repeat(1, each) * spatial(1, threads))


def held(tree: Strategy, place: Scope) -> Strategy:
    """The elements of a row in registers, or in a core's memory."""
    return tree.move("x", place).move("highest", REGISTER).move("power", place).move("total", REGISTER)
