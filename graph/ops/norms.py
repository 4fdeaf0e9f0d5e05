"""Normalisations: layer, group, batch and RMS norm. Statistics are nodes of their own, computed in two passes, so that
row fusion can join them with the rest of the norm. Half types are normalised in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.reductions import count, mean, mean_and_variance, sum_
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call, cast, const, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import DType, compute_type


def reciprocal_deviation(variance: Node, eps: float) -> Node:
    """1 / sqrt(variance + eps)."""
    return pointwise("rstd", (variance,), lambda v: const(1.0, v.dtype) / call("sqrt", v + const(eps, v.dtype)))


def affine(x: Node, center: Node, rstd: Node, weight: Node | None, bias: Node | None, op: str) -> Node:
    """(x - center) * rstd * weight + bias in the compute type, rounded once to the type of x.

    Without a bias 0 is added, as PyTorch's kernels do: -0 becomes 0, and a multiply-add costs no more than a product.
    """
    operands = tuple(v for v in (x, center, rstd, weight, bias) if v is not None)

    def element(*values: Expr) -> Expr:
        a, m, r, *rest = values
        result = (a - m) * r
        if weight is not None:
            result = result * rest.pop(0)
        return result + (rest.pop(0) if bias is not None else const(0.0, result.dtype))

    return pointwise(op, operands, element, x.dtype, compute_type(x.dtype))


def layer_norm(
    x: Node, normalized: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    """x normalised over its last dimensions, its mean, and 1 / deviation; the latter two keep those dimensions as 1."""
    last = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    center, variance = mean_and_variance(x, last, True, 0)
    rstd = reciprocal_deviation(variance, eps)
    return affine(x, center, rstd, weight, bias, "layer_norm"), center, rstd


def layer_norm_backward(
    grad: Node, x: Node, normalized: Sequence[Dim], center: Node, rstd: Node, weight: Node | None
) -> tuple[Node, Node, Node]:
    """Gradients of x, weight and bias. With y the normalised x, and g the gradient times weight:
    (g - mean(g) - y * mean(g * y)) * rstd; sum(grad * y); sum(grad).
    """
    wide = compute_type(x.dtype)
    split = len(x.shape) - len(normalized)
    last, first = tuple(range(split, len(x.shape))), tuple(range(split))
    unit = pointwise("normalized", (x, center, rstd), lambda a, m, r: (a - m) * r, wide, wide)
    scaled = (
        to_dtype(grad, wide) if weight is None else pointwise("mul", (grad, weight), lambda g, w: g * w, wide, wide)
    )
    along = mean(pointwise("mul", (scaled, unit), lambda g, y: g * y, wide, wide), last, True)
    operands = (scaled, unit, mean(scaled, last, True), along, rstd)
    dx = pointwise("layer_norm_backward", operands, lambda g, y, a, b, r: (g - a - y * b) * r, x.dtype, wide)
    like = weight.dtype if weight is not None else x.dtype
    dw = column_sum(pointwise("mul", (grad, unit), lambda g, y: g * y, wide, wide), first, like)
    return dx, dw, column_sum(grad, first, like)


def column_sum(x: Node, dims: tuple[int, ...], dtype: DType) -> Node:
    """The sum over ``dims``, or x itself if there are none, in ``dtype``."""
    if not dims:
        return to_dtype(x, dtype)
    return to_dtype(sum_(x, dims, False, compute_type(x.dtype)), dtype)


def group_norm(x: Node, weight: Node | None, bias: Node | None, groups: int, eps: float) -> tuple[Node, Node, Node]:
    """x [n, c, ...] normalised over each group of channels; also the mean and 1 / deviation, each [n, groups]."""
    channels = static_size(x.shape[1])
    if channels is None:
        raise UnsupportedError("group norm with a symbolic number of channels")
    grouped = reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    folded = tuple(range(2, len(grouped.shape)))
    center, variance = mean_and_variance(grouped, folded, False, 0)
    rstd = reciprocal_deviation(variance, eps)
    center_of, scale = (_per_channel_of_group(v, w, channels) for v, w in ((center, None), (rstd, weight)))
    shape = (x.shape[0], channels, *([1] * (len(x.shape) - 2)))
    operands = (x, reshape(center_of, shape), reshape(scale, shape))
    shift = () if bias is None else (per_channel(bias, x),)
    result = pointwise(
        "group_norm",
        (*operands, *shift),
        lambda a, m, s, *b: (a - m) * s + (b[0] if b else const(0.0, a.dtype)),
        x.dtype,
        center.dtype,
    )
    return result, center, rstd


def _per_channel_of_group(value: Node, weight: Node | None, channels: int) -> Node:
    """value [n, groups] for each channel [n, channels], times its weight.

    It is stored: read at the group of a channel, it would keep the vectors of a norm from running along channels.
    """
    n, groups = value.shape
    inputs = (value,) if weight is None else (value, weight)
    each = channels // (static_size(groups) or 1)

    def element(v: Buffer, *w: Buffer) -> Callable[..., ExprLike]:
        def at(i: Expr, c: Expr) -> ExprLike:
            found = v[i, c // each]
            return found * cast(w[0][(c,)], value.dtype) if w else found

        return at

    return define("per_channel", inputs, (n, channels), element, value.dtype, stored=True)


def batch_norm_inference(
    x: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node, eps: float
) -> Node:
    """x [n, c, ...] * scale + shift, with scale = weight / sqrt(var + eps) and shift = bias - mean * scale.

    Scale and shift are small nodes that read only the parameters, so they fold when the parameters are constant.
    """
    wide = compute_type(x.dtype)
    rstd = reciprocal_deviation(to_dtype(running_var, wide), eps)
    scale = rstd if weight is None else pointwise("mul", (rstd, weight), lambda r, w: r * w, wide, wide)
    operands = (running_mean, scale) if bias is None else (running_mean, scale, bias)

    def shift_of(m: Expr, s: Expr, *b: Expr) -> Expr:
        return b[0] - m * s if b else -(m * s)

    shift = pointwise("shift", operands, shift_of, wide, wide)
    return pointwise(
        "batch_norm", (x, per_channel(scale, x), per_channel(shift, x)), lambda a, s, t: a * s + t, x.dtype, wide
    )


def per_channel(p: Node, x: Node) -> Node:
    """p [c] shaped to broadcast over x [n, c, ...]."""
    return reshape(p, (p.shape[0], *([1] * (len(x.shape) - 2))))


def batch_norm_training(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node, Node]:
    """x [n, c, ...] normalised by the batch's statistics; also mean, 1 / deviation and (biased) variance, each [c]."""
    folded = (0, *range(2, len(x.shape)))
    center, variance = mean_and_variance(x, folded, True, 0)
    rstd = reciprocal_deviation(variance, eps)
    parts = [None if p is None else per_channel(p, x) for p in (weight, bias)]
    result = affine(x, center, rstd, parts[0], parts[1], "batch_norm")
    channels = (x.shape[1],)
    return result, reshape(center, channels), reshape(rstd, channels), reshape(variance, channels)


