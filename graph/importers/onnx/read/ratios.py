"""Floating-point sizes while a model is read: symbolic sizes times numbers, as exporters scale sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.read.assumptions import Assumptions
from taskmap.ir.construct import binary, cast, const, index, static_size
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType

FLOAT, DOUBLE = 1, 11
EXACT = {FLOAT: 1 << 23, DOUBLE: 1 << 52}
"""Up to this bound, integers and their quotients by integers round as the rules below require."""


class NotFoldedError(Exception):
    """The result cannot be expressed by sizes, so the operator computes it at run time."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The float nearest to ``top`` / ``bottom``, integers, ``top`` symbolic. Exact if ``bottom`` is a power of 2."""

    top: Expr
    bottom: int

    @property
    def exact(self) -> bool:
        """True if the value is represented without rounding."""
        return self.bottom & (self.bottom - 1) == 0

    def value(self, dtype: DType) -> Expr:
        """The ratio as an expression of type ``dtype``."""
        top = cast(self.top, dtype)
        return top if self.bottom == 1 else top / const(float(self.bottom), dtype)

    def floor(self) -> Expr:
        """The largest integer not above the ratio."""
        return self.top if self.bottom == 1 else binary("floordiv", self.top, index(self.bottom))

    def ceil(self) -> Expr:
        """The smallest integer not below the ratio."""
        return self.top if self.bottom == 1 else binary("floordiv", self.top + (self.bottom - 1), index(self.bottom))


def ratio(value: Any, elem: int, sizes: Assumptions) -> Ratio:
    """A symbolic integer or a ratio as a float of type ``elem``; records the assumption that it is exact."""
    if isinstance(value, Ratio):
        return _made(value.top, value.bottom, elem, sizes)
    return _made(value, 1, elem, sizes)


def _made(top: Any, bottom: int, elem: int, sizes: Assumptions) -> Ratio:
    if not isinstance(top, Expr) or static_size(top) is not None or bottom > EXACT[elem]:
        raise NotFoldedError
    sizes.at_least(EXACT[elem], top)
    sizes.at_least(top, 0)
    return Ratio(top, bottom)


def times(a: Any, b: Any, elem: int, sizes: Assumptions) -> Any:
    """The product of a ratio and a number."""
    if isinstance(b, Ratio):
        a, b = b, a
    if not isinstance(a, Ratio):
        return _rounded(float(a) * float(b), elem)
    if isinstance(b, Ratio) or not a.exact:
        raise NotFoldedError
    factor = _fraction(b)
    return _made(a.top * factor.numerator, a.bottom * factor.denominator, elem, sizes)


def over(a: Any, b: Any, elem: int, sizes: Assumptions) -> Any:
    """A ratio divided by a number."""
    if not isinstance(a, Ratio) or isinstance(b, Ratio) or not a.exact:
        raise NotFoldedError
    divisor = _fraction(b)
    if divisor.denominator != 1:
        divisor = 1 / divisor
        if divisor.denominator != 1:
            raise NotFoldedError
        return _made(a.top * divisor.numerator, a.bottom, elem, sizes)
    return _made(a.top, a.bottom * divisor.numerator, elem, sizes)


def plus(a: Any, b: Any, elem: int, sizes: Assumptions) -> Any:
    """The sum of an exact ratio and a number."""
    if isinstance(b, Ratio):
        a, b = b, a
    if not isinstance(a, Ratio) or isinstance(b, Ratio) or not a.exact:
        raise NotFoldedError
    term = Fraction(float(b))
    bottom = max(a.bottom, term.denominator)
    top = a.top * (bottom // a.bottom) + term.numerator * (bottom // term.denominator)
    return _made(top, bottom, elem, sizes)


def _rounded(value: float, elem: int) -> float:
    return float(np.float32(value)) if elem == FLOAT else value


def _fraction(value: Any) -> Fraction:
    number = float(value)
    if not number > 0 or number == float("inf"):
        raise NotFoldedError
    return Fraction(number)


def floor(value: Any) -> Any:
    """The largest integer not above a ratio or a number."""
    return value.floor() if isinstance(value, Ratio) else math.floor(value)


def ceil(value: Any) -> Any:
    """The smallest integer not below a ratio or a number."""
    return value.ceil() if isinstance(value, Ratio) else math.ceil(value)


def whole(value: Any) -> Any:
    """A ratio or a number with its fraction dropped."""
    return value.floor() if isinstance(value, Ratio) else math.trunc(value)
