"""TMA descriptors: a tensor in memory with one dimension for an operand's rows, one for the sum, and batch
dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import const, product, static_size
from taskmap.ir.decompose.roles.boxes import CHUNK, LINE, is_aligned
from taskmap.ir.lower.flatten import address
from taskmap.ir.nodes import Buffer, Dim, Expr, TensorMap
from taskmap.ir.task import Task
from taskmap.schedules.common.access import MemoryStep, accesses, merged_axes
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.cuda.matmul.operand import Axes, Operand
from taskmap.schedules.cuda.matmul.problem_view import Gemm

LINE_BYTES = LINE
"""The contiguous side of a box: the span of the widest swizzle."""
_MOST_DIMENSIONS = 5


@dataclass(frozen=True, slots=True)
class TmaDescriptor:
    """``view``: the operand's elements as a tensor, outermost dimension first. kinds: for each dimension "mn", "k", or
    the number of a batch axis."""

    buffer: Buffer
    view: Buffer
    kinds: tuple[str | int, ...]
    along_k: bool

    @property
    def line(self) -> int:
        """Elements along the contiguous side of a box."""
        return LINE_BYTES // self.view.dtype.bytes

    def map(self, name: str, lines: int) -> TensorMap:
        """The tensor map whose boxes have ``lines`` lines."""
        across = "mn" if self.along_k else "k"
        box = tuple(
            self.line if d == len(self.kinds) - 1 else lines if k == across else 1 for d, k in enumerate(self.kinds)
        )
        return TensorMap(name, self.buffer, box, LINE_BYTES, self.view)

    def coordinates(self, batch: Sequence[Expr], mn: Expr, k: Expr) -> tuple[Expr, ...]:
        """The start of a box, innermost dimension first."""
        given = {"mn": mn, "k": k}
        return tuple(given[kind] if isinstance(kind, str) else batch[kind] for kind in reversed(self.kinds))


def boxes_of(task: Task, f: Operand, batch: Axes) -> TmaDescriptor | str:
    """The descriptor by which TMA reads ``f``, or the reason why there is none."""
    if not f.direct:
        return "its elements are computed on the way"
    if f.guarded:
        return "its elements depend on a condition"
    axes = (*batch, *f.mn, *f.k)
    variables, extents = tuple(v for v, _ in axes), [d for _, d in axes]

    def read(values: Inliner) -> None:
        values.expand(f.expr, {})

    (walk, *others) = accesses(task, variables, extents, (), read)
    if others or f.expr.dtype != walk.buffer.dtype:
        return "an element is computed from several"
    return boxes_along(walk, batch, f.mn, f.k, along_k=f.along_k)


def output_boxes(p: Gemm, columns: int, *, aligned: bool = True) -> TmaDescriptor | str:
    """The descriptor by which TMA stores the result in tiles of ``columns``, or the reason why there is none. With
    ``aligned=False`` its lines may begin anywhere: threads then store them."""
    if len(p.task.outputs) != 1:
        return f"there are {len(p.task.outputs)} outputs, and one goes through shared memory"
    (out,) = p.task.outputs
    axes = (*p.c.batch, *p.c.m, *p.c.n)
    position = p.position({v: v for v, _ in axes})
    where = positions_in(out, p.stage.out, [position[v] for v in p.stage.axes])
    variables, extents = [v for v, _ in axes], [d for _, d in axes]
    nothing = {out: lambda at: const(0, out.dtype)}
    (walk,) = accesses(p.task, variables, extents, [(out, where)], readers=nothing)
    boxes = boxes_along(walk, p.c.batch, p.c.m, p.c.n, along_k=True, aligned=aligned)
    if isinstance(boxes, TmaDescriptor) and columns % boxes.line:
        return f"boxes of {boxes.line} columns do not divide {columns}"
    return boxes


def boxes_along(
    walk: MemoryStep, batch: Axes, mn: Axes, k: Axes, *, along_k: bool, aligned: bool = True
) -> TmaDescriptor | str:
    """The descriptor of the memory that an access covers along (batch, mn, k), or the reason why there is none."""
    axes = (*batch, *mn, *k)
    variables, extents = tuple(v for v, _ in axes), [d for _, d in axes]
    simplifier = Simplifier()
    rest = {m: c for m, c in simplifier.poly(address(walk.buffer, walk.indices)).items() if not set(m) & set(variables)}
    offset = poly.constant_value(rest)
    if offset is None or any(p is None for p in walk.steps):
        return "its position in memory is not a sum of strides"
    found: list[_Dimension] = []
    groups: list[tuple[str | int, range]] = [(n, range(n, n + 1)) for n in range(len(batch))]
    groups += [("mn", range(len(batch), len(batch) + len(mn))), ("k", range(len(batch) + len(mn), len(axes)))]
    for kind, members in groups:
        runs = merged_axes(list(members), extents, [walk])
        if len(runs) > 1:
            return f"its {kind} axes do not merge into one in memory"
        step = walk.steps[runs[0][-1]] if runs else poly.constant(1 << 20)
        assert step is not None
        if kind in ("mn", "k") or step:
            found.append((step, product([extents[a] for a in members]), kind))
    found = [x for x in found if x[2] in ("mn", "k") or static_size(x[1]) != 1]
    found.sort(key=lambda x: -_known(x[0]))
    if len(found) > _MOST_DIMENSIONS:
        return f"a tensor map has at most {_MOST_DIMENSIONS} dimensions, not {len(found)}"
    return _checked(walk.buffer, found, offset, along_k, aligned)


_Dimension = tuple[Poly, Dim, str | int]
"""(stride, extent, kind) of a dimension; the kinds of TmaDescriptor."""


def _known(step: Poly) -> float:
    """A stride as a number; one that depends on symbolic sizes counts as larger than any."""
    value = poly.constant_value(step)
    return inf if value is None else value


def _checked(
    buffer: Buffer, found: Sequence[_Dimension], offset: int, along_k: bool, aligned: bool
) -> TmaDescriptor | str:
    size = buffer.dtype.bytes
    inner = "k" if along_k else "mn"
    if found[-1][2] != inner or _known(found[-1][0]) != 1:
        return f"it is not contiguous along {inner}"
    lines_are_aligned = all(is_aligned(step, buffer.dtype) for step, _, _ in found[:-1]) and not offset * size % CHUNK
    if aligned and not lines_are_aligned:
        return "its strides are not multiples of 16 bytes"
    steps, shape, kinds = zip(*found, strict=True)
    strides = tuple(static_size(e) or e for e in map(poly.to_expr, steps))
    view = Buffer(buffer.name, buffer.dtype, shape, buffer.scope, strides, offset)
    return TmaDescriptor(buffer, view, kinds, along_k)
