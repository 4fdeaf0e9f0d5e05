"""Reductions along rows that lie far apart: several vectors of columns share one loop over the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from taskmap.ir.construct import call, cast
from taskmap.ir.expressions import Reduce
from taskmap.ir.nodes import Body, Buffer, Dim, Expr, For, LoopKind, Store, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, boolean, f32, f64, i32, i64
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from taskmap.schedules.common.jam import best_copies, jammed
from tests.schedules.running import Case, check, isas, target


def task_of(op: str, shape: Sequence[Dim], dtype: DType = f32, body: str = "plain") -> Task:
    """The reduction of the last axis but one."""
    x = Buffer("x", dtype, tuple(shape))
    *outer, rows, columns = shape
    axes = tuple(Var(f"i{d}") for d in range(len(outer) + 1))
    r = Var("r")
    place = (*axes[:-1], r, axes[-1])
    element: Expr = x[place]
    if body == "exp":
        element = call("exp", element)
    if op == "any":
        element = element > 1
    result = i64 if op == "argmax" else element.dtype
    out = Buffer("y", result, (*outer, columns))
    stage = Stage(out, axes, Reduce(op, ((r, rows),), element, result), op)
    return Task(op, (x,), (stage,), (out,))


CASES = [
    ("sum", (1021, 331), f32), ("max", (67, 1031), f32), ("prod", (16, 257), f32), ("min", (3, 131, 640), f32),
    ("argmax", (97, 520), f32), ("any", (50, 2050), f32), ("sum", (130, 300), f64), ("sum", (77, 400), i32),
    ("sum", (2, 64, 1024), f32), ("max", (17, 128), f64), ("all", (33, 4100), boolean),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "dtype"), CASES, ids=lambda v: str(v))
def test_results_are_those_of_the_definition(op: str, shape: tuple[int, ...], dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * 0.5 + (1 if op == "prod" else 0)
    array = x > -1 if dtype == boolean else (x * 9).astype(np.int32) if dtype == i32 else x
    array = array.astype(np.float64 if dtype == f64 else np.float32) if dtype.is_float else array
    task = task_of(op, shape, dtype)
    check([Case(task, [array], isa=isa) for isa in isas()])


def accumulators(task: Task, isa: str) -> list[int]:
    """The accumulators of each loop over rows."""
    body = schedule(task, target(isa)).body
    lanes = [s for s in walk_stmts(body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    loops = [s for lane in lanes for s in lane.body if isinstance(s, For)]
    return [sum(isinstance(s, Store) for s in walk_stmts(loop.body)) for loop in loops]


@pytest.mark.parametrize(("isa", "most"), [("avx512", 8), ("avx2", 4)])
def test_one_pass_over_the_rows_reduces_as_many_vectors_as_registers_hold(isa: str, most: int) -> None:
    assert accumulators(task_of("max", (64, 1024)), isa) == [most]


def test_functions_fill_the_registers_themselves() -> None:
    assert accumulators(task_of("max", (64, 1024), body="exp"), "avx512") == [1]


@pytest.mark.parametrize("shape", [(8, 1024), (64, 31)], ids=["few rows", "rows close together"])
def test_windows_and_short_rows_stay_one_vector_at_a_time(shape: tuple[int, int]) -> None:
    assert all(n == 1 for n in accumulators(task_of("max", shape), "avx512"))


def test_every_core_gets_columns() -> None:
    """As many vectors together as leave a group for each core, and little behind."""
    assert best_copies(1024, 16, 8, 2) == 8
    assert best_copies(128, 16, 8, 4) == 4
    assert best_copies(64, 16, 8, 4) == 1
    assert best_copies(20 * 16, 16, 8, 2) == 8
    assert best_copies(1024, 16, 1, 2) == 1


def loop(var: Var, extent: int, *body: object) -> For:
    return For(var, cast(extent, i64), LoopKind.SERIAL, tuple(body))  # type: ignore[arg-type]


def test_copies_share_loops_and_keep_their_order() -> None:
    y = Buffer("y", f32, (8, 8))
    i, j = Var("i"), Var("j")

    def copy(var: Var, place: int, extent: int = 4) -> Body:
        return (loop(var, extent, Store(y, (var, cast(place, i64)), cast(1.0, f32))),)

    (one,) = jammed([copy(i, 0), copy(j, 1)])
    assert isinstance(one, For)
    assert [s.indices[0] for s in one.body if isinstance(s, Store)] == [one.var, one.var]
    assert jammed([copy(i, 0), copy(j, 1, 5)]) == (*copy(i, 0), *copy(j, 1, 5))
    assert jammed([copy(i, 0), ()]) == copy(i, 0)
