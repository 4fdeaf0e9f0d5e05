"""The form of every element-wise operator: operands in the compute type, a function, one rounding of the result."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Node
from taskmap.graph.ops.promotion import Operand, float_type, result_type, scalar_type
from taskmap.ir.construct import as_expr, call, cast, const
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.ir.nodes import Expr, ExprLike
from taskmap.ir.types import DType, boolean, compute_type


def pointwise(
    op: str,
    operands: tuple[Operand, ...],
    function: Callable[..., ExprLike],
    dtype: DType | None = None,
    within: DType | None = None,
) -> Node:
    """``function`` of the broadcast elements of ``operands``, at least one of which must be a tensor.

    The elements are in the compute type of ``within`` (default: the operands' common type); the result is converted to
    ``dtype`` (default: ``within``).
    """
    within = within or result_type(*operands)
    arithmetic = compute_type(within)
    nodes = tuple(x for x in operands if isinstance(x, Node))
    if not nodes:
        raise GraphError(f"{op} has no tensor among its operands")

    def apply(*elements: Expr) -> ExprLike:
        rest = iter(elements)
        return function(
            *(cast(next(rest), arithmetic) if isinstance(x, Node) else number(x, arithmetic) for x in operands)
        )

    return elementwise(op, nodes, apply, dtype or within)


def refuse_bools(op: str, *operands: Operand) -> None:
    """Raises UnsupportedError if an operand is bool: PyTorch then runs the operator and reports the error."""
    dtypes = [x.dtype if isinstance(x, Node) else scalar_type(x) for x in operands]
    if any(dtype.is_bool for dtype in dtypes):
        raise UnsupportedError(f"{op} of bools is not defined")


def refuse_overflow(op: str, dtype: DType, *operands: Operand) -> None:
    """Raises UnsupportedError if an integer type does not hold a number: PyTorch then runs the operator and reports the
    error. An unsigned type holds the negatives of its numbers, which wrap."""
    if not dtype.is_int:
        return
    high = (1 << (dtype.bits - (dtype.kind == "i"))) - 1
    low = -high - (dtype.kind == "i")
    for x in operands:
        if isinstance(x, int) and not low <= x <= high:
            raise UnsupportedError(f"{op} of {dtype} with {x}, which the type does not hold")


def require_floats(op: str, *operands: Node) -> None:
    """Raises UnsupportedError if an operand is not floating point and the operator does not promote it."""
    if not all(x.dtype.is_float for x in operands):
        raise UnsupportedError(f"{op} of {operands[0].dtype} is not defined")


def number(value: float | bool | Expr, dtype: DType) -> Expr:
    """A number as an expression of type ``dtype``."""
    if isinstance(value, Expr):
        return cast(value, dtype)
    return const(value, dtype) if dtype.is_float or not isinstance(value, float) else cast(as_expr(value), dtype)


def float_pointwise(op: str, operands: tuple[Operand, ...], function: Callable[..., ExprLike]) -> Node:
    """As ``pointwise``, with integers and bools promoted to the default floating type."""
    return pointwise(op, operands, function, within=float_type(*operands))


def predicate(op: str, operands: tuple[Operand, ...], function: Callable[..., ExprLike]) -> Node:
    """As ``pointwise``, with a bool result."""
    return pointwise(op, operands, function, dtype=boolean)


def math_function(op: str, x: Node, name: str | None = None) -> Node:
    """The function ``name`` (see taskmap.ir.functions; default ``op``) of every element, in floating point."""
    return float_pointwise(op, (x,), lambda e: call(name or op, e))


def to_dtype(x: Node, dtype: DType, op: str = "to") -> Node:
    """``x`` converted to ``dtype``; ``x`` itself if it already has that type."""
    return x if x.dtype == dtype else elementwise(op, (x,), lambda e: cast(e, dtype), dtype)
