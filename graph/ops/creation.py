"""Tensors without inputs: constants, ranges, identity matrices."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number
from taskmap.graph.ops.promotion import Scalar, scalar_type
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import cast, const, eq, select
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim, Expr
from taskmap.ir.types import DType, f64, i64


def full(shape: Sequence[Dim], value: Scalar, dtype: DType | None = None) -> Node:
    """A tensor whose elements all equal ``value``, which must be representable in its type."""
    result = dtype or scalar_type(value)
    if result.is_int and not isinstance(value, (bool, Expr)) and not _fits(value, result):
        raise UnsupportedError(f"{value} as {result}")
    return define("full", [], shape, lambda: lambda *axes: number(value, result), result)


def _fits(value: float, dtype: DType) -> bool:
    """True if ``value`` is representable in ``dtype``; negative numbers wrap in unsigned types, as in PyTorch."""
    low = -(1 << dtype.bits) + 1 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    return low <= value < 1 << (dtype.bits - (dtype.kind != "u"))


def arange(start: Scalar, length: Dim, step: Scalar, dtype: DType) -> Node:
    """start, start + step, ...: ``length`` numbers; floats are computed in f64 as start + i * step."""
    wide = dtype if dtype.is_int else f64

    def element(i: Expr) -> Expr:
        return number(start, wide) + cast(i, wide) * number(step, wide)

    return define("arange", [], (length,), lambda: element, dtype)


def arange_of(x: Node) -> tuple[int, int] | None:
    """(first number, step) of an arange of i64, None for any other node."""
    if x.op != "arange" or x.define is None or x.dtype != i64:
        return None
    (axis,), terms = x.define.axes, poly.to_poly(x.define.body)
    return (terms.get((), 0), terms.get((axis,), 0)) if set(terms) <= {(), (axis,)} else None


def eye(rows: Dim, columns: Dim, dtype: DType) -> Node:
    """Ones on the diagonal, zeros elsewhere."""

    def element(i: Expr, j: Expr) -> Expr:
        return select(eq(i, j), const(1, dtype), const(0, dtype))

    return define("eye", [], (rows, columns), lambda: element, dtype)
