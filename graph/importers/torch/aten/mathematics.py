"""aten's mathematical functions of one argument."""

from __future__ import annotations

import math
from collections.abc import Callable

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import float_pointwise, math_function, pointwise, refuse_bools, require_floats
from taskmap.ir.construct import call, const, select
from taskmap.ir.nodes import Expr
from taskmap.ir.types import boolean

OF_FLOATS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid",
    "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma",
)  # fmt: skip
"""Functions that promote integers to the default floating type."""
ROUNDINGS = ("floor", "ceil", "trunc", "round")
"""Functions that leave integers unchanged."""


def _of_floats(name: str) -> Callable[[Node], Node]:
    return lambda x: math_function(name, x)


def _rounding(name: str) -> Callable[[Node], Node]:
    def lowered(x: Node) -> Node:
        refuse_bools(name, x)
        return pointwise(name, (x,), lambda a: call(name, a) if a.dtype.is_float else a)

    return lowered


for _name in OF_FLOATS:
    lowering(f"{_name}.default")(_of_floats(_name))
for _name in ROUNDINGS:
    lowering(f"{_name}.default")(_rounding(_name))


@lowering("frac.default")
def frac(x: Node) -> Node:
    require_floats("frac", x)
    return pointwise("frac", (x,), lambda a: a - call("trunc", a))


@lowering("round.decimals")
def round_to_decimals(x: Node, decimals: int = 0) -> Node:
    """round(x * 10^decimals) / 10^decimals, in PyTorch's order; integers are unchanged."""
    factor = 10.0 ** abs(decimals)

    def element(a: Expr) -> Expr:
        if not a.dtype.is_float:
            return a
        scale = const(factor, a.dtype)
        return call("round", a * scale) / scale if decimals >= 0 else call("round", a / scale) * scale

    return pointwise("round", (x,), element)


@lowering("angle.default")
def angle(x: Node) -> Node:
    """π for negative numbers, else 0; NaN passes through."""

    def element(a: Expr) -> Expr:
        turned = select(a < const(0, a.dtype), const(math.pi, a.dtype), const(0.0, a.dtype))
        return select(call("isnan", a, dtype=boolean), a, turned)

    return float_pointwise("angle", (x,), element)
