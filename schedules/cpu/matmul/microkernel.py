"""The register-blocked core of every contraction on a CPU: an mr × (nv · lanes) tile of outputs held in registers.

    for k:   b = a row of B;   a = a column of A;   acc += a @ b

The accumulators must stay in registers, so the tile is unrolled; the caller's loops around it are not. Method: the
outer-product kernel of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmap.ir.construct import static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import DType, f32
from taskmap.ir.util.lazy import lazily

# Compilations without products do without the language of strategies, which takes a while to load.
if TYPE_CHECKING:
    from taskmap.schedules.cpu.matmul.register_tile import emit_tile as emit_tile
else:
    emit_tile = lazily("taskmap.schedules.cpu.matmul.register_tile", "emit_tile")

_NEAR, _FAR_BYTES, _SHORT_PANEL, _WIDEST = 0.5, 71, 1 / 16, 4
"""The cost of loading a vector of a short panel, in multiply-adds; the bytes of a longer one that arrive during one
multiply-add; and the part of the second-level cache that a short panel of ``_WIDEST`` vectors takes at most. Measured
with AVX-512 on tiles of five shapes: 8 x 3 and 9 x 3 are up to a tenth faster than 6 x 4 on sums of 768 terms or more,
and not on shorter ones."""
_BROKEN_RUN = 1.3
"""The cost of a step that finds each row by a division, over that of one that finds all by one address: up to 1.25,
measured on 3 × 3 convolutions of bf16 with AVX-512, and uncertain."""
_LONG = 1024
_CHAIN = 512
"""The most terms of a longer sum of f32 added one after another: the rounding error grows with their number."""


@dataclass(frozen=True, slots=True)
class Tile:
    """``rows`` × ``vectors`` vector registers of accumulators."""

    rows: int
    vectors: int


_TILES = {
    64: (Tile(8, 3), Tile(6, 4), Tile(9, 3), Tile(12, 2), Tile(14, 2), Tile(24, 1)),
    32: (Tile(6, 2), Tile(4, 3), Tile(12, 1)),
    16: (Tile(6, 2), Tile(4, 3), Tile(12, 1)),
}


def tiles(target: CpuTarget) -> tuple[Tile, ...]:
    """The tiles that fit the vector registers of a target: accumulators, a row of B, and one broadcast element."""
    return _TILES[target.vector_bytes]


def tile_cost(extent: int, columns: int, tile: Tile, lanes: int, load: float = 0.5) -> float:
    """Cost, in vector multiply-adds, of covering extent × columns outputs with a tile; partial tiles at the edges cost
    less.

    A step costs its multiply-adds, half of its loads of A, and ``load`` for each vector of B; one of fewer than ten
    multiply-adds waits for its own results.
    """

    def step(rows: int, vectors: int) -> float:
        return max(rows * vectors + 0.5 * rows + load * vectors, 10)

    def strip(rows: int) -> float:
        whole, rest = divmod(columns, tile.vectors * lanes)
        return (whole * step(rows, tile.vectors) + sum(step(rows, v) for v, _ in column_groups(rest, lanes))) * (
            rows > 0
        )

    return (extent // tile.rows) * strip(tile.rows) + strip(extent % tile.rows)


def choose_tile(
    extent: Dim,
    columns: Dim,
    target: CpuTarget,
    lanes: int,
    grouped: bool = False,
    terms: Dim = 0,
    run: int | None = None,
) -> Tile:
    """The cheapest tile for extent × columns outputs; a symbolic extent counts as large. grouped: on dot products of
    neighbours, which take a register for the broadcast group of A. terms: those of the sum; 0 for a short panel. run:
    with ``grouped``, the rows of A that are equally spaced in memory before others follow; None if all are."""
    rows = extent if isinstance(extent, int) else 1024
    cols = columns if isinstance(columns, int) else 1024
    fitting = [t for t in tiles(target) if not grouped or _fits_grouped(t, target)]
    load = load_cost(target, terms)

    def cost(t: Tile) -> float:
        broken = run is not None and t.rows % run != 0 and run % t.rows != 0
        return tile_cost(rows, cols, t, lanes, load) * (_BROKEN_RUN if broken else 1.0)

    if run is not None:
        fitting += _of_runs(run, rows, target)
    best = min(fitting, key=cost)
    if rows >= best.rows:
        return best
    vectors = min(max(1, -(-cols // lanes)), max(1, _budget(target) // rows), 8)
    return Tile(rows, vectors)


def _fits_grouped(t: Tile, target: CpuTarget) -> bool:
    return (t.rows + 1) * t.vectors < target.vector_registers


def _of_runs(run: int, rows: int, target: CpuTarget) -> list[Tile]:
    """The tallest tile of each width that ends where a run of rows does, or that several tiles fill a run with."""
    heights = [h for h in range(min(rows, target.vector_registers), 0, -1) if h % run == 0 or run % h == 0]
    tall = ((Tile(h, v) for h in heights) for v in range(1, _WIDEST + 1))
    return [t for t in (next((t for t in each if _fits_grouped(t, target)), None) for each in tall) if t is not None]


def load_cost(target: CpuTarget, terms: Dim) -> float:
    """The cost of loading one vector of a panel of B of so many terms, in multiply-adds: more for a panel that takes
    much of the second-level cache, beside the rows of A and the next panel."""
    known = static_size(terms)
    if known is not None and known * _WIDEST * target.vector_bytes <= target.l2 * _SHORT_PANEL:
        return _NEAR
    return _NEAR + target.vector_bytes / _FAR_BYTES


def chain_of(terms: int | None, accumulate: DType) -> int:
    """The most terms of a sum of ``terms`` (None: symbolic) that a tile adds one after another; 0 if the sum is not
    split."""
    return _CHAIN if accumulate == f32 and (terms is None or terms > _LONG) else 0


def _budget(target: CpuTarget) -> int:
    return 24 if target.vector_registers >= 32 else 10
