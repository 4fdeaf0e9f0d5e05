"""The division of a row of registers into vectors, by the instructions that the selector finds for it."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.register_tile import is_in_order
from taskmap.ir.isa.table import Instruction
from taskmap.ir.nodes import Buffer
from taskmap.ir.select.rows import Piece, copy_pieces, product_pieces
from taskmap.ir.target import Target
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class Columns:
    """The instructions of a target for one row of registers."""

    target: Target
    table: tuple[Instruction, ...]

    def of_move(self, n: int, to: DType, of: DType | None = None) -> tuple[Piece, ...]:
        """``n`` columns divided for copying, with a conversion if there are two types."""
        return copy_pieces(n, to, to if of is None else of, self.target, self.table)

    def of_matmul(self, n: int, a: DType, b: DType, c: DType) -> tuple[Piece, ...]:
        """``n`` columns divided for an outer product added to c, of operands as they are or converted to c's type."""
        return product_pieces(n, a, b, c, self.target, self.table)


def is_addressable(buffer: Buffer) -> bool:
    """True if neighbours in a buffer can be accessed together: no layout or owner separates them."""
    return buffer.layout is None and (buffer.owner is None or is_in_order(buffer.owner))
