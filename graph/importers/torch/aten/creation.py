"""aten's constructors of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import Out, lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import creation as ops
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.nodes import Dim
from taskmap.ir.types import DType


@lowering("full.default", out=True)
def full(out: Out, size: Sequence[Dim], value: Scalar, dtype: DType | None = None) -> Node:
    return ops.full(out.shape, value, out.dtype)


@lowering("full_like.default", "new_full.default", out=True)
def full_like(out: Out, x: Node, *arguments: object, **options: object) -> Node:
    return ops.full(out.shape, arguments[-1], out.dtype)  # type: ignore[arg-type]  # the fill value comes last


@lowering("scalar_tensor.default", out=True)
def scalar_tensor(out: Out, value: Scalar, dtype: DType | None = None) -> Node:
    return ops.full((), value, out.dtype)


@lowering("zeros.default", "zeros_like.default", "new_zeros.default", "_efficientzerotensor.default", out=True)
def zeros(out: Out, *arguments: object, **options: object) -> Node:
    return ops.full(out.shape, 0, out.dtype)


@lowering("ones.default", "ones_like.default", "new_ones.default", out=True)
def ones(out: Out, *arguments: object, **options: object) -> Node:
    return ops.full(out.shape, 1, out.dtype)


@lowering("arange.default", out=True)
def arange(out: Out, end: Scalar, dtype: DType | None = None) -> Node:
    return ops.arange(0, out.shape[0], 1, out.dtype)


@lowering("arange.start", "arange.start_step", out=True)
def arange_from(out: Out, start: Scalar, end: Scalar, step: Scalar = 1, dtype: DType | None = None) -> Node:
    return ops.arange(start, out.shape[0], step, out.dtype)


@lowering("prims.iota.default", out=True)
def iota(out: Out, length: Dim, start: Scalar, step: Scalar, dtype: DType, **options: object) -> Node:
    return ops.arange(start, out.shape[0], step, out.dtype)


@lowering("eye.default", "eye.m", out=True)
def eye(out: Out, rows: Dim, columns: Dim | None = None, dtype: DType | None = None) -> Node:
    return ops.eye(out.shape[0], out.shape[1], out.dtype)


@lowering(
    "empty.memory_format",
    "empty_like.default",
    "empty_strided.default",
    "empty_permuted.default",
    "new_empty.default",
    "new_empty_strided.default",
    out=True,
)
def empty(out: Out, *arguments: object, **options: object) -> Node:
    """Zeros: any content is correct, and zeros are reproducible."""
    return ops.full(out.shape, 0, out.dtype)
