"""aten's element-wise arithmetic."""

from __future__ import annotations

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import arithmetic as ops
from taskmap.graph.ops.pointwise import pointwise, refuse_bools
from taskmap.ir.construct import unary
from taskmap.ir.errors import UnsupportedError

lowering("add.Tensor", "add.Scalar")(ops.add)
lowering("sub.Tensor", "sub.Scalar")(ops.sub)
lowering("rsub.Tensor", "rsub.Scalar")(ops.rsub)
lowering("mul.Tensor", "mul.Scalar")(ops.mul)
lowering("div.Tensor", "div.Scalar", "true_divide.Tensor", "div.Tensor_mode", "div.Scalar_mode")(ops.div)
lowering("floor_divide.default", "floor_divide.Scalar")(ops.floor_divide)
lowering("remainder.Tensor", "remainder.Scalar")(ops.remainder)
lowering("fmod.Tensor", "fmod.Scalar")(ops.fmod)
lowering("maximum.default")(ops.greater_of)
lowering("minimum.default")(ops.smaller_of)
lowering("fmax.default")(ops.fmax)
lowering("fmin.default")(ops.fmin)
lowering("clamp.default", "clamp.Tensor")(ops.clamp)
lowering("clamp_min.default", "clamp_min.Tensor")(lambda x, bound: ops.clamp(x, bound, None))
lowering("clamp_max.default", "clamp_max.Tensor")(lambda x, bound: ops.clamp(x, None, bound))
lowering("atan2.default")(ops.atan2)
lowering("hypot.default")(ops.hypot)
lowering("copysign.Tensor", "copysign.Scalar")(ops.copysign)
lowering("addcmul.default")(ops.addcmul)
lowering("addcdiv.default")(ops.addcdiv)
lowering("lerp.Scalar", "lerp.Tensor")(ops.lerp)
lowering("logaddexp.default")(ops.logaddexp)
lowering("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")(ops.xlogy)
lowering("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")(ops.power)


@lowering("neg.default")
def neg(x: Node) -> Node:
    if x.dtype.is_bool:
        raise UnsupportedError("negation of bools is not defined")
    return pointwise("neg", (x,), lambda a: unary("neg", a))


@lowering("abs.default")
def absolute(x: Node) -> Node:
    refuse_bools("abs", x)
    return pointwise("abs", (x,), lambda a: a if a.dtype.kind == "u" else unary("abs", a))


@lowering("square.default")
def square(x: Node) -> Node:
    return ops.power(x, 2)
