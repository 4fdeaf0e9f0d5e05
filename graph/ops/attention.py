"""Scaled dot-product attention as one operator, so that one template can stream it.

Source: Vaswani et al., "Attention is all you need" (2017), section 3.2.1. A causal mask is aligned at the first query
and the first key, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from taskmap.graph.build import define, read_broadcast
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.ops.reductions import logsumexp
from taskmap.graph.ops.views import unsqueeze
from taskmap.ir.construct import call, cast, compare, const, eq, ne, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, boolean, compute_type


def default_scale(q: Node) -> float:
    """1 / sqrt(head size)."""
    size = static_size(q.shape[-1])
    if size is None:
        raise UnsupportedError("attention with a symbolic head size")
    return 1 / math.sqrt(size)


def heads_per_key(q: Node, k: Node) -> int:
    """The number of query heads that share a key head (grouped-query attention)."""
    heads, shared = static_size(q.shape[1]), static_size(k.shape[1])
    if heads is None or shared is None or heads % shared:
        raise UnsupportedError(f"attention of {q.shape[1]} query heads with {k.shape[1]} key heads")
    return heads // shared


def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, causal: bool = False, scale: float | None = None
) -> Node:
    """softmax(scale * q kᵀ + mask) v.

    q [b, h, i, d]; k, v [b, hk, j, d], where hk divides h. ``mask`` broadcasts to [b, h, i, j]: a float mask is added,
    a bool mask forbids where it is false. A query whose keys are all forbidden gives zeros.
    """
    factor = default_scale(q) if scale is None else scale
    inputs = [q, k, v] if mask is None else [q, k, v, mask]

    def element(fq: Buffer, fk: Buffer, fv: Buffer, *fm: Buffer) -> Callable[..., ExprLike]:
        parts = _Scores(fq, fk, fm[0] if fm else None, causal, factor, heads_per_key(q, k))

        def at(b: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
            top, total = parts.maximum(b, h, i), parts.total(b, h, i)
            j = Var("j")
            value = cast(fv[b, h // parts.group, j, d], parts.wide)
            weighted = reduce("sum", [(j, k.shape[2])], parts.power(b, h, i, j, top) * value)
            return weighted / select(eq(total, const(0.0, parts.wide)), const(1.0, parts.wide), total)

        return at

    return define("attention", inputs, (*q.shape[:3], v.shape[3]), element, q.dtype, scale=factor, causal=causal)


def log_sum_exp(q: Node, k: Node, mask: Node | None, causal: bool, scale: float | None) -> Node:
    """log(sum(exp(score))) for each query: [b, h, i], in the compute type. A product, and a reduction of its rows."""
    return logsumexp(scores_of(q, k, mask, causal, scale), -1)


def attention_with_sums(
    q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: float | None
) -> tuple[Node, Node]:
    """Attention, and ``log_sum_exp``, from one matrix of scores: where both are wanted, they are multiplied once."""
    scores = scores_of(q, k, mask, causal, scale)
    sums = logsumexp(scores, -1)
    return weighted_sum(probabilities(scores, sums, scores.dtype), v, heads_per_key(q, k), q.dtype), sums


def scores_of(q: Node, k: Node, mask: Node | None, causal: bool, scale: float | None) -> Node:
    """All scores [b, h, i, j] in the compute type: scale * q·k + mask, or minus infinity where query i may not attend
    to key j."""
    wide = compute_type(q.dtype)
    factor, never = const(default_scale(q) if scale is None else scale, wide), const(-math.inf, wide)
    scores = rows_by_rows(q, k, heads_per_key(q, k), wide)

    def scaled(s: Expr, *m: Expr) -> Expr:
        value = s * factor
        if mask is None:
            return value
        return select(ne(m[0], 0), value, never) if mask.dtype.is_bool else value + m[0]

    made = pointwise("attention_scores", (scores,) if mask is None else (scores, mask), scaled, wide, wide)
    if not causal:
        return made

    def seen(f: Buffer) -> Callable[..., ExprLike]:
        return lambda b, h, i, j: select(compare("gt", j, i), never, f[b, h, i, j])

    return define("attention_causal", [made], made.shape, seen, wide)


def rows_by_rows(a: Node, b: Node, group: int, dtype: DType) -> Node:
    """[b, h, i, j] = sum over d of a[b, h, i, d] * b[b, h // group, j, d]."""

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            d = Var("d")
            return reduce("sum", [(d, a.shape[3])], cast(f[n, h, i, d], dtype) * cast(g[n, h // group, j, d], dtype))

        return at

    return define("attention_product", [a, b], (*a.shape[:3], b.shape[2]), element, dtype)


def weighted_sum(a: Node, b: Node, group: int, dtype: DType) -> Node:
    """[b, h, i, d] = sum over j of a[b, h, i, j] * b[b, h // group, j, d]."""
    wide = compute_type(dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
            j = Var("j")
            return reduce("sum", [(j, b.shape[2])], cast(f[n, h, i, j], wide) * cast(g[n, h // group, j, d], wide))

        return at

    return define("attention_product", [a, b], (*a.shape[:3], b.shape[3]), element, dtype)


def probabilities(scores: Node, lse: Node, wide: DType) -> Node:
    """exp(scores - lse), and zero for a query that may attend to nothing."""

    def power(s: Expr, total: Expr) -> Expr:
        return select(call("isinf", total, dtype=boolean), const(0.0, wide), call("exp", s - total))

    return pointwise("attention_probabilities", (scores, unsqueeze(lse, -1)), power, wide, wide)


class _Scores:
    """The parts of one row of attention, as expressions of batch, head and query."""

    def __init__(self, q: Buffer, k: Buffer, mask: Buffer | None, causal: bool, scale: float, group: int) -> None:
        self.q, self.k, self.mask = q, k, mask
        self.causal, self.scale, self.group = causal, scale, group
        self.wide: DType = compute_type(q.dtype)
        self.keys: Dim = k.shape[2]

    def score(self, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        """scale * q·k + mask, or minus infinity where query i may not attend to key j."""
        d = Var("d")
        product = cast(self.q[b, h, i, d], self.wide) * cast(self.k[b, h // self.group, j, d], self.wide)
        value = reduce("sum", [(d, self.q.shape[3])], product) * const(self.scale, self.wide)
        never = const(-math.inf, self.wide)
        if self.mask is not None:
            m = read_broadcast(self.mask, (b, h, i, j))
            value = select(m, value, never) if self.mask.dtype.is_bool else value + cast(m, self.wide)
        return select(compare("gt", j, i), never, value) if self.causal else value

    def maximum(self, b: Expr, h: Expr, i: Expr) -> Expr:
        j = Var("j")
        return reduce("max", [(j, self.keys)], self.score(b, h, i, j))

    def power(self, b: Expr, h: Expr, i: Expr, j: Expr, top: Expr) -> Expr:
        """exp(score - top); zero in a row whose keys are all forbidden."""
        score = self.score(b, h, i, j)
        nothing = eq(top, const(-math.inf, self.wide))
        return select(nothing, const(0.0, self.wide), call("exp", score - top))

    def total(self, b: Expr, h: Expr, i: Expr) -> Expr:
        j = Var("j")
        return reduce("sum", [(j, self.keys)], self.power(b, h, i, j, self.maximum(b, h, i)))
