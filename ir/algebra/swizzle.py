"""Swizzles: address bits mixed by xor, so that a column of a shared-memory tile is spread over all banks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.radix import Number


@dataclass(frozen=True, slots=True)
class Swizzle:
    """address ^ ((address >> base + shift) mod 2**bits << base): CuTe's Swizzle<bits, base, shift>.

    The low `base` bits stay, so that 2**base elements remain contiguous; the `bits` above them are mixed with as many
    bits that lie `shift` higher. Since shift >= bits, the latter do not change, and the function is its own inverse.
    """

    bits: int
    base: int
    shift: int

    def __call__(self, address: Number, xor: Callable[[Number, Number], Number] = operator.xor) -> Number:
        """The swizzled address, of an int or of an expression that xor accepts."""
        high = radix.digit(address, 1 << self.base + self.shift, 1 << self.bits)
        return xor(address, radix.times(high, 1 << self.base))

    @property
    def block(self) -> int:
        """The number of elements in an aligned block; addresses only move within such blocks."""
        return 1 << self.base + self.bits

    @property
    def period(self) -> int:
        """The number whose multiples commute with the swizzle: adding one to an address adds it to the swizzled one."""
        return 1 << self.base + self.shift + self.bits
