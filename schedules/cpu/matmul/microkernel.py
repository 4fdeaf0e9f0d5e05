"""The register-blocked core of every contraction on a CPU: an mr × (nv · lanes) tile of outputs held in registers.

    for k:   b = a row of B;   a = a column of A;   acc += a @ b

The accumulators must stay in registers, so the tile is unrolled; the caller's loops around it are not. Method: the
outer-product kernel of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import cast, ceil_div, const, index, minimum, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind, Scope
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import DType, f32
from taskmap.schedules.common.inline import Inliner

WRITTEN_OUT = 9
"""Iterations of the innermost summed axes that are unrolled."""

_LONG = 1024
_CHAIN = 512
"""The most terms of a longer sum of f32 added one after another: the rounding error grows with their number."""

Element = Callable[[Sequence[Expr], Expr, Inliner], Expr]
"""An operand's element from (summed indices, row or column of the tile, values)."""


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


def tile_cost(extent: int, columns: int, tile: Tile, lanes: int) -> float:
    """Cost, in vector multiply-adds, of covering extent × columns outputs with a tile; partial tiles at the edges cost
    less.

    A step costs its multiply-adds and half of its loads; one of fewer than ten multiply-adds waits for its own results.
    """

    def step(rows: int, vectors: int) -> float:
        return max(rows * vectors + 0.5 * (rows + vectors), 10)

    def strip(rows: int) -> float:
        whole, rest = divmod(columns, tile.vectors * lanes)
        return (whole * step(rows, tile.vectors) + sum(step(rows, v) for v, _ in column_groups(rest, lanes))) * (
            rows > 0
        )

    return (extent // tile.rows) * strip(tile.rows) + strip(extent % tile.rows)


def choose_tile(extent: Dim, columns: Dim, target: CpuTarget, lanes: int, grouped: bool = False) -> Tile:
    """The cheapest tile for extent × columns outputs; a symbolic extent counts as large. grouped: on dot products of
    neighbours, which take a register for the broadcast group of A."""
    rows = extent if isinstance(extent, int) else 1024
    cols = columns if isinstance(columns, int) else 1024
    fitting = [t for t in tiles(target) if not grouped or (t.rows + 1) * t.vectors < target.vector_registers]
    best = min(fitting, key=lambda t: tile_cost(rows, cols, t, lanes))
    if rows >= best.rows:
        return best
    vectors = min(max(1, -(-cols // lanes)), max(1, _budget(target) // rows), 8)
    return Tile(rows, vectors)


def chain_of(terms: int | None, accumulate: DType) -> int:
    """The most terms of a sum of ``terms`` (None: symbolic) that a tile adds one after another; 0 if the sum is not
    split."""
    return _CHAIN if accumulate == f32 and (terms is None or terms > _LONG) else 0


def _budget(target: CpuTarget) -> int:
    return 24 if target.vector_registers >= 32 else 10


def emit_tile(
    b: Builder,
    values: Inliner,
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
    chain: int = 0,
    add: bool = False,
) -> None:
    """Multiply a tile into the local buffer ``out``, of equally many columns, from ``row`` on (default 0).

    groups: the columns as groups of vectors; k: extents of the summed axes, outermost first; resume: add to the
    contents of ``out``; chain: split the sum into parts of about this many terms, each of which is added to ``out`` (0:
    do not split); add: add the whole sum to ``out``. The product is a spec: lowering selects the target's instruction
    for it.
    """
    first = index(0) if row is None else row
    column = 0
    for vectors, width in groups:
        with _parts(b, values, k, chain) as (part, extents, position):
            owner = repeat(rows, vectors) * repeat(1, width)
            acc = b.allocate("acc", accumulate, owner.task_shape, Scope.REGISTER, owner=owner)
            place = region(out, (first, column), acc.shape)
            if resume:
                b.move(acc, place)
            else:
                b.fill(acc, const(0, accumulate))
            inside = part.nested()
            with steps_over(b, extents) as steps:
                for v, extent in zip(steps, extents, strict=True):
                    inside.bind(v, extent)
                at = position(steps)
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
            if chain or add:
                _add(b, out, acc, rows, vectors, width, first, column)
            else:
                b.move(place, acc)
        column += vectors * width


def _add(b: Builder, out: Buffer, acc: Buffer, rows: int, vectors: int, width: int, first: Expr, column: int) -> None:
    """out += acc"""
    for i in range(rows):
        for j in range(0, vectors * width, width):
            with b.loop("lane", width, LoopKind.VECTOR) as lane:
                there = (first + i, lane + (column + j))
                b.store(out, there, out[there] + acc[i, lane + j])


Position = Callable[[Sequence[Expr]], tuple[Expr, ...]]


@contextmanager
def _parts(b: Builder, values: Inliner, k: Sequence[Dim], chain: int) -> Iterator[tuple[Inliner, list[Dim], Position]]:
    """A loop over parts of the sum, ``chain`` terms or a few less each: yields the values inside, the extents of a
    part, and the summed indices of one of its steps. Without ``chain`` there is no such loop."""
    if not chain:
        yield values, list(k), tuple
        return
    cut, inside_cut = len(k) - 1, 1
    while cut and (size := static_size(k[cut])) is not None and size * inside_cut <= chain:
        cut, inside_cut = cut - 1, size * inside_cut
    depth = chain // inside_cut
    inside = values.nested()
    with b.grid([f"k{d}" for d in range(cut)], [index(n) for n in k[:cut]]) as around:
        for v, extent in zip(around, k, strict=False):
            inside.bind(v, extent)
        count = ceil_div(k[cut], depth)
        with b.loop("part", index(count)) as part:
            inside.bind(part, count)
            start = inside.simplifier(part * depth)
            length = inside.simplifier.dim(minimum(index(k[cut]) - start, depth))
            yield inside, [length, *k[cut + 1 :]], lambda steps: (*around, start + steps[0], *steps[1:])


@contextmanager
def steps_over(b: Builder, k: Sequence[Dim]) -> Iterator[tuple[Expr, ...]]:
    """Loops over the summed axes. The C compiler unrolls the inner ones if they make few iterations together, because
    the processor would mispredict their ends."""
    rounds = 1
    hints: list[int] = []
    at: list[Expr] = []
    for extent in reversed(k):
        known = static_size(extent)
        rounds = rounds * known if known is not None else WRITTEN_OUT + 1
        hints.insert(0, known if known is not None and 1 < rounds <= WRITTEN_OUT else 0)
    with ExitStack() as stack:
        for d, (extent, unroll) in enumerate(zip(k, hints, strict=True)):
            at.append(stack.enter_context(b.loop(f"k{d}", index(extent), unroll=unroll)))
        yield tuple(at)
