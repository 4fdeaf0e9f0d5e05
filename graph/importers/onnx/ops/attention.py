"""The standard's Attention as scaled dot-product attention: scores and weights in the compute type, one rounding.

The remaining cases (a soft cap, a third result, a softmax in a wider type than the queries') run by the standard's
function body, which rounds every step to the type of the queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskmap.graph.build import define, read_broadcast
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import HELD
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.attention import attention, default_scale, heads_per_key
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import amax, sum_
from taskmap.graph.ops.views import permute, reshape
from taskmap.ir.construct import binary, cast, compare, const, eq, load, select, static_size
from taskmap.ir.construct import call as function_call
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import boolean, compute_type

FEWEST_QUERIES = 32
"""Fewer queries are computed by two products; ``RecoverAttention`` has the measurements."""


@lowering("Attention")
def _attention(call: OnnxCall) -> list[Node | None]:
    cap = float(call.attr("softcap", 0.0))
    if not cap >= 0.0:
        raise call.error(f"a soft cap of {cap}")
    wanted = float(call.attr("scale") or 0.0)
    if not wanted >= 0.0:  # the queries and the keys are both multiplied by its square root
        raise call.error(f"a scale of {wanted}")
    if call.wants(3) or cap > 0.0:
        raise UnsupportedError("attention with a soft cap, or with the scores as a result")
    q, k, v = (_heads(call, i, "q_num_heads" if i == 0 else "kv_num_heads") for i in range(3))
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise UnsupportedError("attention with values of another type")
    wide = compute_type(q.dtype)
    precision = HELD.get(int(call.attr("softmax_precision") or call.elem(0)))
    if precision is None or precision.bits > wide.bits:
        raise UnsupportedError("attention with a softmax in a wider type")
    past: Dim = 0
    if call.has(4) and call.has(5):
        past = call.node(4).shape[2]
        k, v = _after(call, 4, k), _after(call, 5, v)
    for a, b in ((q.shape[0], k.shape[0]), (q.shape[3], k.shape[3]), *zip(k.shape[:3], v.shape[:3], strict=True)):
        call.same(a, b)
    causal = bool(call.attr("is_causal", 0))
    window = (int(call.attr("left_window_size", -1)), int(call.attr("right_window_size", -1)))
    if min(window) < -1:
        raise call.error(f"a window of {window}")
    lengths = call.optional(6)
    plain = lengths is None and window == (-1, -1) and (not causal or static_size(past) == 0)
    mask = _padded(call, k.shape[2])
    if mask is not None:
        _check_mask(call, mask, [*q.shape[:3], k.shape[2]])
    if lengths is not None and len(lengths.shape) != 1:
        raise call.error(f"lengths of rank {len(lengths.shape)}, not 1")
    if not plain:
        mask = _Mask(q, k, mask, lengths, past, causal, window).node()
        causal = False
    scale = wanted or default_scale(q)
    queries = static_size(q.shape[2])
    if queries is not None and queries < FEWEST_QUERIES:
        made = _by_products(q, k, v, mask, causal, scale)
    else:
        made = attention(q, k, v, mask, causal, scale)
    if len(call.node(0).shape) == 3:
        batch, heads, length, size = made.shape
        made = reshape(permute(made, [0, 2, 1, 3]), [batch, length, _times(heads, size)])
    present = [k, v] if call.wants(1) or call.wants(2) else []
    return [made, *present]


def _heads(call: OnnxCall, index: int, name: str) -> Node:
    """Input ``index`` as [batch, heads, length, size]."""
    x = call.node(index)
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3:
        raise call.error(f"{call.named(index)} is of rank {len(x.shape)}, not 3 or 4")
    heads, width = int(call.required(name)), static_size(x.shape[2])
    if width is None:
        raise UnsupportedError("attention with a symbolic head size")
    if heads < 1 or width % heads:
        raise call.error(f"{heads} heads for {width} elements in total")
    return permute(reshape(x, [*x.shape[:2], heads, width // heads]), [0, 2, 1, 3])


def _after(call: OnnxCall, index: int, x: Node) -> Node:
    """``x`` appended to the past keys or values in input ``index``."""
    past = call.node(index)
    if len(past.shape) != 4:
        raise call.error(f"{call.named(index)} is of rank {len(past.shape)}, not 4")
    for d in (0, 1, 3):
        call.same(past.shape[d], x.shape[d])
    return cat([past, x], 2)


def _times(a: Dim, b: Dim) -> Dim:
    return a * b


def _padded(call: OnnxCall, keys: Dim) -> Node | None:
    """The mask, extended to forbid the keys that it does not cover."""
    if not call.has(3):
        return None
    mask = call.node(3)
    if not mask.shape:
        raise call.error("a mask without dimensions")
    length, wanted = static_size(mask.shape[-1]), static_size(keys)
    if length is None or wanted is None:
        call.same(mask.shape[-1], keys)
        return mask
    if length > wanted:
        raise call.error(f"a mask of {length} keys, but there are only {wanted}")
    if length == wanted or length == 1:
        return mask
    never = const(False, boolean) if mask.dtype.is_bool else const(-math.inf, mask.dtype)

    def element(m: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            last = axes[-1]
            inside = compare("lt", last, length)
            return select(inside, load(m, (*axes[:-1], select(inside, last, 0))), never)

        return at

    return define("padded_mask", [mask], [*mask.shape[:-1], wanted], element, mask.dtype)


def _check_mask(call: OnnxCall, mask: Node, scores: list[Dim]) -> None:
    if len(mask.shape) > 4:
        raise call.error(f"a mask of rank {len(mask.shape)}")
    for size, wanted in zip(reversed(mask.shape), reversed(scores), strict=False):
        if static_size(size) != 1:
            call.same(size, wanted)


@dataclass(frozen=True, slots=True)
class _Mask:
    """The keys that each query may attend to: causal from the end of the past, within a window, up to a length."""

    q: Node
    k: Node
    mask: Node | None
    lengths: Node | None
    past: Dim
    causal: bool
    window: tuple[int, int]

    def node(self) -> Node:
        """The mask [batch or 1, heads or 1, queries, keys]: added if the given mask is a float, else of bools."""
        inputs = [n for n in (self.mask, self.lengths) if n is not None]
        given = self.mask.shape if self.mask is not None else ()
        front = [given[-4] if len(given) > 3 else 1, given[-3] if len(given) > 2 else 1]
        if self.lengths is not None:
            front[0] = self.q.shape[0]
        shape = [*front, self.q.shape[2], self.k.shape[2]]

        def element(*formals: Buffer) -> Callable[..., ExprLike]:
            rest = iter(formals)
            mask = next(rest) if self.mask is not None else None
            lengths = next(rest) if self.lengths is not None else None

            def at(*axes: Expr) -> Expr:
                allowed = self._allowed(axes, lengths)
                if mask is None:
                    return allowed
                value = read_broadcast(mask, axes)
                never = const(False, boolean) if mask.dtype.is_bool else const(-math.inf, mask.dtype)
                return select(allowed, value, never)

            return at

        dtype = boolean if self.mask is None else self.mask.dtype
        return define("attention_mask", inputs, shape, element, dtype)

    def _allowed(self, axes: tuple[Expr, ...], lengths: Buffer | None) -> Expr:
        b, _, i, j = axes
        offset: Any = self.past
        valid = None
        if lengths is not None:
            valid = load(lengths, (b,))
            if static_size(self.past) == 0:
                offset = valid - self.q.shape[2]
        here = i + offset
        terms: list[Expr] = [] if valid is None else [compare("lt", j, valid)]
        if self.causal:
            terms.append(compare("le", j, here))
        left, right = self.window
        if left >= 0:
            terms.append(compare("ge", j, here - left))
        if right >= 0:
            terms.append(compare("le", j, here + right))
        allowed: Expr = const(True, boolean)
        for term in terms:
            allowed = binary("and", allowed, term)
        return allowed


def _by_products(q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: float) -> Node:
    """``attention`` as a product, a softmax and a product; scores and weights stay in the compute type."""
    wide, group = compute_type(q.dtype), heads_per_key(q, k)
    batch, heads, queries, size = q.shape
    rows = [batch, k.shape[1], _times(queries, group), size]
    dots = matmul(reshape(q, rows), permute(k, [0, 1, 3, 2]), wide)
    scores = reshape(dots, [batch, heads, queries, k.shape[2]])
    inputs = [scores] if mask is None else [scores, mask]

    def element(s: Buffer, *masks: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            value, never = s[axes] * const(scale, wide), const(-math.inf, wide)
            if masks:
                m = read_broadcast(masks[0], axes)
                value = select(m, value, never) if masks[0].dtype.is_bool else value + cast(m, wide)
            return select(compare("gt", axes[3], axes[2]), never, value) if causal else value

        return at

    masked = define("scores", inputs, scores.shape, element, wide)

    def power(a: Expr, top: Expr) -> Expr:
        nothing = eq(top, number(-math.inf, wide))
        return select(nothing, number(0.0, wide), function_call("exp", a - top))

    powers = pointwise("exp", (masked, amax(masked, -1, True)), power, wide, wide)
    weights = pointwise(
        "softmax",
        (powers, sum_(powers, -1, True)),
        lambda e, s: e / select(eq(s, number(0.0, wide)), number(1.0, wide), s),
        wide,
        wide,
    )
    flat = reshape(weights, [*rows[:3], k.shape[2]])
    result = matmul(flat, to_dtype(v, wide), wide)
    return to_dtype(reshape(result, [batch, heads, queries, v.shape[3]]), q.dtype)
