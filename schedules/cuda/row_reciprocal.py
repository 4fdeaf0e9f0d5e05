"""Divisions of a row's elements by a sum of exponentials, as in softmax, become one reciprocal for each row.

    y[i, j] = e[i, j] / s[i]    ->    y[i, j] = e[i, j] * (1 / s[i])

The sum has a term of 1, that of the largest element, so its reciprocal is neither infinite nor subnormal. It costs half
a unit in the last place of f32, so only 16-bit results, whose rounding hides that, are computed this way.
"""

from __future__ import annotations

from dataclasses import replace

from taskmap.ir.construct import const
from taskmap.ir.nodes import Binary, Call, Cast, Expr, Load, Reduce
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import bf16, f16, f32
from taskmap.ir.visit import map_expr


def with_reciprocals(task: Task) -> Task:
    """The task with multiplications in place of divisions by sums of exponentials."""
    stages = tuple(_rewritten(task, s) if s.out.dtype in (f16, bf16) else s for s in task.stages)
    if all(a is b for a, b in zip(stages, task.stages, strict=True)):
        return task
    return replace(task, stages=stages)


def _rewritten(task: Task, stage: Stage) -> Stage:
    def visit(e: Expr) -> Expr | None:
        if not isinstance(e, Binary) or e.op != "div" or e.dtype != f32 or not _sums_exponentials(task, e.b):
            return None
        return e.a * (const(1.0, f32) / e.b)

    body = map_expr(stage.body, visit)
    return stage if body is stage.body else replace(stage, body=body)


def _sums_exponentials(task: Task, e: Expr) -> bool:
    total = _value(task, e)
    if not isinstance(total, Reduce) or total.op != "sum":
        return False
    term = _value(task, total.body)
    if not isinstance(term, Call) or term.name != "exp":
        return False
    shifted = _value(task, term.args[0])
    top = _value(task, shifted.b) if isinstance(shifted, Binary) and shifted.op == "sub" else None
    return isinstance(top, Reduce) and top.op == "max"


def _value(task: Task, e: Expr) -> Expr:
    """The definition of an element, if the task computes it, without conversions."""
    while isinstance(e, Cast) or (isinstance(e, Load) and e.buffer in task.producers):
        e = e.a if isinstance(e, Cast) else task.producers[e.buffer].body
    return e
