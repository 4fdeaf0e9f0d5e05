"""Softmax and log-softmax along one dimension, with their gradients: row reductions and element-wise neighbours.

The nodes are separate, so row fusion decides which of them share a kernel. Half types stay in f32 throughout.
"""

from __future__ import annotations

from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.reductions import amax, sum_
from taskmap.ir.construct import call
from taskmap.ir.types import DType, compute_type


def softmax(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """exp(x - max) / sum(exp(x - max)) along ``dim``."""
    wide, result = _types(x, dtype)
    x = to_dtype(x, wide)
    powers = pointwise("exp", (x, amax(x, dim, True)), lambda a, m: call("exp", a - m), wide, wide)
    return pointwise("softmax", (powers, sum_(powers, dim, True)), lambda e, s: e / s, result, wide)


def log_softmax(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """x - max - log(sum(exp(x - max))) along ``dim``."""
    wide, result = _types(x, dtype)
    x = to_dtype(x, wide)
    shifted = pointwise("sub", (x, amax(x, dim, True)), lambda a, m: a - m, wide, wide)
    powers = pointwise("exp", (shifted,), lambda a: call("exp", a), wide, wide)
    total = sum_(powers, dim, True)
    return pointwise("log_softmax", (shifted, total), lambda a, s: a - call("log", s), result, wide)


def _types(x: Node, dtype: DType | None) -> tuple[DType, DType]:
    result = dtype or x.dtype
    return compute_type(result), result


def softmax_backward(grad: Node, output: Node, dim: int, dtype: DType) -> Node:
    """(grad - sum(grad * y)) * y along ``dim``, in ``dtype``."""
    wide = compute_type(grad.dtype)
    weighted = pointwise("mul", (grad, output), lambda g, y: g * y, wide, wide)
    total = sum_(weighted, dim, True)
    return pointwise("softmax_backward", (weighted, output, total), lambda w, y, s: w - y * s, dtype, wide)


def log_softmax_backward(grad: Node, output: Node, dim: int, dtype: DType) -> Node:
    """grad - exp(y) * sum(grad) along ``dim``, in ``dtype``."""
    wide = compute_type(grad.dtype)
    total = sum_(grad, dim, True, wide)
    operands = (grad, output, total)
    return pointwise("log_softmax_backward", operands, lambda g, y, s: g - call("exp", y) * s, dtype, wide)
