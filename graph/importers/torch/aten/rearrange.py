"""aten's flips, rolls, repeats, paddings, windows and triangles."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import rearrange as ops
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import product

lowering("flip.default")(ops.flip)
lowering("repeat.default")(ops.repeat)
lowering("constant_pad_nd.default")(ops.constant_pad)
lowering("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")(ops.reflection_pad)
lowering("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")(ops.replication_pad)
lowering("unfold.default")(ops.unfold)
lowering("im2col.default")(ops.columns_of_image)


@lowering("roll.default")
def roll(x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    """``x`` rolled along ``dims``, or the flat tensor rolled if there are none."""
    if not x.shape:
        return x
    if dims:
        return ops.roll(x, shifts, dims)
    return reshape(ops.roll(reshape(x, [product(x.shape)]), shifts, [0]), x.shape)


@lowering("tril.default")
def tril(x: Node, diagonal: int = 0) -> Node:
    return ops.triangle(x, diagonal, lower=True)


@lowering("triu.default")
def triu(x: Node, diagonal: int = 0) -> Node:
    return ops.triangle(x, diagonal, lower=False)
