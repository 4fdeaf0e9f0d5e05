"""Elements that lie in memory unchanged, and asynchronous copies of them, which need their addresses."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import const, constant_value, select, static_size
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Expr, Let, Load, Region, Select, Var
from taskmap.ir.task import Task
from taskmap.ir.types import i32
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.inline import Inliner

Source = tuple[Expr | None, Load]
"""(condition, load) of an element that lies in memory, or is 0 unless the condition holds."""


def source_of(task: Task, simplifier: Simplifier, element: Callable[[Inliner], Expr]) -> Source | None:
    """The source of an element; None for one that is computed, or whose address is itself read from memory."""
    b = Builder()
    value = element(Inliner(task, b, simplifier))
    named = {s.var: s.value for s in b.body() if isinstance(s, Let)}
    found = _source(value, named) if len(named) == len(b.body()) else None
    used = {
        e
        for root in (() if found is None else (found[0], *found[1].indices))
        if root is not None
        for e in walk_exprs(root)
    }
    return None if used & named.keys() else found


def _source(value: Expr, named: dict[Var, Expr]) -> Source | None:
    while isinstance(value, Var) and value in named:
        value = named[value]
    if isinstance(value, Load):
        return None, value
    if not isinstance(value, Select) or constant_value(value.b) != 0 or (inner := _source(value.a, named)) is None:
        return None
    return value.cond if inner[0] is None else value.cond & inner[0], inner[1]


def copy_chunk(b: Builder, to: Region, found: Source, lanes: int, test: Expr) -> None:
    """Copies ``lanes`` neighbours in memory asynchronously; zeros if the source's condition, or the test, fails."""
    cond, load = found
    test = test if cond is None else test & cond
    steps = [static_size(s) for s in strides_of(load.buffer)]
    there = [d for d, step in enumerate(steps) if step == 1 and static_size(load.buffer.shape[d]) != 1]
    chunk = [lanes if d == max(there, default=0) else 1 for d in range(load.buffer.rank)]
    source, size = region(load.buffer, load.indices, chunk), lanes * load.dtype.bytes
    if constant_value(test):
        b.invoke(instruction_named(f"cp_async_{size}"), to, source)
    else:
        fill = instruction_named(f"cp_async_zfill_{size}")
        b.invoke(fill, to, source, select(test, const(size, i32), const(0, i32)))
