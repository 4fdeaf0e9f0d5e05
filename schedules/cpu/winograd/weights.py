"""The template of transformed weights: for each channel, vectors over the output channels of a panel.

    parallel over (panels, channels):   for each vector of output channels:   G g Gᵀ, from nine vectors of taps

A rule would evaluate each of its elements alone, from nine taps.
"""

from __future__ import annotations

from typing import cast as typed

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, const, index, minimum, select, static_size
from taskmap.ir.loops import parallel_grid
from taskmap.ir.nodes import Buffer, Expr, Kernel, Load
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32, f64
from taskmap.ir.visit import walk_exprs
from taskmap.ir.winograd import ATTRIBUTE, FORMS, WinogradForm, fills_panels, transformed_weight
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import vector_loop
from taskmap.schedules.cpu.support.kernels import kernel_of
from taskmap.schedules.cpu.winograd.transform import both_sides


def schedule_weights(task: Task, target: CpuTarget) -> Kernel | None:
    """The kernel of a task whose one result is transformed weights; None for any other task."""
    found = _find(task)
    if found is None:
        return None
    form, weight, out = found
    panels, channels, width = out.shape[0], out.shape[3], static_size(out.shape[4]) or 0
    count = weight.shape[0]
    full = fills_panels(count, width)
    b = Builder()
    values = Inliner(task, b)
    names, extents = ["panel", "channel"], [panels, channels]
    with parallel_grid(b, names, extents, values.simplifier, True, 1 << 62) as (panel, channel):

        def one(lane: Expr, inside: Inliner, *_: object) -> None:
            out_channel = inside.simplifier(panel * width + lane)
            held = out_channel if full else inside.simplifier(minimum(out_channel, index(count) - 1))

            def write(row: int, column: int, value: Expr) -> None:
                kept = cast(value, f32)
                if not full:
                    kept = select(out_channel < count, kept, const(0, f32))
                b.store(out, (panel, row, column, channel, lane), kept)

            both_sides(
                *(b, form.of_taps, lambda ky, kx: cast(inside.element(weight, (held, channel, ky, kx)), f64), write)
            )

        vector_loop(b, "column", width, target.lanes(8), values.nested(), one)
    return kernel_of(task, b, f"cpu.winograd_weights({form}, width={width})")


def _find(task: Task) -> tuple[WinogradForm, Buffer, Buffer] | None:
    """The form, the weights [output channels, channels, 3, 3], and their transformation, which the task writes."""
    stage: Stage | None = task.producers.get(task.outputs[0]) if len(task.outputs) == 1 else None
    if stage is None or stage is not task.stages[-1]:
        return None
    attrs = dict(stage.attrs)
    if ATTRIBUTE not in attrs or len(stage.axes) != 5:
        return None
    form = FORMS[typed(int, attrs[ATTRIBUTE])]
    weight = next(e.buffer for e in walk_exprs(stage.body) if isinstance(e, Load))
    width = static_size(stage.shape[-1]) or 0
    if stage.body != transformed_weight(form, weight, width, stage.axes):
        return None
    return form, weight, stage.out
