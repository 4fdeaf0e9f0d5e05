"""aten's normalisations, their statistics and gradients."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import Out, lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import norms as ops
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f64

Mask = Sequence[bool]


@lowering("native_layer_norm.default", out=True)
def layer_norm(
    out: Sequence[Out], x: Node, normalized_shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    y, mean, rstd = ops.layer_norm(x, normalized_shape, weight, bias, eps)
    return y, to_dtype(mean, out[1].dtype), to_dtype(rstd, out[2].dtype)


@lowering("native_layer_norm_backward.default")
def layer_norm_backward(
    grad: Node,
    x: Node,
    normalized_shape: Sequence[Dim],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    output_mask: Mask,
) -> tuple[Node | None, ...]:
    parts = ops.layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight)
    return tuple(p if wanted else None for p, wanted in zip(parts, output_mask, strict=True))


@lowering("native_group_norm.default", out=True)
def group_norm(
    out: Sequence[Out],
    x: Node,
    weight: Node | None,
    bias: Node | None,
    n: Dim,
    c: Dim,
    hxw: Dim,
    group: int,
    eps: float,
) -> tuple[Node, Node, Node]:
    y, mean, rstd = ops.group_norm(x, weight, bias, group, eps)
    return y, to_dtype(mean, out[1].dtype), to_dtype(rstd, out[2].dtype)


@lowering("_native_batch_norm_legit_no_training.default", out=True)
def batch_norm_inference(
    out: Sequence[Out],
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    var: Node,
    momentum: float,
    eps: float,
) -> tuple[Node, Node, Node]:
    """The normalised x, and the statistics that it took: the mean and 1 / deviation. PyTorch saves none on a CPU."""
    y = ops.batch_norm_inference(x, weight, bias, mean, var, eps)
    if out[1].shape == (0,):
        return y, full((0,), 0, out[1].dtype), full((0,), 0, out[2].dtype)
    kind = out[1].dtype
    return y, to_dtype(mean, kind), ops.reciprocal_deviation(to_dtype(var, out[2].dtype), eps)


@lowering("_native_batch_norm_legit.no_stats", out=True)
def batch_norm_without_statistics(
    out: Sequence[Out], x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    if not training:
        raise UnsupportedError("batch norm in inference without running statistics")
    y, mean, rstd, _ = ops.batch_norm_training(x, weight, bias, eps)
    return y, to_dtype(mean, out[1].dtype), to_dtype(rstd, out[2].dtype)


@lowering("_native_batch_norm_legit_functional.default", out=True)
def batch_norm_functional(
    out: Sequence[Out],
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Node, ...]:
    """The result, batch mean, 1 / deviation, and the new running mean and variance."""
    if not training:
        y = ops.batch_norm_inference(x, weight, bias, running_mean, running_var, eps)
        empty = [full(o.shape, 0, o.dtype) for o in out[1:3]]
        return y, empty[0], empty[1], running_mean, running_var
    y, mean, rstd, variance = ops.batch_norm_training(x, weight, bias, eps)
    number = ops.batch_count(x)
    new_mean = ops.running_update(running_mean, mean, momentum)
    new_var = ops.running_update(running_var, variance, momentum, (number, number - 1))
    results = (y, mean, rstd, new_mean, new_var)
    return tuple(to_dtype(r, o.dtype) for r, o in zip(results, out, strict=True))


@lowering("_fused_rms_norm.default", out=True)
def rms_norm(
    out: Sequence[Out], x: Node, normalized_shape: Sequence[Dim], weight: Node | None, eps: float | None
) -> tuple[Node, Node]:
    if eps is None:
        eps = 2.0**-52 if x.dtype == f64 else 2.0**-23  # that of the type of its sums
    y, rstd = ops.rms_norm(x, normalized_shape, weight, eps)
    return y, to_dtype(rstd, out[1].dtype)
