"""The register-blocked heart of every contraction on a CPU: an mr × (nv · lanes) tile of outputs held in registers.

    for k:   b = a row of B;   a = a column of A;   acc += a @ b

The accumulators must stay in registers, so the tile is written out; the caller's loops around it are not.
Method: the outer-product kernel of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import cast, constant_dim, index
from taskmap.ir.mapping import repeat
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind, Scope
from taskmap.ir.target import Target
from taskmap.ir.types import DType
from taskmap.schedules.cpu.loops import column_groups
from taskmap.schedules.values import Values

WRITTEN_OUT = 9
"""Rounds of the innermost summed axes that are written out."""

Element = Callable[[Sequence[Expr], Expr, Values], Expr]
"""An operand's element from (summed indices, row or column of the tile, values)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """``rows`` × ``vectors`` vector registers of accumulators."""

    rows: int
    vectors: int


_TILES = {
    64: (Tile(8, 3), Tile(6, 4), Tile(7, 4), Tile(9, 3), Tile(12, 2), Tile(14, 2), Tile(24, 1)),
    32: (Tile(6, 2), Tile(4, 3), Tile(12, 1)),
    16: (Tile(6, 2), Tile(4, 3), Tile(12, 1)),
}


def tiles(target: Target) -> tuple[Tile, ...]:
    """The tiles that fit the vector registers of a target: accumulators, a row of B, and one broadcast element."""
    return _TILES[target.vector_bytes]


def tile_cost(extent: int, columns: int, tile: Tile, lanes: int) -> float:
    """Cost in vector multiply-adds of covering extent × columns outputs with a tile, its edges at reduced size.

    A step costs its multiply-adds and half of its loads; one of fewer than ten waits for its own results.
    """

    def step(rows: int, vectors: int) -> float:
        return max(rows * vectors + 0.5 * (rows + 2 * vectors), 10)

    def strip(rows: int) -> float:
        whole, rest = divmod(columns, tile.vectors * lanes)
        return (whole * step(rows, tile.vectors) + sum(step(rows, v) for v, _ in column_groups(rest, lanes))) * (
            rows > 0
        )

    return (extent // tile.rows) * strip(tile.rows) + strip(extent % tile.rows)


def choose_tile(extent: Dim, columns: Dim, target: Target, lanes: int) -> Tile:
    """The cheapest tile for extent × columns outputs; a symbolic extent counts as large."""
    rows = extent if isinstance(extent, int) else 1024
    cols = columns if isinstance(columns, int) else 1024
    best = min(tiles(target), key=lambda t: tile_cost(rows, cols, t, lanes))
    if rows >= best.rows:
        return best
    vectors = min(max(1, -(-cols // lanes)), max(1, _budget(target) // rows), 8)
    return Tile(rows, vectors)


def _budget(target: Target) -> int:
    return 24 if target.vector_registers >= 32 else 10


def emit_tile(
    b: Builder,
    values: Values,
    rows: int,
    groups: Sequence[tuple[int, int]],
    k: Sequence[Dim],
    a: Element,
    element_b: Element,
    out: Buffer,
    accumulate: DType,
    *,
    row: Expr | None = None,
    resume: bool = False,
) -> None:
    """Multiply a tile and leave it in the local buffer ``out``, of as many columns, from ``row`` on (default 0).

    groups: how the columns are cut into vectors; k: extents of the summed axes, outermost first; resume: add to what
    ``out`` holds. The product is a spec: lowering does it with the instruction that the target has for it.
    """
    first = index(0) if row is None else row
    column = 0
    for vectors, width in groups:
        owner = repeat(rows, vectors) * repeat(1, width)
        acc = b.allocate("acc", accumulate, owner.task_shape, Scope.REGISTER, owner=owner)
        place = region(out, (first, column), acc.shape)
        if resume:
            b.move(acc, place)
        else:
            b.fill(acc, 0.0)
        inside = values.nested()
        with _steps(b, k) as at:
            for v, extent in zip(at, k, strict=True):
                inside.bind(v, extent)
            left = b.allocate("a", accumulate, (rows, 1), Scope.REGISTER)
            right = b.allocate("b", accumulate, (1, vectors * width), Scope.REGISTER)
            for j in range(0, vectors * width, width):
                with b.loop("lane", width, LoopKind.VECTOR) as lane:
                    step = inside.nested()
                    step.bind(lane, width)
                    b.store(right, (0, lane + j), cast(element_b(at, lane + (column + j), step), accumulate))
            step = inside.nested()
            for i in range(rows):
                b.store(left, (i, 0), cast(a(at, index(i), step), accumulate))
            b.matmul(acc, left, right)
        b.move(place, acc)
        column += vectors * width


@contextmanager
def _steps(b: Builder, k: Sequence[Dim]) -> Iterator[tuple[Expr, ...]]:
    """Loops over the summed axes. Of the inner ones the C compiler writes out what few rounds they make together: the
    processor would mispredict their ends."""
    rounds = 1
    hints: list[int] = []
    at: list[Expr] = []
    for extent in reversed(k):
        known = constant_dim(extent)
        rounds = rounds * known if known is not None else WRITTEN_OUT + 1
        hints.insert(0, known if known is not None and 1 < rounds <= WRITTEN_OUT else 0)
    with ExitStack() as stack:
        for d, (extent, unroll) in enumerate(zip(k, hints, strict=True)):
            at.append(stack.enter_context(b.loop(f"k{d}", index(extent), unroll=unroll)))
        yield tuple(at)
