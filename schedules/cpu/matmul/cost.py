"""Cost model of the CPU's matmul template: cycles of a configuration, from the target's parameters alone.

A tile takes the longer of two times: that of its multiply-adds, or that of loading its operands from the caches that
hold them; the busiest core decides. The cache follows from working sets, as in "Automatic Scheduling of Image
Processing Pipelines", chapter 4 (equations 4.1 to 4.13): each tile of a block rereads a panel of B, each panel rereads
a block of A. Runs are contiguous, so their prefetched lines cost bandwidth, not latency.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.target import CpuTarget
from taskmap.schedules.cpu.matmul.config import MatmulConfig, Sizes, panels_first
from taskmap.schedules.cpu.support import rates
from taskmap.schedules.cpu.support.balance import blocks

_UNKNOWN = 1024
"""The extent assumed for a size that is known only when the kernel runs."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Sizes as numbers."""

    m: int
    n: int
    k: int
    batch: int
    bytes: int


def cycles(config: MatmulConfig, sizes: Sizes, target: CpuTarget) -> float:
    """Cycles of the busiest core for a product of ``sizes`` with ``config``; symbolic sizes count as 1024."""
    p = _Product(
        static_size(sizes.m) or _UNKNOWN,
        static_size(sizes.n) or _UNKNOWN,
        sizes.k or _UNKNOWN,
        sizes.batch or 1,
        sizes.bytes,
    )
    lanes = target.lanes(p.bytes)
    width = config.width(lanes)
    rows = blocks(p.m, config.rows)
    columns = blocks(p.n, width)
    costs = {
        (r, c): _block(config, p, r, c, len(rows), len(columns), target)
        for r in {*rows[-1:], rows[0]}
        for c in {*columns}
    }
    if panels_first(config, sizes, target):
        work = [costs[r, c] for c in columns for r in rows]
    else:
        work = [costs[r, c] for r in rows for c in columns]
    return rates.busiest(work, p.batch, target)


def _block(
    config: MatmulConfig, p: _Product, rows: int, columns: int, row_blocks: int, panels: int, target: CpuTarget
) -> float:
    """One block of ``rows`` against one panel of ``columns``."""
    lanes = target.lanes(p.bytes)
    groups = column_groups(columns, lanes) if columns < config.width(lanes) else [(config.tile.vectors, lanes)]
    depth = -(-p.k // config.k_blocks)
    panel = depth * columns * p.bytes
    part_of_a = rows * depth * p.bytes
    total = p.batch * p.bytes * p.k * (p.m + p.n)
    far = rates.L3_BYTES if total <= target.l3 * rates.USABLE else rates.MEMORY_BYTES

    # The panel comes from far memory once; each further tile finds it in the nearest cache that holds it.
    tile_rows = [config.tile.rows] * (rows // config.tile.rows) + [r for r in (rows % config.tile.rows,) if r]
    again = _rate(panel + config.tile.rows * depth * p.bytes, panel + part_of_a, target, far)
    whole_b = p.n * p.k * p.bytes
    first = rates.L2_BYTES if row_blocks > 1 and whole_b + part_of_a <= target.l2 * rates.USABLE else far
    # Every panel rereads a block of A, from the second-level cache if both fit it.
    reread = panels > 1 and part_of_a + 2 * panel <= target.l2 * rates.USABLE
    from_a = rates.L2_BYTES if reread else far

    # Partial sums are read and written for each k-block.
    sums = rates.FREE
    if config.k_blocks > 1:
        sums = (rates.L2_BYTES if rows * columns * p.bytes <= target.l1 * rates.USABLE else rates.L3_BYTES) / 2

    time = 0.0
    for number, height in enumerate(tile_rows):
        multiply = depth * sum(rates.step(height, vectors) for vectors, _ in groups)
        b_bytes = panel / (first if number == 0 else again)
        a_bytes = height * depth * p.bytes * len(groups) / from_a
        moved = b_bytes + a_bytes
        time += rates.beside(multiply, moved) + height * columns * p.bytes / sums + rates.TILE
    return time * config.k_blocks + rows * columns * p.bytes / rates.L2_BYTES + rates.TASK


def _rate(near: int, middle: int, target: CpuTarget, far: float) -> float:
    """Bytes per cycle of rereading data, if ``near`` bytes lie between two reads within a tile and ``middle`` within a
    block. The first-level cache is as fast as the loads that ``step`` counts."""
    if near <= target.l1 * rates.USABLE:
        return rates.FREE
    return rates.L2_BYTES if near <= target.l2 * rates.USABLE else far
