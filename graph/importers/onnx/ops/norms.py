"""Normalisations."""

from __future__ import annotations

from typing import Any

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import norms
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import mean_and_variance, vector_norm
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import cast, compare, const, index, load, maximum, minimum, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Expr, Var
from taskmap.ir.types import compute_type, f32


@lowering("BatchNormalization")
def _batch_norm(call: OnnxCall) -> Any:
    x = call.node(0)
    scale, bias, center, variance = (call.node(i) for i in range(1, 5))
    eps = call.attr("epsilon", 1e-5)
    training = call.attr("training_mode", 0) if call.version >= 14 else 0
    if call.version < 7 and not call.attr("is_test", 0):
        raise UnsupportedError("training by BatchNormalization before version 7")
    if not training:
        return norms.batch_norm_inference(x, scale, bias, center, variance, eps)
    momentum = call.attr("momentum", 0.9)
    result, mean, _, var = norms.batch_norm_training(x, scale, bias, eps)
    outs = [result]
    for running, batch in ((center, mean), (variance, var)):
        outs.append(
            pointwise(
                "running",
                (running, batch),
                lambda old, new: old * number(momentum, old.dtype) + new * number(1 - momentum, new.dtype),
                running.dtype,
                compute_type(running.dtype),
            )
        )
    return outs


@lowering("InstanceNormalization")
def _instance_norm(call: OnnxCall) -> Node:
    x, scale, bias = (call.node(i) for i in range(3))
    dims = tuple(range(2, len(x.shape)))
    center, variance = mean_and_variance(x, dims, True, 0)
    rstd = norms.reciprocal_deviation(variance, call.attr("epsilon", 1e-5))
    shape = [1, x.shape[1], *([1] * len(dims))]
    return norms.affine(x, center, rstd, reshape(scale, shape), reshape(bias, shape), "instance_norm")


@lowering("LayerNormalization")
def _layer_norm(call: OnnxCall) -> Any:
    x = call.node(0)
    axis = call.axis(call.attr("axis", -1), len(x.shape))
    if call.attr("stash_type", 1) != 1 and compute_type(x.dtype) != x.dtype:
        raise UnsupportedError("LayerNormalization computed in a sixteen-bit type")
    wide = compute_type(x.dtype)
    dims = tuple(range(axis, len(x.shape)))
    eps = call.attr("epsilon", 1e-5)
    if not call.wants(1) and not call.wants(2) and wide == x.dtype:
        return norms.layer_norm(x, x.shape[axis:], _broadcast(call, 1, x, axis), _broadcast(call, 2, x, axis), eps)[0]
    center, variance = mean_and_variance(x, dims, True, 0)
    rstd = norms.reciprocal_deviation(variance, eps)
    scale, bias = call.node(1), call.optional(2)
    normal = pointwise("normalized", (x, center, rstd), lambda a, m, r: (a - m) * r, x.dtype, wide)
    result = pointwise("scale", (normal, scale), lambda a, w: a * w, x.dtype, x.dtype)
    if bias is not None:
        result = pointwise("add", (result, bias), lambda a, b: a + b, x.dtype, x.dtype)
    return [result, to_dtype(center, f32) if wide == f32 else center, to_dtype(rstd, f32) if wide == f32 else rstd]


def _broadcast(call: OnnxCall, place: int, x: Node, axis: int) -> Node | None:
    """A weight. One with more dimensions than are normalised leaves the operator to its function body."""
    weight = call.optional(place)
    if weight is None:
        return None
    rank = len(x.shape) - axis
    if len(weight.shape) > rank:
        raise UnsupportedError("a weight with more dimensions than are normalised")
    return weight


@lowering("GroupNormalization", since=21)
def _group_norm(call: OnnxCall) -> Node:
    x = call.node(0)
    groups = int(call.required("num_groups"))
    channels = static_size(x.shape[1])
    if groups < 1 or channels is None or channels % groups:
        raise call.error(f"{x.shape[1]} channels cannot be divided into {groups} groups")
    if compute_type(x.dtype) != x.dtype:
        raise UnsupportedError("GroupNormalization in sixteen bits: its function body defines the rounding")
    return norms.group_norm(x, call.node(1), call.node(2), groups, call.attr("epsilon", 1e-5))[0]


@lowering("RMSNormalization")
def _rms_norm(call: OnnxCall) -> Node:
    x = call.node(0)
    axis = call.axis(call.attr("axis", -1), len(x.shape))
    if compute_type(x.dtype) != x.dtype:
        raise UnsupportedError("RMSNormalization in sixteen bits: its function body defines the rounding")
    return norms.rms_norm(x, x.shape[axis:], call.node(1), call.attr("epsilon", 1e-5))[0]


@lowering("LpNormalization")
def _lp_norm(call: OnnxCall) -> Node:
    x = call.node(0)
    axis = call.axis(call.attr("axis", -1), len(x.shape))
    size = vector_norm(x, call.attr("p", 2), axis, True)
    zero = number(0, compute_type(x.dtype))

    def element(a: Expr, s: Expr) -> Expr:
        return select(compare("eq", s, zero), zero, a / s)

    return pointwise("lp_norm", (x, size), element, x.dtype, x.dtype)


@lowering("MeanVarianceNormalization")
def _mean_variance(call: OnnxCall) -> Node:
    x = call.node(0)
    axes = call.attr("axes", [0, 2, 3])
    dims = tuple(call.axis(a, len(x.shape)) for a in axes)
    center, variance = mean_and_variance(x, dims, True, 0)

    def element(a: Expr, m: Expr, v: Expr) -> Expr:
        return (a - m) / (function_call("sqrt", v) + number(1e-9, v.dtype))

    return pointwise("mvn", (x, center, variance), element, x.dtype, compute_type(x.dtype))


@lowering("LRN")
def _lrn(call: OnnxCall) -> Node:
    x = call.node(0)
    size = int(call.required("size"))
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    wide = compute_type(x.dtype)
    channels = x.shape[1]
    low = (size - 1) // 2

    def element(f: Buffer) -> Any:
        def at(n: Expr, c: Expr, *rest: Expr) -> Expr:
            k = Var("k")
            place = c + k - low
            inside = compare("ge", place, 0) & compare("lt", place, channels)
            value = cast(load(f, (n, minimum(maximum(place, 0), index(channels) - 1), *rest)), wide)
            squares = reduce("sum", [(k, size)], select(inside, value * value, const(0.0, wide)))
            base = const(bias, wide) + const(alpha / size, wide) * squares
            return cast(load(f, (n, c, *rest)), wide) / function_call("pow", base, const(beta, wide))

        return at

    return define("lrn", [x], x.shape, element, x.dtype)
