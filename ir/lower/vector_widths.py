"""The division of a row of registers into vectors, by the instructions that a target has for its element type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.algebra.register_tile import is_in_order
from taskmap.ir.isa.table import Instruction, MatMulSpec, MoveSpec, instructions_for
from taskmap.ir.nodes import Buffer
from taskmap.ir.target import Target
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` neighbouring vectors of ``lanes`` columns from column ``start``; ``by`` is the instruction for each.

    The last piece may have one lane and no instruction: plain scalar code.
    """

    start: int
    count: int
    lanes: int
    by: Instruction | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The instructions of a target for one row of registers."""

    target: Target
    table: tuple[Instruction, ...]

    def of_move(self, n: int, *dtypes: DType) -> tuple[Piece, ...]:
        """``n`` columns divided for copying, with a conversion if there are two types."""
        return _cut_moves(self, n, dtypes)

    def of_matmul(self, n: int, a: DType, b: DType, c: DType) -> tuple[Piece, ...]:
        """``n`` columns divided for an outer product added to c, by instructions that take a and b unconverted."""
        return _cut(n, _rows(self, MatMulSpec(1, n, 1, a, b, c)))


def is_addressable(buffer: Buffer) -> bool:
    """True if neighbours in a buffer can be accessed together: no layout or owner separates them."""
    return buffer.layout is None and (buffer.owner is None or is_in_order(buffer.owner))


@lru_cache(maxsize=4096)
def _cut_moves(columns: Columns, n: int, dtypes: tuple[DType, ...]) -> tuple[Piece, ...]:
    found = [(instructions_for(columns.target, MoveSpec(n, t), columns.table).instructions, t) for t in dtypes]
    widths = [{i.columns for i in each if not i.text and i.alignment <= t.bytes} for each, t in found]
    shared = set.intersection(*widths) if widths else set()
    return _cut(n, [i for i in found[0][0] if i.columns in shared])


@lru_cache(maxsize=4096)
def _rows(columns: Columns, spec: MatMulSpec) -> tuple[Instruction, ...]:
    """The instructions for outer products with a row of c, one element of a and a row of b as operands."""
    found = instructions_for(columns.target, spec, columns.table).instructions
    return tuple(i for i in found if i.workers == 1 and i.alignment <= spec.c.bytes and _is_row(i))


def _is_row(i: Instruction) -> bool:
    row = repeat(1, i.columns)
    return i.owner_c == row and i.owner_b == row and i.owner_a == repeat(1, 1)


def _cut(n: int, instructions: Iterable[Instruction]) -> tuple[Piece, ...]:
    """``n`` columns in pieces: the widest instruction that fits, repeatedly."""
    pieces: list[Piece] = []
    start = 0
    for instruction in instructions:
        count = (n - start) // instruction.columns
        if count:
            pieces.append(Piece(start, count, instruction.columns, instruction))
            start += count * instruction.columns
    return (*pieces, Piece(start, n - start, 1)) if start < n else tuple(pieces)
