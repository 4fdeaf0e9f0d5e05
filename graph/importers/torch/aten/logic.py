"""aten's comparisons, logic and choices."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import logic as ops
from taskmap.graph.ops.promotion import Operand


def _comparison(op: str) -> Callable[[Operand, Operand], Node]:
    return lambda x, y: ops.comparison(op, x, y)


def _logical(op: str) -> Callable[[Operand, Operand], Node]:
    return lambda x, y: ops.logical(op, x, y)


def _bitwise(op: str) -> Callable[[Operand, Operand], Node]:
    return lambda x, y: ops.bitwise(op, x, y)


def _shift(op: str) -> Callable[[Node, Operand], Node]:
    return lambda x, places: ops.shift(op, x, places)


for _op in ("lt", "le", "gt", "ge", "eq", "ne"):
    lowering(f"{_op}.Tensor", f"{_op}.Scalar")(_comparison(_op))
for _op in ("and", "or", "xor"):
    lowering(f"logical_{_op}.default")(_logical(_op))
    lowering(f"bitwise_{_op}.Tensor", f"bitwise_{_op}.Scalar", f"bitwise_{_op}.Scalar_Tensor")(_bitwise(_op))

for _op, _name in (("shl", "left"), ("shr", "right")):
    lowering(f"__{_name[0]}shift__.Scalar", f"bitwise_{_name}_shift.Tensor_Scalar")(_shift(_op))

lowering("logical_not.default")(ops.logical_not)
lowering("bitwise_not.default")(ops.bitwise_not)
lowering("isnan.default")(ops.isnan)
lowering("isinf.default")(ops.isinf)
lowering("isfinite.default")(ops.isfinite)
lowering("signbit.default")(ops.signbit)
lowering("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")(ops.where)
lowering("masked_fill.Scalar", "masked_fill.Tensor")(ops.masked_fill)
lowering("nan_to_num.default")(ops.nan_to_num)
