"""Gradients of convolution: the input's is a transposed convolution (or, of a transposed one, a direct convolution),
the weight's a contraction over batch and positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import Window, convolution, tap_positions, window
from taskmap.graph.ops.reductions import sum_
from taskmap.ir.construct import cast, const, load, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import compute_type


def input_gradient(
    grad: Node,
    x: Node,
    w: Node,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    groups: int,
) -> Node:
    """The gradient of x: ``grad`` convolved with w in the opposite direction."""
    if transposed:
        return convolution(grad, w, stride, padding, dilation, False, (0,), groups)
    rank = len(w.shape) - 2
    s = window(rank, stride, padding, dilation)
    extra = []
    for d in range(rank):
        n, o, k = (static_size(v) for v in (x.shape[2 + d], grad.shape[2 + d], w.shape[2 + d]))
        if n is None or o is None or k is None:
            raise UnsupportedError("the gradient of a convolution of a symbolic size")
        extra.append(n - ((o - 1) * s.stride[d] - 2 * s.padding[d] + s.dilation[d] * (k - 1) + 1))
    return convolution(grad, w, stride, padding, dilation, True, extra, groups)


def weight_gradient(
    grad: Node,
    x: Node,
    w: Node,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    groups: int,
) -> Node:
    """The gradient of w: the sum over batch and positions of ``grad`` times the element of x at the tap."""
    rank = len(w.shape) - 2
    s = window(rank, stride, padding, dilation)
    return _correlation(x, grad, w, s, groups) if transposed else _correlation(grad, x, w, s, groups)


def _correlation(still: Node, moving: Node, w: Node, s: Window, groups: int) -> Node:
    """[i, j, taps] = sum over n and positions p of still[n, i, p] * moving[n, group(i) j, p * stride + tap]."""
    rank = len(w.shape) - 2
    rows, columns = static_size(w.shape[0]), static_size(w.shape[1])
    if rows is None or columns is None:
        raise UnsupportedError("the gradient of a convolution with a symbolic number of channels")
    per_group = rows // groups
    wide = compute_type(still.dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(i: Expr, j: Expr, *taps: Expr) -> Expr:
            n, out = Var("n"), [Var(f"p{d}") for d in range(rank)]
            place, inside = tap_positions(out, taps, moving.shape[2:], s)
            channel: Expr = j if groups == 1 else i // per_group * columns + j
            value = cast(load(g, (n, channel, *place)), wide)
            if inside is not None:
                value = select(inside, value, const(0.0, wide))
            axes = [(n, still.shape[0]), *zip(out, still.shape[2:], strict=True)]
            return reduce("sum", axes, cast(load(f, (n, i, *out)), wide) * value)

        return at

    attrs = {"correlation": (s.stride, s.padding, s.dilation), "groups": groups}
    return define("convolution_weight_gradient", [still, moving], w.shape, element, w.dtype, **attrs)


def bias_gradient(grad: Node) -> Node:
    """The sum over all dimensions but the channels."""
    return sum_(grad, (0, *range(2, len(grad.shape))))
