"""The common type of operands: PyTorch's promotion with its three ranks (tensors, 0-d tensors, Python numbers).

Source: PyTorch documentation, "Tensor Attributes", type promotion; ``torch.result_type``.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.nodes import Node
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType, boolean, f32, i64, promote

Scalar = int | float | bool | Expr
"""A Python number, or an expression of symbolic sizes (i64, or f64 for a quotient of sizes)."""
Operand = Node | Scalar


def scalar_type(value: Scalar) -> DType:
    """The type of a number by itself: bool, i64 or the default floating type f32."""
    if isinstance(value, Expr):
        return f32 if value.dtype.is_float else value.dtype
    if isinstance(value, bool):
        return boolean
    return i64 if isinstance(value, int) else f32


def _category(dtype: DType) -> int:
    return 0 if dtype.is_bool else 1 if dtype.is_int else 2


def _meet(dtypes: Sequence[DType]) -> DType | None:
    result: DType | None = None
    for dtype in dtypes:
        result = dtype if result is None else promote(result, dtype)
    return result


def result_type(*operands: Operand) -> DType:
    """The common type of ``operands``: a lower rank counts only if its category (bool, integer, float) is higher."""
    tensors = [x.dtype for x in operands if isinstance(x, Node) and x.shape]
    points = [x.dtype for x in operands if isinstance(x, Node) and not x.shape]
    numbers = [scalar_type(x) for x in operands if not isinstance(x, Node)]
    result: DType | None = None
    for dtype in (_meet(tensors), _meet(points), _meet(numbers)):
        if dtype is None:
            continue
        if result is None or _category(dtype) > _category(result):
            result = dtype
    return result if result is not None else f32


def float_type(*operands: Operand) -> DType:
    """The common type, or the default floating type if that is an integer or bool: for exp, true division, mean."""
    dtype = result_type(*operands)
    return dtype if dtype.is_float else f32
