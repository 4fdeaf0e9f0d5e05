"""Mixed-radix numbers, on ints and on symbolic expressions alike.

A worker number, a slot number and an index along a blocked dimension are all numbers whose digits have a meaning.
Splitting and joining digits is the only arithmetic that task mappings and layouts need, so it is written once, here. A
value is an int or any object with ``+ * // %``; digits are listed slowest first; operations with a known 0 or 1 are
simplified away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

LARGEST = 1 << 20  # the most elements or tasks that are ever enumerated one by one: a few seconds
Number = Any  # an int, or an expression that supports + * // %


def is_int(value: Number, expected: int) -> bool:
    """True if value is known to be `expected`. Expressions are never compared: ``==`` may build another expression."""
    return isinstance(value, int) and value == expected


def plus(a: Number, b: Number) -> Number:
    """a + b, simplified if one of them is a known 0."""
    if is_int(a, 0):
        return b
    if is_int(b, 0):
        return a
    return b + a if isinstance(a, int) else a + b  # the expression comes first: it may lack __radd__


def times(a: Number, b: Number) -> Number:
    """a * b, simplified if one of them is a known 0 or 1."""
    if is_int(a, 0) or is_int(b, 0):
        return 0
    if is_int(a, 1):
        return b
    if is_int(b, 1):
        return a
    return b * a if isinstance(a, int) else a * b


def product(factors: Iterable[Number]) -> Number:
    """The product of the factors; 1 without factors."""
    result: Number = 1
    for factor in factors:
        result = times(result, factor)
    return result


def ceil_div(a: Number, b: int) -> Number:
    """a / b rounded up."""
    return a if b == 1 else (a + (b - 1)) // b


def weights(extents: Sequence[Number]) -> tuple[Number, ...]:
    """The value of one step of each digit, the product of the faster extents: (32, 4, 1) for (2, 8, 4)."""
    result: list[Number] = []
    weight: Number = 1
    for extent in reversed(extents):
        result.append(weight)
        weight = times(extent, weight)
    return tuple(reversed(result))


def digit(number: Number, weight: Number, extent: Number | None) -> Number:
    """(number // weight) % extent: one digit of a number. extent None: the slowest digit, which needs no modulo."""
    if not is_int(weight, 1):
        number = number // weight
    return number if extent is None else number % extent


def split(number: Number, extents: Sequence[Number]) -> tuple[Number, ...]:
    """The digits of number, which must lie in [0, product(extents))."""
    units = [is_int(extent, 1) for extent in extents]
    if all(units):
        return (0,) * len(extents)
    top = units.index(False)
    return tuple(
        0 if units[position] else digit(number, weight, None if position == top else extent)
        for position, (weight, extent) in enumerate(zip(weights(extents), extents, strict=True))
    )


def combine(terms: Iterable[tuple[Number, Number]]) -> Number:
    """Sum of digit * step over the (digit, step) pairs."""
    total: Number = 0
    for value, step in terms:
        total = plus(total, times(value, step))
    return total


def join(digits: Sequence[Number], extents: Sequence[Number]) -> Number:
    """The number with these digits: the inverse of split."""
    return combine(zip(digits, weights(extents), strict=True))
