"""aten's views, copies, and conversions."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import Out, lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import join, views
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim
from taskmap.ir.types import DType


@lowering("view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default", out=True, moves=True)
def view(out: Out, x: Node, size: Sequence[Dim], stride: Sequence[Dim] | None = None) -> Node:
    return views.reshape(x, out.shape)


@lowering("view.dtype")
def view_as(x: Node, dtype: DType) -> Node:
    if x.dtype != dtype:
        raise UnsupportedError(f"{x.dtype} read as {dtype} bit by bit")
    return x


@lowering(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "contiguous.default",
    "lift.default",
)
def same(x: Node, **options: object) -> Node:
    return x


@lowering("to.dtype", "_to_copy.default", "_to_cpu.default", moves=True)
def to(x: Node, dtype: DType | None = None, *options: object, **more: object) -> Node:
    return to_dtype(x, dtype or x.dtype)


@lowering("copy.default", moves=True)
def copy(x: Node, source: Node, non_blocking: bool = False) -> Node:
    return views.expand(to_dtype(source, x.dtype), x.shape)


lowering("permute.default", moves=True)(views.permute)
lowering("transpose.int", moves=True)(views.transpose)
lowering("diagonal.default", moves=True)(views.diagonal)
lowering("select.int", moves=True)(views.select_)
lowering("unsqueeze.default", moves=True)(views.unsqueeze)
lowering("slice.Tensor", moves=True)(views.slice_)
lowering("split_with_sizes.default", "unsafe_split_with_sizes.default", moves=True)(views.split)
lowering("prims.convert_element_type.default", moves=True)(to_dtype)
lowering("slice_scatter.default")(join.slice_scatter)
lowering("select_scatter.default")(join.select_scatter)
lowering("stack.default", moves=True)(join.stack)
lowering("cat.default", empty=True, moves=True)(join.cat)


@lowering("t.default", moves=True)
def t(x: Node) -> Node:
    return views.transpose(x, 0, 1) if len(x.shape) == 2 else x


@lowering("expand.default", out=True, moves=True)
def expand(out: Out, x: Node, size: Sequence[Dim], implicit: bool = False) -> Node:
    return views.expand(x, out.shape)


@lowering("squeeze.default", "squeeze.dim", "squeeze.dims", moves=True)
def squeeze(x: Node, dim: int | Sequence[int] | None = None) -> Node:
    return views.squeeze(x, [dim] if isinstance(dim, int) else dim)


@lowering("split.Tensor", "unsafe_split.Tensor", out=True, moves=True)
def split(out: Sequence[Out], x: Node, split_size: Dim, dim: int = 0) -> list[Node]:
    return views.split(x, [o.shape[dim] for o in out], dim)


@lowering("unbind.int", moves=True)
def unbind(x: Node, dim: int = 0) -> list[Node]:
    count = static_size(x.shape[dim])
    if count is None:
        raise UnsupportedError("unbind of a dimension of symbolic size")
    return [views.select_(x, dim, i) for i in range(count)]
