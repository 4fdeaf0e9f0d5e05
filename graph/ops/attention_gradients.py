"""The gradient of attention from its saved result and logarithms of row sums.

With p = exp(scale * q kᵀ + mask - lse), o the result and g its gradient: dv = pᵀ g, ds = p * (g vᵀ - sum(g * o)),
dq = scale * ds k, dk = scale * dsᵀ q. Source: Dao et al., "FlashAttention" (2022), appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, same_dim
from taskmap.graph.graph import Node
from taskmap.graph.ops.attention import default_scale
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.reductions import sum_
from taskmap.graph.ops.views import unsqueeze
from taskmap.ir.construct import call, cast, compare, const, reduce, select
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, boolean, compute_type

Positions = Callable[[Sequence[Expr], Expr], tuple[Sequence[Expr], Sequence[Expr]]]


def attention_backward(
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    output: Node,
    lse: Node,
    causal: bool,
    mask: Node | None,
    scale: float | None,
) -> tuple[Node, Node, Node]:
    """The gradients of q, k and v; for as many key heads as query heads."""
    if not same_dim(q.shape[1], k.shape[1]):
        raise UnsupportedError("the gradient of grouped-query attention")
    factor = default_scale(q) if scale is None else scale
    wide = compute_type(q.dtype)
    rows, columns = (*q.shape[:3], k.shape[2]), q.shape[3]
    scores = _product(q, k, rows, columns, lambda i, r: ((i[0], i[1], i[2], r), (i[0], i[1], i[3], r)), wide)
    p = _probabilities(scores, lse, mask, causal, factor, wide)
    dp = _product(grad, v, rows, v.shape[3], lambda i, r: ((i[0], i[1], i[2], r), (i[0], i[1], i[3], r)), wide)
    inner = sum_(pointwise("mul", (grad, output), lambda g, o: g * o, wide, wide), -1, True)
    ds = pointwise("attention_scores_backward", (p, dp, inner), lambda a, b, c: a * (b - c) * number(factor, wide))
    keys, queries = k.shape[2], q.shape[2]
    dq = _product(ds, k, q.shape, keys, lambda i, r: ((i[0], i[1], i[2], r), (i[0], i[1], r, i[3])), q.dtype)
    dk = _product(ds, q, k.shape, queries, lambda i, r: ((i[0], i[1], r, i[2]), (i[0], i[1], r, i[3])), k.dtype)
    dv = _product(p, grad, v.shape, queries, lambda i, r: ((i[0], i[1], r, i[2]), (i[0], i[1], r, i[3])), v.dtype)
    return dq, dk, dv


def _product(a: Node, b: Node, shape: Sequence[Dim], extent: Dim, at: Positions, dtype: DType) -> Node:
    """A batched matrix product [b, h, ., .], accumulated in the compute type."""
    wide = compute_type(dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def value(*axes: Expr) -> Expr:
            r = Var("r")
            left, right = at(axes, r)
            return reduce("sum", [(r, extent)], cast(f[tuple(left)], wide) * cast(g[tuple(right)], wide))

        return value

    return define("attention_product", [a, b], shape, element, dtype)


def _probabilities(scores: Node, lse: Node, mask: Node | None, causal: bool, scale: float, wide: DType) -> Node:
    """exp(scale * scores + mask - lse), zero where a query may not look."""
    operands = (scores, unsqueeze(lse, -1)) if mask is None else (scores, unsqueeze(lse, -1), mask)

    def power(s: Expr, total: Expr, *m: Expr) -> Expr:
        value = s * const(scale, wide)
        if m and mask is not None:
            value = value + m[0]
        never = call("isinf", total, dtype=boolean)
        return select(never, const(0.0, wide), call("exp", value - total))

    if mask is not None and mask.dtype.is_bool:
        raise UnsupportedError("the gradient of attention with a mask of bools")
    p = pointwise("attention_probabilities", operands, power, wide, wide)
    if not causal:
        return p

    def hidden(f: Buffer) -> Callable[..., ExprLike]:
        return lambda b, h, i, j: select(compare("gt", j, i), const(0.0, wide), f[b, h, i, j])

    return define("attention_causal", [p], p.shape, hidden, wide)