def running_update(running: Node, batch: Node, momentum: float, correction: tuple[Dim, Dim] | None = None) -> Node:
    """(1 - momentum) * running + momentum * batch; the quotient ``correction`` makes a variance unbiased."""

    def element(old: Expr, new: Expr) -> Expr:
        if correction is not None:
            above, below = (const(n, new.dtype) if isinstance(n, int) else cast(n, new.dtype) for n in correction)
            new = new * (above / below)
        return old * const(1 - momentum, old.dtype) + new * const(momentum, new.dtype)

    return pointwise("running", (running, batch), element, running.dtype, compute_type(batch.dtype))


def rms_norm(x: Node, normalized: Sequence[Dim], weight: Node | None, eps: float) -> tuple[Node, Node]:
    """x / sqrt(mean(x²) + eps) * weight over the last dimensions; also 1 / sqrt(mean(x²) + eps)."""
    wide = compute_type(x.dtype)
    last = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    squares = mean(pointwise("square", (x,), lambda a: a * a, wide, wide), last, True)
    rstd = pointwise("rstd", (squares,), lambda v: call("rsqrt", v + const(eps, v.dtype)))
    operands = (x, rstd) if weight is None else (x, rstd, weight)

    def element(a: Expr, r: Expr, *w: Expr) -> Expr:
        return a * r * w[0] if w else a * r

    return pointwise("rms_norm", operands, element, x.dtype, wide), rstd


def batch_count(x: Node) -> Dim:
    """The number of elements of x [n, c, ...] per channel."""
    return count(x, (0, *range(2, len(x.shape))))
