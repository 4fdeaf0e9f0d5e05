"""Rows of register tiles in pieces, by the instructions chosen for them.

A row of an outer product is the statement c[j] + a · b[j], j < n; a copied row is copy(x[j]). The cheapest form of a
statement is a concatenation of vectors, each by one instruction; each is a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec, MoveSpec
from taskmap.ir.select.choose import Choice, choose
from taskmap.ir.select.terms import Term, broadcast, cast, load, ramp, var
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


def product_row(n: int, a: DType, b: DType, c: DType) -> Term:
    """c[j] + a · b[j] in c's type, j < n: the statement of one row of an outer product."""
    total = load("c", c, ramp(var("c"), 1, n))
    left: Term = broadcast(load("a", a, var("a")), n)
    right = load("b", b, ramp(var("b"), 1, n))
    left, right = (x if x.type[0] == c else cast(c, x) for x in (left, right))
    return Term("add", (), (total, Term("mul", (), (left, right))))


def copied_row(n: int, to: DType, of: DType) -> Term:
    """copy(x[j]), converted to ``to``, j < n."""
    return Term("copy", (to,), (load("x", of, ramp(var("x"), 1, n)),))


@lru_cache(maxsize=4096)
def row_choice(statement: Term, target: Target, table: tuple[Instruction, ...]) -> Choice:
    """The choice of instructions for a row, among those that take it as it lies in registers."""
    return choose(statement, target, tuple(e for e in table if _takes_rows(e)))


@lru_cache(maxsize=4096)
def product_pieces(
    n: int, a: DType, b: DType, c: DType, target: Target, table: tuple[Instruction, ...]
) -> tuple[Piece, ...]:
    """``n`` columns of an outer product added to c, divided among the instructions of ``target``."""
    return pieces_of(row_choice(product_row(n, a, b, c), target, table).term) if n else ()


@lru_cache(maxsize=4096)
def copy_pieces(n: int, to: DType, of: DType, target: Target, table: tuple[Instruction, ...]) -> tuple[Piece, ...]:
    """``n`` columns divided for copying, with a conversion if the types differ."""
    return pieces_of(row_choice(copied_row(n, to, of), target, table).term) if n else ()


def _takes_rows(e: Instruction) -> bool:
    """True for accesses, and for products with a row of c, an element of a and a row of b in order."""
    if not isinstance(e.spec, MatMulSpec):
        return isinstance(e.spec, MoveSpec)
    row = repeat(1, e.columns)
    return e.owner_c == row and e.owner_b == row and e.owner_a == repeat(1, 1)


def pieces_of(term: Term) -> tuple[Piece, ...]:
    """The vectors of a term, and their instructions; lanes without an instruction are scalar."""
    found: list[Piece] = []
    start = 0
    for count, lanes, by in _vectors(term):
        last = found[-1] if found else None
        if last is not None and (last.lanes, last.by) == (lanes, by):
            found[-1] = Piece(last.start, last.count + count, lanes, by)
        else:
            found.append(Piece(start, count, lanes, by))
        start += count * lanes
    return tuple(found)


def _vectors(term: Term) -> list[tuple[int, int, Instruction | None]]:
    if term.op == "concat":
        return [v for part in term.args for v in _vectors(part)]
    if term.op == "each":
        inner = _vectors(term.args[0])
        count = int(term.data[1])
        return [(inner[0][0] * count, *inner[0][1:])] if len(inner) == 1 else inner * count
    if term.op in ("apply", "moved"):
        return [(1, term.type[1], term.data[0])]
    return [(term.type[1], 1, None)]
