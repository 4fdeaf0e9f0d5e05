"""Quotients that are rounded to small integers are products with a reciprocal, corrected once.

    clamp(round(x / s), ±256)   ->   x' = clamp(x, ±260 s);  q = x' · r;  round(q + (x' - q · s) · r)      r = 1 / s

If a zero point is added and the sum limited to the integers of a byte, x is limited so that the sum is, too. s is a
constant. The correction by two fused multiply-adds leaves at most the last bit of a quotient in doubt, which
matters only beside the halves k + 1/2. So the floats beside each of these, for all k in question, are tried when the
graph is compiled: the integers are the same for every x, or the division stays. A division takes longer than all else
that quantises a number. Source of the correction: Markstein, "Computation of elementary functions on the IBM RISC
System/6000 processor" (1990).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.analysis.classify import definition, redefined
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, rewrite
from taskmap.ir.construct import call, cast, const, constant_value, maximum, minimum, select
from taskmap.ir.nodes import Binary, Call, Cast, Expr
from taskmap.ir.types import DType, f32, i32
from taskmap.ir.visit import map_expr

_BOUND = 256
"""The integers to which rounded quotients are limited: those of bytes, and one more on each side."""
_REACH = 260
"""Quotients up to which the correction is tried."""
_BESIDE = 3
"""Floats on each side of a half that are tried."""
_SMALLEST, _LARGEST = 2.0**-60, 2.0**60
"""Divisors whose quotients and remainders neither overflow nor lose bits, within reach."""
_UNSURE = 2.0**-40
"""The part of a number by which an f64 sum may be off: beside a rounding boundary it decides nothing."""


@dataclass(frozen=True, slots=True)
class MultiplyByReciprocals(GraphPass):
    """Numbers are quantised without a division."""

    name = "multiply-by-reciprocals"
    before = "a number is divided by a constant, rounded, and limited to integers of nine bits"
    after = "it is limited, multiplied by the reciprocal and corrected, and rounded"
    why_here = "after constants are folded; before functions of bytes are tabulated, which keeps one form of them"

    def run(self, graph: Graph) -> Graph:
        """The same graph with fewer divisions."""
        return rewrite(graph, _visit)


def _visit(node: Node) -> Node:
    if not node.is_compute:
        return node
    d = definition(node)
    body = map_expr(map_expr(d.body, _byte), _product)  # bytes first: they hold rounded quotients
    return node if body is d.body else redefined(node, node.inputs, replace(d, body=body))


def _product(e: Expr) -> Expr | None:
    """The limited and rounded quotient ``e`` as a product; None for anything else."""
    found = _limited_quotient(e)
    if found is None:
        return None
    most = float(np.float32(_REACH) * np.float32(found.divisor))
    return found.rounded(maximum(minimum(found.x, const(most, f32)), const(-most, f32)))


def _byte(e: Expr) -> Expr | None:
    """A rounded quotient plus a zero point, limited to the integers of a byte, with these limits on the number that is
    divided; None for anything else. As before, a NaN becomes the lowest integer."""
    below = _limited(e, "min", i32)
    above = None if below is None else _limited(below[0], "max", i32)
    if below is None or above is None:
        return None
    whole, zero = above[0], 0
    if isinstance(whole, Binary) and whole.op == "add" and (given := constant_value(whole.b)) is not None:
        whole, zero = whole.a, int(given)
    lowest = _limited(whole, "max", i32)
    if lowest is None or not isinstance(lowest[0], Cast) or lowest[1] >= -_BOUND + 1:
        return None
    found, low, high = _limited_quotient(lowest[0].a), int(above[1]) - zero, int(below[1]) - zero
    if found is None or not -_BOUND < low < high < _BOUND:
        return None
    ends = np.array([low, high], np.float32) * np.float32(found.divisor)
    if not (np.rint(_corrected(ends, np.float32(found.divisor), np.float32(found.reciprocal))) == [low, high]).all():
        return None
    least, most = (const(float(x), f32) for x in ends)
    x = select(found.x > least, found.x, least)
    return cast(found.rounded(select(x < most, x, most)), i32) + zero


@dataclass(frozen=True, slots=True)
class _Quotient:
    """round(x / divisor), where the products with ``reciprocal``, corrected once, round to the same integers."""

    x: Expr
    divisor: float
    reciprocal: float

    def rounded(self, x: Expr) -> Expr:
        """The integer, as a float, of a number that may replace x."""
        q = x * const(self.reciprocal, f32)
        rest = call("fma", q, const(-self.divisor, f32), x)
        return call("round", call("fma", rest, const(self.reciprocal, f32), q))


def _limited_quotient(e: Expr) -> _Quotient | None:
    """A rounded quotient by a constant that is limited to the integers of nine bits; None for anything else."""
    low = _limited(e, "max", f32)
    high = _limited(low[0], "min", f32) if low is not None else None
    if low is None or high is None or (low[1], high[1]) != (-_BOUND, _BOUND):
        return None
    rounded = high[0]
    if not isinstance(rounded, Call) or rounded.name != "round" or rounded.dtype != f32:
        return None
    (quotient,) = rounded.args
    if not isinstance(quotient, Binary) or quotient.op != "div" or quotient.lanes != 1:
        return None
    divisor = constant_value(quotient.b)
    reciprocal = None if divisor is None else corrected_reciprocal(float(divisor))
    return None if divisor is None or reciprocal is None else _Quotient(quotient.a, float(divisor), reciprocal)


def _limited(e: Expr, op: str, dtype: DType) -> tuple[Expr, float] | None:
    """The value of this type that ``e`` limits by ``op``, and the limit."""
    if not isinstance(e, Binary) or e.op != op or e.dtype != dtype:
        return None
    limit = constant_value(e.b)
    return None if limit is None else (e.a, float(limit))


@lru_cache(maxsize=1024)
def corrected_reciprocal(divisor: float) -> float | None:
    """1 / ``divisor`` in f32, if products with it, corrected once, round to the same integers as quotients do for every
    quotient within reach; None if they do not, or if the divisor is not a positive number of moderate size."""
    s = np.float32(divisor)
    if not _SMALLEST < float(s) < _LARGEST:
        return None
    r = np.float32(1) / s
    halves = (np.arange(-_REACH - 2, _REACH + 2, dtype=np.float64) + 0.5) * np.float64(s)
    beside = halves.astype(np.float32)
    tried = [beside]
    for towards in (-np.inf, np.inf):
        x = beside
        for _ in range(_BESIDE):
            x = np.nextafter(x, np.float32(towards))
            tried.append(x)
    x = np.concatenate(tried)
    same = np.rint(x / s) == np.rint(_corrected(x, s, r))
    return float(r) if same.all() else None


def _corrected(x: NDArray[np.float32], s: np.float32, r: np.float32) -> NDArray[np.float32]:
    """The corrected products, or NaN where f64 does not decide their rounding to f32."""
    q = x * r
    rest = (x.astype(np.float64) - q.astype(np.float64) * np.float64(s)).astype(np.float32)  # the difference is exact
    total = q.astype(np.float64) + rest.astype(np.float64) * np.float64(r)
    low, high = ((total * (1 + sign * _UNSURE)).astype(np.float32) for sign in (-1, 1))
    return np.asarray(np.where(low == high, low, np.float32(np.nan)), np.float32)
