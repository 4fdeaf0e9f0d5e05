"""Prefix sums and products: one walk along the axis, each element from the one before.

By definition, every element is a reduction of its own, sum over r of (r <= i ? x[r] : 0); as loops that would take
quadratic time in the length of the axis. Vectors run over another axis if the scanned one is not contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, identity, index, product, static_size
from taskmap.ir.loops import parallel_grid, worth_sharing
from taskmap.ir.nodes import Cast, Compare, Const, Dim, Expr, Kernel, Reduce, Scope, Select, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32, f64
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import require_count, storage_order
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner, combine
from taskmap.schedules.common.loops import vector_loop
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 10_000
"""Elements; a smaller scan is finished before another thread has started."""


@dataclass(frozen=True, slots=True)
class Scan:
    """``stage`` reduces ``value``, of the reduction's variable, over a prefix of its ``axis``."""

    stage: Stage
    reduce: Reduce
    axis: int
    value: Expr


def find_scan(task: Task) -> Scan | None:
    """The scan of a task whose only reduction is one, or None."""
    found = [(s, e) for s in task.stages for e in walk_exprs(s.body) if isinstance(e, Reduce)]
    if len(found) != 1:
        return None
    ((stage, reduction),) = found
    body = stage.body
    while isinstance(body, Cast):
        body = body.a
    if body is not reduction or reduction.op not in ("sum", "prod") or len(reduction.axes) != 1:
        return None
    ((r, extent),) = reduction.axes
    kept = reduction.body
    if not isinstance(kept, Select) or not isinstance(kept.cond, Compare) or kept.cond.op != "le":
        return None
    neutral = identity(reduction.op, reduction.dtype)
    if kept.cond.a is not r or not isinstance(kept.b, Const) or kept.b.value != neutral.value:
        return None
    axis = next((d for d, v in enumerate(stage.axes) if v is kept.cond.b), None)
    if axis is None or static_size(stage.shape[axis]) != static_size(extent) or static_size(extent) is None:
        return None
    if any(e is stage.axes[axis] for e in walk_exprs(kept.a)):
        return None
    return Scan(stage, reduction, axis, kept.a)


def schedule_scan(task: Task, target: CpuTarget) -> Kernel | None:
    """The kernel of a task anchored by a scan, or None for any other task."""
    scan = find_scan(task)
    if scan is None:
        return None
    stage = scan.stage
    require_count(task, task.outputs, stage.shape)
    exact = f64 if scan.reduce.dtype == f32 else scan.reduce.dtype  # each partial sum is rounded once, as in PyTorch
    lanes = target.lanes(exact.bytes)
    others = [d for d in storage_order(stage.out) if d != scan.axis]
    inner = others.pop() if others and _steps_by_one(stage, others[-1]) else None
    b = Builder()
    values = Inliner(task, b)
    ((r, extent),) = scan.reduce.axes

    def walk(at: dict[int, Expr], local: Inliner) -> None:
        total = b.allocate("total", exact, (1,), Scope.REGISTER, init=identity(scan.reduce.op, exact))
        with b.loop(r.name, extent) as i:
            local.bind(i, extent)
            inside = local.nested()
            place = _axes(stage, {**at, scan.axis: i})
            value = inside.expand(scan.value, {**place, r: i})
            b.store(total, 0, combine(scan.reduce.op, total[0], cast(value, exact)))
            result = b.let("prefix", cast(total[0], scan.reduce.dtype))
            Epilogue(task, stage, scan.reduce, b).element(inside, result, place)

    shared = worth_sharing(product(stage.shape), _SHARED_FROM) if others else False
    sizes: list[Dim] = [stage.shape[d] for d in others]
    names = [f"o{d}" for d in others]
    with parallel_grid(b, names, sizes, values.simplifier, shared, 8 * target.cores) as outer:
        at = dict(zip(others, outer, strict=True))
        if inner is None:
            walk(at, values.nested())
        else:
            axis = inner
            vector_loop(
                b, "v", stage.shape[axis], lanes, values.nested(), lambda i, local, *_: walk({**at, axis: i}, local)
            )
    note = f"cpu.scan(length={static_size(extent)}, lanes={1 if inner is None else lanes})"
    return kernel_of(task, b, note)


def _steps_by_one(stage: Stage, axis: int) -> bool:
    """True if neighbours along an axis are neighbours in memory."""
    strides = stage.out.strides
    if strides is None:
        return axis == len(stage.axes) - 1
    return static_size(strides[axis]) == 1 and static_size(stage.shape[axis]) != 1


def _axes(stage: Stage, at: dict[int, Expr]) -> dict[Var, Expr]:
    return {v: at.get(d, index(0)) for d, v in enumerate(stage.axes)}
