"""A small constant matrix times a vector of expressions, in few operations.

Points come in pairs ±p, so rows of Bᵀ and columns of Aᵀ come in pairs that differ in signs alone:

    u = a d1 + b d3,  v = c d2 + e d4;    row p = u + v,  row -p = v - u          half of the multiplications
    u = m1 + m2,      v = m1 - m2;        every row reads a u or b v              for columns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.ir.builder import Builder
from taskmap.ir.construct import call, const
from taskmap.ir.nodes import Expr
from taskmap.ir.winograd import Matrix

Terms = list[tuple[float, Expr]]


def both_sides(
    b: Builder,
    matrix: Matrix,
    read: Callable[[int, int], Expr],
    write: Callable[[int, int, Expr], None],
) -> None:
    """matrix · X · matrixᵀ, for the X whose elements ``read(row, column)`` gives; ``write`` receives each result. X is
    read column by column, so that few of its elements are in registers at a time."""
    side = len(matrix[0])
    columns = [times(b, matrix, [b.let("d", read(i, j)) for i in range(side)]) for j in range(side)]
    for i, row in enumerate(zip(*columns, strict=True)):
        for j, value in enumerate(times(b, matrix, row)):
            write(i, j, value)


def times(b: Builder, matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """The product of ``matrix`` and ``values``, emitted into ``b``, each result and each common part named."""
    numbers = [[float(x) for x in row] for row in matrix]
    inputs = list(values)
    for at in _column_pairs(numbers):
        first, second = inputs[at], inputs[at + 1]
        total, difference = b.let("sum", first + second), b.let("difference", first - second)
        inputs[at], inputs[at + 1] = total, difference
        for row in numbers:
            row[at], row[at + 1] = (row[at], 0.0) if row[at] == row[at + 1] else (0.0, row[at])
    results: list[Expr] = []
    while len(results) < len(numbers):
        at = len(results)
        row = numbers[at]
        if at + 1 < len(numbers) and _mirrored(row, numbers[at + 1]):
            other = numbers[at + 1]
            same = _sum(b, [(x, v) for x, y, v in zip(row, other, inputs, strict=True) if x and x == y])
            turned = _sum(b, [(x, v) for x, y, v in zip(row, other, inputs, strict=True) if x and x == -y])
            results += [b.let("t", same + turned), b.let("t", same - turned)]
        else:
            results.append(_sum(b, [(x, v) for x, v in zip(row, inputs, strict=True) if x]))
    return results


def _column_pairs(numbers: Sequence[Sequence[float]]) -> list[int]:
    """The first of each two neighbouring columns that differ in signs alone, and do so in at least one row."""
    found: list[int] = []
    at = 0
    while at + 1 < len(numbers[0]):
        pairs = [(row[at], row[at + 1]) for row in numbers]
        if all(abs(x) == abs(y) for x, y in pairs) and len({x == y for x, y in pairs if x}) == 2:
            found.append(at)
            at += 1
        at += 1
    return found


def _mirrored(row: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(row, other, strict=True))
    return all(abs(x) == abs(y) for x, y in pairs) and len({x == y for x, y in pairs if x}) == 2


def _sum(b: Builder, terms: Terms) -> Expr:
    """The sum of factor * value, those of factor ±1 first."""
    terms = sorted(terms, key=lambda term: (abs(term[0]) != 1, term[0] < 0))
    factor, value = terms[0]
    total = value if factor == 1 else b.let("t", value * const(factor, value.dtype))
    for factor, value in terms[1:]:
        if abs(factor) == 1:
            step = total + value if factor == 1 else total - value
        else:
            step = call("fma", value, const(factor, value.dtype), total)
        total = b.let("t", step)
    return total
