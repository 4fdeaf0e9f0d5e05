"""The matrix multiplication family: sums of products over one axis, accumulated in f32 for half types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, same_dim
from taskmap.graph.nodes import Node
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.construct import cast, reduce
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, compute_type, i8, i32, u8


def contract(
    op: str,
    a: Node,
    b: Node,
    shape: Sequence[Dim],
    extent: Dim,
    at: Callable[[tuple[Expr, ...], Expr], tuple[Sequence[ExprLike], Sequence[ExprLike]]],
    dtype: DType | None = None,
) -> Node:
    """sum over k of a[..] * b[..]; ``at(axes, k)`` returns the two positions. The types of a and b are equal, or both
    are integers of eight bits whose products are summed as i32."""
    result = dtype or a.dtype
    if a.dtype != b.dtype and not (result == i32 and a.dtype in (u8, i8) and b.dtype in (u8, i8)):
        raise GraphError(f"{op} of {a.dtype} with {b.dtype}")
    if result.is_bool:
        raise UnsupportedError(f"{op} of bools is not defined")
    wide = compute_type(result)

    def element(x: Buffer, y: Buffer) -> Callable[..., ExprLike]:
        def value(*axes: Expr) -> Expr:
            k = Var("k")
            left, right = at(axes, k)
            return reduce("sum", [(k, extent)], cast(x[tuple(left)], wide) * cast(y[tuple(right)], wide))

        return value

    return define(op, [a, b], shape, element, result)


def mm(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """[m, k] @ [k, n]."""
    (m, k), (_, n) = a.shape, b.shape
    _check(a, b, "mm")
    return contract("mm", a, b, (m, n), k, lambda i, r: ((i[0], r), (r, i[1])), dtype)


def bmm(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """[batch, m, k] @ [batch, k, n]."""
    (batch, m, k), (_, _, n) = a.shape, b.shape
    _check(a, b, "bmm")
    return contract("bmm", a, b, (batch, m, n), k, lambda i, r: ((i[0], i[1], r), (i[0], r, i[2])), dtype)


def mv(a: Node, x: Node) -> Node:
    """[m, k] @ [k]."""
    return contract("mv", a, x, (a.shape[0],), a.shape[1], lambda i, r: ((i[0], r), (r,)))


def dot(x: Node, y: Node) -> Node:
    """[k] @ [k], a 0-d tensor."""
    return contract("dot", x, y, (), x.shape[0], lambda i, r: ((r,), (r,)))


def _check(a: Node, b: Node, op: str) -> None:
    if isinstance(a.shape[-1], int) and isinstance(b.shape[-2], int) and not same_dim(a.shape[-1], b.shape[-2]):
        raise GraphError(f"{op} of shapes {a.shape} and {b.shape}")


def scaled_sum(bias: Node, beta: Scalar, product: Node, alpha: Scalar) -> Node:
    """beta * bias + alpha * product; the bias is not read if beta is 0."""
    if product.dtype.is_int and not all(isinstance(f, int) for f in (beta, alpha)):
        raise UnsupportedError("fractional factors of an integer product")
    if _is(beta, 0):
        return product if _is(alpha, 1) else mul(product, alpha)
    scaled = product if _is(alpha, 1) else mul(product, alpha)
    if _is(beta, 1):
        return add(scaled, bias)
    dtype = product.dtype
    return pointwise("add", (scaled, bias, beta), lambda p, c, f: p + f * c, dtype, dtype)


def _is(value: Scalar, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def outer(x: Node, y: Node) -> Node:
    """x[i] * y[j]."""

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        wide = compute_type(x.dtype)
        return lambda i, j: cast(f[i], wide) * cast(g[j], wide)

    return define("outer", [x, y], (x.shape[0], y.shape[0]), element, x.dtype)
