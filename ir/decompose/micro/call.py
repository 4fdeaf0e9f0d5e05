"""The call of a micro-kernel in a kernel: its operands as regions, then the strides of those in memory."""

from __future__ import annotations

from collections.abc import Mapping

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import DoneStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.isa.entry import Instruction, Place
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Region


def micro_kernel_of(tree: Tree) -> Instruction | None:
    """The micro-kernel that ends a tree, if one does."""
    last = tree.steps[-1] if tree.steps else None
    return last.by if isinstance(last, DoneStep) and last.by is not None and last.by.twin is not None else None


def call(b: Builder, tree: Tree, step: DoneStep, views: Mapping[str, OperandView]) -> None:
    """The micro-kernel of a leaf on its operands. Raises ScheduleError for those that it cannot take: parts beyond the
    end, tiles of several pieces, for text also swizzled ones."""
    by, spec = step.by, step.before
    assert by is not None
    names = {p.name for p in by.parameters if p.place is Place.VALUE}
    regions: list[Region] = []
    strides = []
    for o in spec.operands:
        view, shape = views[o.name], spec.static_shape(o) or ()
        why, way_out = _why_not(view, shape, o.name, text=by.written is not None)
        if why:
            raise refusal("done()", tree, why, way_out, where=step.source)
        regions.append(view.region(shape))
        axes = [axis for axis in o.axes if not axis.startswith("batch")]
        steps = strides_of(regions[-1].buffer)[-len(axes) :]
        strides += [index(n) for axis, n in zip(axes, steps, strict=True) if f"{o.name}_{axis}" in names]
    b.invoke(by, *regions, *strides)


def _why_not(view: OperandView, shape: tuple[int, ...], name: str, *, text: bool) -> tuple[str, str]:
    """The reason why a micro-kernel cannot take an operand, and a way out; empty texts if it can."""
    move = f"Move {name} to SHARED or REGISTER first."
    if view.computed:
        return f"{name} is computed, and in no memory that the micro-kernel could read.", move
    if view.is_clipped:
        return f"a part of {name} may lie beyond the end, and the micro-kernel takes whole tiles.", move
    if not view.is_box(shape):
        why = f"the tile of {name} consists of several pieces, and the micro-kernel takes one."
        return why, "Tile it to one piece before done()."
    if text and view.buffer.layout is not None:
        return f"{name} is swizzled, and text takes strides.", "Leave swizzle(...) out, or pad instead."
    return "", ""
