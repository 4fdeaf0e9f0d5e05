"""Modes: the digits of one dimension's index in a layout, each with its address stride.

An ordinary dimension has one digit; a blocked one has one for the block and one inside it: channel c of NCHW16c has the
digits (c div 16, stride 16·H·W) and (c mod 16, stride 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.radix import Number

Mode = tuple[tuple[Number, Number], ...]  # (extent, stride), slowest first


def normal_mode(extent: Number, mode: Mode) -> Mode:
    """The normal form of the mode of a dimension of this extent, as for the digits of a task mapping.

    Digits that count in equal steps are merged; no digit is larger than the index can make it (10 channels in blocks of
    16 are just 10 channels); digits that are always 0 are dropped.
    """
    return tuple((digit, stride) for digit, stride in _clamped(extent, _joined(mode)) if not radix.is_int(digit, 1))


def _joined(mode: Mode) -> Mode:
    result: list[tuple[Number, Number]] = []
    for extent, stride in mode:
        if radix.is_int(extent, 1):
            continue
        if result and same((result[-1][1],), (radix.times(extent, stride),)):
            result[-1] = (radix.times(result[-1][0], extent), stride)
        else:
            result.append((extent, stride))
    return tuple(result)


def _clamped(extent: Number, mode: Mode) -> Mode:
    if not isinstance(extent, int):
        return mode
    steps = radix.weights([digit for digit, _ in mode])
    return tuple(
        (min(digit, radix.ceil_div(extent, step)), stride) for (digit, stride), step in zip(mode, steps, strict=True)
    )


def mode_address(index: Number, mode: Mode) -> Number:
    """The address of one index: its digits times their strides. The slowest digit needs no modulo."""
    steps = radix.weights([extent for extent, _ in mode])
    return radix.combine(
        (radix.digit(index, step, extent if place else None), stride)
        for place, ((extent, stride), step) in enumerate(zip(mode, steps, strict=True))
    )


def same(a: Sequence[Number], b: Sequence[Number]) -> bool:
    """Element-wise equality in which only True counts as equal: an expression's == may return another expression."""
    return len(a) == len(b) and all(x is y or (x == y) is True for x, y in zip(a, b, strict=True))


def flat(mode: Mode) -> tuple[Number, ...]:
    """The extents and strides of a mode, one after the other."""
    return tuple(itertools.chain.from_iterable(mode))
