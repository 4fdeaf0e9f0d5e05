"""The products of CPU microkernels as statements: tiles that one thread holds in the order in which memory packs them.

    rows     c[1, lanes] += a[1, g] @ b[g, lanes]                 vectors; b in groups of g neighbours along the sum
    blocks   c[32, 32] += a[32, k] @ b[k, 32]                     2 × 2 tile registers; b in groups, too

The groups are as large as sums are wide: two of bf16, four bytes. Which instruction computes a statement, if any, is
the selector's choice among all entries of the target.
"""

from __future__ import annotations

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.isa.amx import ROW_BYTES, ROWS
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.select.tiles import Tile, TileChoice, choose_tiles
from taskmap.ir.target import Target
from taskmap.ir.types import DType

Statement = tuple[Tile, Tile, Tile]
"""c, a and b."""


def product_of_rows(a: DType, b: DType, c: DType, lanes: int) -> Statement:
    """A row of ``lanes`` sums, and one group of terms."""
    size = max(1, c.bytes // a.bytes)
    return (
        Tile("c", c, (1, lanes), repeat(1, lanes)),
        Tile("a", a, (1, size), repeat(1, size)),
        Tile("b", b, (size, lanes), repeat(size, lanes, order=(1, 0))),
    )


def product_of_blocks(a: DType, b: DType, c: DType) -> Statement:
    """2 × 2 tile registers of sums, and as many terms as a row of a tile of a holds."""
    size, depth, columns = max(1, c.bytes // a.bytes), ROW_BYTES // a.bytes, ROW_BYTES // c.bytes
    groups = repeat(depth // size, 1) * repeat(1, columns) * repeat(size, 1)
    return (
        Tile("c", c, (2 * ROWS, 2 * columns), repeat(2, 2) * repeat(ROWS, columns)),
        Tile("a", a, (2 * ROWS, depth), repeat(2, 1) * repeat(ROWS, depth)),
        Tile("b", b, (depth, 2 * columns), repeat(1, 2) * groups),
    )


def choose_for_thread(statement: Statement, target: Target, table: tuple[Instruction, ...]) -> TileChoice:
    """The instruction of one thread for a microkernel's statement."""
    return choose_tiles(*statement, target, table, workers=1)


def statement_of(entry: Instruction) -> Statement | None:
    """The microkernel's statement that ``entry`` computes: for reports; None for rows of outer products."""
    spec = entry.spec
    if not isinstance(spec, MatMulSpec) or entry.targets.kind != "cpu" or spec.k == 1:
        return None
    if entry.parameters:
        return product_of_blocks(spec.a, spec.b, spec.c)
    return product_of_rows(spec.a, spec.b, spec.c, spec.n)
