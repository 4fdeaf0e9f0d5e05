"""Size classes of packing, and of Winograd's transformation: one task, and so one kernel, for all weights that differ
in their sizes alone.

    w [64, 24]  ->  packed [4, 24, 16]          n = 64, k = 24
    w [96, 144] ->  packed [6, 144, 16]         n = 96, k = 144         one kernel, with n and k as arguments

Packing moves elements: with sizes that the compiler knows, it is at most a tenth faster. Everything else stays in the
task: the element type, the panel's width, the taps of a window, the order of the axes, the form of a transformation,
and whether the last panel has a remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast as typed

from taskmap.graph.passes.weight_packing import PACK, packing
from taskmap.graph.passes.winograd import TRANSFORM
from taskmap.ir.construct import as_expr, ceil_div, product, static_size
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Buffer, Dim, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.winograd import ATTRIBUTE, FORMS, TAPS, WinogradForm, transformed_weight

_MOST_TAPS = 64
"""Pixels of a window up to which its size belongs to the class: rows of so few elements need their own vectors."""


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A task with symbolic sizes, and the values of these sizes, in the order of ``task.dims``, for one member."""

    task: Task
    sizes: tuple[int, ...]


def size_class(task: Task) -> SizeClass | None:
    """The size class of a task that packs or transforms a weight and does nothing else; None for any other task."""
    if len(task.stages) != 1 or len(task.inputs) != 1 or task.dims:
        return None
    if not _is_dense(task.inputs[0]) or not _is_dense(task.outputs[0]):
        return None
    attrs = dict(task.stages[0].attrs)
    if task.stages[0].label == PACK and "others" in attrs:
        return _pack_class(task, attrs)
    if task.stages[0].label == TRANSFORM and ATTRIBUTE in attrs:
        return _transform_class(task, FORMS[typed(int, attrs[ATTRIBUTE])])
    return None


def _pack_class(task: Task, attrs: Mapping[str, object]) -> SizeClass:
    (weight,), (packed,) = task.inputs, task.outputs
    shape = tuple(static_size(d) for d in weight.shape)
    axis, columns, width = (typed(int, attrs[name]) for name in ("axis", "columns", "width"))
    others = [d for d in typed("tuple[int, ...]", attrs["others"]) if shape[d] != 1]
    sizes: dict[Var, int] = {}

    def size(name: str, value: int) -> Dim:
        var = Var(name)
        sizes[var] = value
        return var

    runs = _runs(others)
    extents: dict[int, Dim] = {}
    for run in runs:
        extent = typed(int, product([typed(int, shape[d]) for d in run]))
        extents[run[0]] = extent if run[0] >= 2 and extent <= _MOST_TAPS else size("depth", extent)
    groups: Dim = (shape[axis] or 1) // columns
    groups = groups if groups == 1 else size("groups", typed(int, groups))
    panels, width_of, columns_of = _panels(columns, width, all(static_size(n) for n in extents.values()), size)
    memory = sorted([axis, *extents])
    formal = tuple(product([groups, columns_of]) if d == axis else extents[d] for d in memory)
    order = [memory.index(run[0]) for run in runs]
    counts, full = (groups, panels), columns % width == 0
    result, element = packing(formal, counts, memory.index(axis), order, columns_of, width_of, full=full)
    source = Buffer(weight.name, weight.dtype, formal)
    axes = tuple(Var(f"i{d}") for d in range(len(result)))
    body = as_expr(element(source)(*axes), weight.dtype)
    out = Buffer(packed.name, packed.dtype, result)
    general = Task(task.name, (source,), (Stage(out, axes, body, PACK),), (out,), tuple(sizes))
    return SizeClass(general, tuple(sizes.values()))


def _transform_class(task: Task, form: WinogradForm) -> SizeClass:
    (weight,), (transformed,) = task.inputs, task.outputs
    out_channels, channels = (typed(int, static_size(n)) for n in weight.shape[:2])
    width = typed(int, static_size(transformed.shape[-1]))
    sizes: dict[Var, int] = {}

    def size(name: str, value: int) -> Dim:
        var = Var(name)
        sizes[var] = value
        return var

    depth = size("depth", channels)
    if out_channels % width:
        columns = size("columns", out_channels)
        panels = ceil_div(columns, width)
    else:
        panels = size("panels", out_channels // width)
        columns = product([panels, width])
    source = Buffer(weight.name, weight.dtype, (columns, depth, TAPS, TAPS))
    out = Buffer(transformed.name, transformed.dtype, (panels, form.inputs, form.inputs, depth, width))
    axes = tuple(Var(f"i{d}") for d in range(len(out.shape)))
    stage = task.stages[0]
    body = transformed_weight(form, source, width, axes)
    general = Task(task.name, (source,), (Stage(out, axes, body, TRANSFORM, stage.attrs),), (out,), tuple(sizes))
    return SizeClass(general, tuple(sizes.values()))


def _panels(columns: int, width: int, depthwise: bool, size: Callable[[str, int], Dim]) -> tuple[Dim, Dim, Dim]:
    """The number of panels, their width, and the number of columns."""
    if depthwise and columns == width:
        channels = size("columns", columns)
        return 1, channels, channels
    if columns % width:
        known = size("columns", columns)
        return ceil_div(known, width), width, known
    panels = size("panels", columns // width)
    return panels, width, panels * width


def _runs(others: list[int]) -> list[list[int]]:
    """``others`` in order, with those joined that are neighbours in memory in the same order."""
    runs = [others[:1]] if others else []
    for before, after in pairwise(others):
        if after == before + 1:
            runs[-1].append(after)
        else:
            runs.append([after])
    return runs


def _is_dense(buffer: Buffer) -> bool:
    """True if the elements lie in row-major order, without gaps, from the start of the memory."""
    expected = 1
    strides = buffer.strides or row_major_strides(buffer.shape)
    for size, stride in reversed(list(zip(buffer.shape, strides, strict=True))):
        known = static_size(size)
        if known is None or (known != 1 and static_size(stride) != expected):
            return False
        expected *= known
    return static_size(buffer.offset) == 0
