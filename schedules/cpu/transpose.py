"""Element-wise work that reads along one axis of memory and writes along another, in square tiles.

    for each tile of (a, b):                      y[.., b, a] is written along a, x[.., a, b] lies along b
        tile = x at the tile's positions          whole lines of memory, read along b
        for b in tile:  y at (b, a in vectors)    whole lines of memory, written along a

Without tiles, each vector of y would touch as many lines of x as it has lanes, and the cache would have evicted them
before the next vector needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, minimum, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.ir.target import CpuTarget
from taskmap.ir.visit import substitute
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import Shared, parallel_grid, vector_loop
from taskmap.schedules.common.positions import position_of, store_outputs
from taskmap.schedules.common.transpose_domain import Transpose

_LINE_BYTES = 128
"""The side of a tile: two cache lines."""


def emit_transpose(
    b: Builder,
    values: Inliner,
    t: Transpose,
    domain: Buffer,
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    lanes: int,
    shared: Shared,
    target: CpuTarget,
    outputs: Sequence[Buffer],
) -> str:
    """Emits the loops; returns the tile's size as text."""
    side = max(16, _LINE_BYTES // max(x.dtype.bytes for x in (*outputs, *(w.buffer for w in t.staged))))
    rows, columns = (_side(extents[r], side) for r in (t.along, t.across))
    others = [r for r in range(len(runs)) if r not in (t.along, t.across)]
    tiles = [ceil_div(extents[t.along], rows), ceil_div(extents[t.across], columns)]
    names = [*(f"o{r}" for r in others), "tile_a", "tile_b"]
    grid = parallel_grid(b, names, [*(extents[r] for r in others), *tiles], values, shared, 8 * target.cores)
    with grid as (*outer, tile_a, tile_b):
        inside = values.nested()
        a0, a_count = _tile(b, inside, tile_a, extents[t.along], rows)
        b0, b_count = _tile(b, inside, tile_b, extents[t.across], columns)

        def position(i: Expr, j: Expr, local: Inliner) -> list[Expr]:
            places = {**dict(zip(others, outer, strict=True)), t.along: a0 + i, t.across: b0 + j}
            return position_of(domain, runs, [places[r] for r in range(len(runs))], local)

        tiles_of = {w.buffer: b.allocate("tile", w.buffer.dtype, (rows, columns)) for w in t.staged}
        for w in t.staged:
            with b.loop("fill", index(a_count)) as i:
                inside.bind(i, rows)

                def fill(j: Expr, local: Inliner, width: int, lane: Expr, w: MemoryStep = w, i: Expr = i) -> None:
                    here = dict(zip(t.axes, position(i, j, local), strict=True))
                    where = tuple(local.simplifier(substitute(e, here)) for e in w.indices)
                    b.store(tiles_of[w.buffer], (i, j), w.buffer[where])

                vector_loop(b, "fill_v", b_count, lanes, inside.nested(), fill)
        with b.loop("column", index(b_count)) as j:
            inside.bind(j, columns)

            def element(i: Expr, local: Inliner, width: int, lane: Expr) -> None:
                for buffer, tile in tiles_of.items():
                    local.readers[buffer] = lambda where, buffer=buffer, tile=tile: b.let(buffer.name, tile[i, j])  # type: ignore[misc]  # defaults bind the loop's variables
                store_outputs(b, local, domain, position(i, j, local), outputs)

            vector_loop(b, "v", a_count, lanes, inside.nested(), element)
    return f"{rows}x{columns}"


def _side(extent: Dim, side: int) -> int:
    return min(static_size(extent) or side, side)


def _tile(b: Builder, values: Inliner, tile: Expr, extent: Dim, side: int) -> tuple[Expr, Dim]:
    """The first position of a tile, and its number of positions."""
    first = values.simplifier(tile * side)
    size = static_size(extent)
    if size is not None and size % side == 0:
        return first, side
    count = b.let("count", values.simplifier(minimum(index(extent) - first, side)))
    values.bind_value(count, side)
    return first, count
