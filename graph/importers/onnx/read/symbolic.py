"""Symbolic sizes: the operators that accept them, and the conditions that they imply."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.table import Lowering
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim

FAMILIES = frozenset({"elementwise", "activations", "reductions", "norms", "recurrent"})
"""Files whose operators all accept any size; operands of those in the first one broadcast."""
OPERATORS = frozenset({
    "Attention", "MatMul", "Gemm", "Concat", "Expand", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten",
    "Identity", "Slice", "Gather", "GatherElements", "Conv", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool", "Cast", "CastLike", "ConstantOfShape", "Constant", "Split", "Dropout", "QuantizeLinear",
    "DequantizeLinear", "MatMulInteger", "DynamicQuantizeLinear", "Tile", "Pad", "Range", "TopK", "Trilu", "Shape",
    "Size", "Resize", "Upsample", "ConvTranspose", "GatherND", "ScatterND", "ScatterElements", "Scatter",
    "TensorScatter", "OneHot", "DepthToSpace", "SpaceToDepth", "LpPool", "GlobalLpPool", "ReverseSequence", "NonZero",
    "NonMaxSuppression", "Compress", "Unique", "EyeLike", "Einsum", "QLinearMatMul", "QLinearConv", "ConvInteger",
    "Hardmax",
})  # fmt: skip


def check_symbolic(call: OnnxCall, function: Lowering) -> None:
    """Raises UnsupportedError for an operator that is not known to work for all sizes of its tensors."""
    tensors = [v for v in call.inputs if isinstance(v, Tensor)]
    if not any(_is_symbolic(t) for t in tensors):
        return
    family = function.__module__.rsplit(".", 1)[-1]
    if family == "elementwise" or call.op == "PRelu":
        call.broadcasts(*(t.shape for t in tensors))
    elif family not in FAMILIES and call.op not in OPERATORS:
        raise decides(f"{call.op} of symbolic sizes", [n for t in tensors for n in t.shape])


def _is_symbolic(tensor: Tensor) -> bool:
    return tensor.is_symbolic or any(static_size(n) is None for n in tensor.shape)


def all_known(sizes: Sequence[Dim]) -> bool:
    """True if no size is symbolic."""
    return all(static_size(n) is not None for n in sizes)
