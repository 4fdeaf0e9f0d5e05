"""aten's matrix multiplication family."""

from __future__ import annotations

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import matmul as ops
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.ops.promotion import Scalar
from taskmap.graph.quantised.products import product_with_bytes
from taskmap.ir.types import f32, i32

lowering("mm.default")(lambda a, b: ops.mm(a, b))
lowering("bmm.default")(lambda a, b: ops.bmm(a, b))
lowering("mv.default")(ops.mv)
lowering("dot.default", "vdot.default")(ops.dot)
lowering("_int_mm.default")(lambda a, b: ops.mm(a, b, i32))


@lowering("_weight_int8pack_mm.default")
def weight_int8pack_mm(x: Node, w: Node, scales: Node) -> Node:
    return pointwise("scale", (product_with_bytes(x, w), scales), lambda t, s: t * s, x.dtype, f32)


@lowering("addmm.default")
def addmm(bias: Node, a: Node, b: Node, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    return ops.scaled_sum(bias, beta, ops.mm(a, b), alpha)


@lowering("baddbmm.default")
def baddbmm(bias: Node, a: Node, b: Node, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    return ops.scaled_sum(bias, beta, ops.bmm(a, b), alpha)


@lowering("addmv.default")
def addmv(bias: Node, a: Node, x: Node, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    return ops.scaled_sum(bias, beta, ops.mv(a, x), alpha)
