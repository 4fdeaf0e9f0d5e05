"""aten's reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import reductions as ops
from taskmap.graph.ops.pointwise import refuse_bools
from taskmap.graph.ops.reductions import Dims
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.types import DType

lowering("sum.default")(lambda x, dtype=None: ops.sum_(x, dtype=dtype))
lowering("sum.dim_IntList")(ops.sum_)
lowering("prod.dim_int")(ops.prod)
lowering("prod.default")(lambda x, dtype=None: ops.prod(x, dtype=dtype))
lowering("mean.default")(lambda x, dtype=None: ops.mean(x, dtype=dtype))
lowering("mean.dim")(ops.mean)
lowering("amax.default", "max.default")(ops.amax)
lowering("amin.default", "min.default")(ops.amin)
lowering("any.default", "any.dim", "any.dims")(ops.any_)
lowering("all.default", "all.dim", "all.dims")(ops.all_)
lowering("logsumexp.default")(ops.logsumexp)
lowering("cumsum.default")(ops.cumsum)
lowering("cumprod.default")(ops.cumprod)
lowering("var.correction")(ops.var)
lowering("std.correction")(ops.std)
lowering("var_mean.correction")(ops.var_mean)
lowering("std_mean.correction")(ops.std_mean)


@lowering("max.dim")
def max_with_position(x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return ops.amax(x, dim, keepdim), ops.argmax(x, dim, keepdim)


@lowering("min.dim")
def min_with_position(x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return ops.amin(x, dim, keepdim), ops.argmin(x, dim, keepdim)


@lowering("aminmax.default")
def aminmax(x: Node, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return ops.amin(x, dim, keepdim), ops.amax(x, dim, keepdim)


@lowering("linalg_vector_norm.default")
def vector_norm(x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    return ops.vector_norm(x, float(ord), dim, keepdim, dtype)


@lowering("norm.ScalarOpt_dim")
def norm(x: Node, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Node:
    if p is not None and not math.isfinite(p) and not x.shape:
        raise UnsupportedError("an infinite norm of a 0-d tensor")
    return ops.vector_norm(x, 2.0 if p is None else float(p), dim, keepdim)


@lowering("norm.Scalar")
def norm_of_all(x: Node, p: float = 2) -> Node:
    return ops.vector_norm(x, float(p))


@lowering("argmax.default")
def argmax(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    refuse_bools("argmax", x)
    return ops.argmax(x, dim, keepdim)


@lowering("argmin.default")
def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    refuse_bools("argmin", x)
    return ops.argmin(x, dim, keepdim)
