"""The microkernel on tile registers: c[i, j] += a[i, k] · b[k, j] on up to 2 × 2 tiles of sums held in registers.

    for each step of k:   a = tiles of a, loaded;   b = tiles of b, loaded;   c[i][j] += a[i] · b[j]

It serves every entry of ``taskmap.ir.isa.amx``: bf16 with f32 sums, bytes with i32 sums. ``tile_unit`` asks the
selector for the instruction; ``multiply_tiles`` emits the product from wherever its operands' tiles lie, given as
regions with a stride between rows. A tile of a is ``TileUnit.rows`` rows of ``TileUnit.depth`` neighbours along k; a
tile of b holds groups of neighbours along k of ``TileUnit.columns`` columns, as ``graph.passes.weight_packing`` packs
them with ``together`` and ``filled``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import index
from taskmap.ir.isa.amx import PREFETCH, TileInstructions, tile_set
from taskmap.ir.isa.table import table_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Region, Scope
from taskmap.ir.select.microkernels import choose_for_thread, product_of_blocks
from taskmap.ir.select.tiles import TileChoice
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import DType, compute_type, i32

Place = tuple[Region, Expr]
"""The first element of a tile in memory, and the elements from one row to the next."""
Source = Callable[[int, Expr], Place]
"""The place of an operand's tile, by its number across the sum and its step along it."""
Ahead = Callable[[Expr], Sequence[Region]]
"""Lines of memory that later calls will read, by the step in which they are prefetched."""
Sums = tuple[Buffer, Expr]
"""A local buffer as wide as a panel, and the first row of a call's sums in it."""


@dataclass(frozen=True, slots=True)
class TileUnit:
    """The instructions of a product of tiles, and the number of tiles of a (``high``) and of b (``wide``) per step."""

    tiles: TileInstructions
    high: int = 2
    wide: int = 2

    @property
    def rows(self) -> int:
        """Rows of a tile of a."""
        return self.tiles.spec.m

    @property
    def columns(self) -> int:
        """Columns of a tile of b."""
        return self.tiles.spec.n

    @property
    def depth(self) -> int:
        """Terms of the sum that one step adds."""
        return self.tiles.spec.k

    @property
    def height(self) -> int:
        """Rows that one call of the microkernel computes."""
        return self.high * self.rows

    @property
    def width(self) -> int:
        """Columns that one call of the microkernel computes: of a panel of b."""
        return self.wide * self.columns


@lru_cache(maxsize=256)
def tile_choice(a: DType, b: DType, target: CpuTarget) -> TileChoice | None:
    """The selector's choice for the microkernel's statement; None for types that the template does not multiply."""
    bytes_only = a in BYTES and b in BYTES
    c = i32 if bytes_only else compute_type(a)
    if a.bytes >= c.bytes or a.bytes != b.bytes or not (a.is_float or bytes_only):
        return None
    return choose_for_thread(product_of_blocks(a, b, c), target, table_of(target))


def tile_unit(a: DType, b: DType, target: CpuTarget) -> TileUnit | None:
    """The instructions of ``target`` for products of tiles of these types, None if it has none."""
    choice = tile_choice(a, b, target)
    tiles = tile_set(choice.by) if choice is not None and choice.by is not None else None
    return None if tiles is None else TileUnit(tiles)


def multiply_tiles(
    b: Builder,
    unit: TileUnit,
    steps: Dim,
    a: Source,
    right: Source,
    out: Sums,
    *,
    tail: Source | None = None,
    start: Sums | None = None,
    ahead: Ahead | None = None,
) -> None:
    """``out`` = ``start`` + a · b over ``steps`` steps, for ``unit.height`` × ``unit.width`` sums.

    tail: the places of a's tiles for one more step; start: the sums of earlier steps, zeros if None; ahead: lines that
    each step prefetches.
    """
    tiles, spec = unit.tiles, unit.tiles.spec
    sums = [
        [b.allocate("acc", spec.c, (spec.m, spec.n), Scope.FRAGMENT) for _ in range(unit.wide)]
        for _ in range(unit.high)
    ]
    for i, j, acc in _each(sums):
        if start is not None:
            b.invoke(tiles.load_c, _whole(acc), _part(start, i, j, acc), index(unit.width))
        else:
            b.invoke(tiles.zero_c, _whole(acc))
    with b.loop("k", index(steps), unroll=1) as k:  # unrolled, it would need more addresses than there are registers
        _step(b, unit, sums, k, a, right)
        for line in ahead(k) if ahead is not None else ():
            b.invoke(PREFETCH, line)
    if tail is not None:
        _step(b, unit, sums, index(steps), tail, right)
    for i, j, acc in _each(sums):
        b.invoke(tiles.store_c, _whole(acc), _part(out, i, j, acc), index(unit.width))


def _step(b: Builder, unit: TileUnit, sums: list[list[Buffer]], k: Expr, a: Source, right: Source) -> None:
    """Loads are as late as possible, so that the first products need not wait for all of them."""
    tiles, spec = unit.tiles, unit.tiles.spec
    lefts: list[Buffer] = []
    rights = []
    for j in range(unit.wide):
        rights.append(b.allocate("b", spec.b, (spec.k // unit.tiles.group, spec.n * unit.tiles.group), Scope.FRAGMENT))
        b.invoke(tiles.load_b, _whole(rights[j]), *right(j, k))
        for i in range(unit.high):
            if not j:
                lefts.append(b.allocate("a", spec.a, (spec.m, spec.k), Scope.FRAGMENT))
                b.invoke(tiles.load_a, _whole(lefts[i]), *a(i, k))
            b.invoke(tiles.product, _whole(sums[i][j]), _whole(lefts[i]), _whole(rights[j]))


def _each(sums: list[list[Buffer]]) -> list[tuple[int, int, Buffer]]:
    return [(i, j, acc) for i, row in enumerate(sums) for j, acc in enumerate(row)]


def _whole(tile: Buffer) -> Region:
    return region(tile, (0, 0), tile.shape)


def _part(sums: Sums, i: int, j: int, tile: Buffer) -> Region:
    rows, columns = tile.shape
    buffer, first = sums
    return region(buffer, (first + index(rows) * i, index(columns) * j), tile.shape)
