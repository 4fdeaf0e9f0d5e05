"""aten's mathematical functions of one argument."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.graph.graph import Node
from taskmap.graph.importers.table import lowering
from taskmap.graph.ops.pointwise import math_function, pointwise
from taskmap.ir.construct import call

OF_FLOATS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid",
    "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma",
)  # fmt: skip
"""Integers are promoted to the default floating type."""
ROUNDINGS = ("floor", "ceil", "trunc", "round")
"""Integers stay as they are."""


def _of_floats(name: str) -> Callable[[Node], Node]:
    return lambda x: math_function(name, x)


def _rounding(name: str) -> Callable[[Node], Node]:
    return lambda x: pointwise(name, (x,), lambda a: call(name, a) if a.dtype.is_float else a)


for _name in OF_FLOATS:
    lowering(f"{_name}.default")(_of_floats(_name))
for _name in ROUNDINGS:
    lowering(f"{_name}.default")(_rounding(_name))


@lowering("frac.default")
def frac(x: Node) -> Node:
    return pointwise("frac", (x,), lambda a: a - call("trunc", a))
