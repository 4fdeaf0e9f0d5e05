"""The gradient of attention, from its saved result and the logarithms of its row sums.

With p = exp(scale * q kᵀ + mask - lse), o the result and g its gradient: dv = pᵀ g, ds = p * (g vᵀ - sum(g * o)),
dq = scale * ds k, dk = scale * dsᵀ q; gradients of a key head are summed over the query heads that share it.
Source: Dao et al., "FlashAttention" (2022), appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.attention import (
    default_scale,
    heads_per_key,
    probabilities,
    rows_by_rows,
    scores_of,
    weighted_sum,
)
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.reductions import sum_
from taskmap.ir.construct import cast, reduce
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, compute_type


def attention_backward(
    grad: Node, q: Node, k: Node, v: Node, output: Node, lse: Node, causal: bool, mask: Node | None, scale: float | None
) -> tuple[Node, Node, Node]:
    """The gradients of q, k and v."""
    factor = default_scale(q) if scale is None else scale
    wide, group = compute_type(q.dtype), heads_per_key(q, k)
    p = probabilities(scores_of(q, k, mask, causal, scale), lse, wide)
    inner = sum_(pointwise("mul", (grad, output), lambda g, o: g * o, wide, wide), -1, True)
    operands = (p, rows_by_rows(grad, v, group, wide), inner)
    ds = pointwise("attention_scores_backward", operands, lambda a, b, c: a * (b - c) * number(factor, wide))
    dq = weighted_sum(ds, k, group, q.dtype)
    return dq, _by_queries(ds, q, k.shape, group, k.dtype), _by_queries(p, grad, v.shape, group, v.dtype)


def _by_queries(a: Node, b: Node, shape: Sequence[Dim], group: int, dtype: DType) -> Node:
    """[b, hk, j, d] = sum over i and the query heads h of key head hk of a[b, h, i, j] * b[b, h, i, d]."""
    wide = compute_type(dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, hk: Expr, j: Expr, d: Expr) -> Expr:
            i, s = Var("i"), Var("s")
            h = hk if group == 1 else hk * group + s
            product = cast(f[n, h, i, j], wide) * cast(g[n, h, i, d], wide)
            axes: list[tuple[Var, Dim]] = [(i, b.shape[2])]
            return reduce("sum", axes if group == 1 else [(s, group), *axes], product)

        return at

    return define("attention_product", [a, b], shape, element, dtype)
