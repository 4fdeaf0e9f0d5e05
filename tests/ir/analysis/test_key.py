"""Structural keys: a change of the kernel changes the key, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.mapping import from_function, repeat, spatial
from taskmap.ir.analysis import key as keys
from taskmap.ir.analysis.key import kernel_key, structure, task_key
from taskmap.ir.construct import as_expr, cast, reduce
from taskmap.ir.errors import TypeMismatchError, VerifyError
from taskmap.ir.nodes import Buffer, Dim, Expr, For, GpuLaunch, Kernel, LoopKind, Scope, Store, Var
from taskmap.ir.source import SourceLocation
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, f16, f32, i32
from taskmap.ir.visit import fresh
from taskmap.ir.workers import BLOCKS, THREAD
from tests.ir.random_kernels import kernels


def task(
    name: str = "t",
    rows: Dim = 4,
    dtype: DType = f32,
    factor: float = 1.0,
    op: str = "sum",
    attrs: tuple[tuple[str, Any], ...] = (("stride", (1, 2)),),
    label: str = "dot",
    anchor: int | None = 0,
    strides: tuple[Dim, ...] | None = None,
    offset: int = 0,
    both: bool = False,
    dims: tuple[Var, ...] = (),
) -> Task:
    """Row sums of squares, scaled."""
    x = Buffer(f"{name}_x", dtype, (rows, 8), strides=strides, offset=offset)
    total, out = Buffer(f"{name}_s", dtype, (rows,)), Buffer(f"{name}_o", dtype, (rows,))
    i, j, k = Var(f"{name}_i"), Var(f"{name}_j"), Var(f"{name}_k")
    first = Stage(total, (i,), reduce(op, [(k, 8)], x[i, k] * x[i, k]), label, attrs)
    second = Stage(out, (j,), total[j] * factor, "mul")
    return Task(name, (x,), (first, second), (total, out) if both else (out,), dims, anchor)


def test_names_do_not_count() -> None:
    assert task_key(task("a")) == task_key(task("b"))


n, m = Var("n"), Var("m")


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 5},
        {"dtype": f16},
        {"factor": 2.0},
        {"factor": -1.0},
        {"op": "max"},
        {"attrs": ()},
        {"attrs": (("stride", (2, 2)),)},
        {"attrs": (("stride", (1.0, 2)),)},
        {"label": "other"},
        {"anchor": None},
        {"anchor": 1},
        {"strides": (8, 1)},
        {"strides": (1, 4)},
        {"offset": 8},
        {"both": True},
        {"rows": n, "dims": (n,)},
    ],
    ids=str,
)
def test_everything_else_does(change: dict[str, Any]) -> None:
    assert task_key(task(**change)) != task_key(task())


def test_symbolic_sizes_are_numbered_and_their_identity_counts() -> None:
    assert task_key(task(rows=n, dims=(n,))) == task_key(task(rows=m, dims=(m,)))
    x = Buffer("x", f32, (n, n))
    y = Buffer("x", f32, (n, m))
    assert structure(x[n, n]) != structure(y[n, n])


def test_a_free_variable_counts_by_identity_and_a_bound_one_does_not() -> None:
    x = Buffer("x", f32, (8,))

    def sum_over(axis: Var, size: Var) -> Expr:
        return reduce("sum", [(axis, 8)], x[axis] * cast(size, f32))

    assert structure(sum_over(Var("i"), n)) == structure(sum_over(Var("j"), n))
    assert structure(sum_over(Var("i"), n)) != structure(sum_over(Var("i"), m))
    assert structure(n - m) != structure(m - n)
    assert structure(task(rows=n)) == structure(task(rows=n))
    assert structure(task(rows=n)) != structure(task(rows=m))
    body = (For(Var("i"), n, LoopKind.SERIAL, ()),)
    assert structure(body) == structure(fresh(body)) != structure((replace(body[0], extent=m),))


@pytest.mark.parametrize("where", [{"rows": n}, {"attrs": (("stride", (n, 2)),)}, {"strides": (n, 1)}], ids=str)
def test_a_task_has_no_key_while_it_names_a_size_that_it_does_not_take(where: dict[str, Any]) -> None:
    assert task_key(task(**where, dims=(n,)))
    with pytest.raises(VerifyError, match="names n, which it does not take"):
        task_key(task(**where, dims=(m,)))


def test_the_order_of_the_sizes_counts() -> None:
    square: dict[str, Any] = {"rows": n, "strides": (m, 1)}
    assert task_key(task(**square, dims=(n, m))) != task_key(task(**square, dims=(m, n)))


def test_the_workers_of_a_launch_are_told_apart() -> None:
    def kernel(at: Var) -> Kernel:
        x = Buffer("x", f32, (64,))
        return Kernel("k", (x,), (x,), (), (Store(x, (at,), as_expr(1.0, f32)),), GpuLaunch((64,), 64))

    assert kernel_key(kernel(THREAD)) != kernel_key(kernel(BLOCKS[0]))
    with pytest.raises(VerifyError, match="names n, which it does not take"):
        kernel_key(kernel(n))


def test_attributes_may_hold_ir_and_nothing_without_a_canonical_form() -> None:
    scaled = (("scale", (n + 1, {"k": f16, "s": Scope.LOCAL, "none": None})),)
    again = (("scale", (n + 1, dict(scaled[0][1][1]))),)
    assert task_key(task(attrs=scaled, dims=(n,))) == task_key(task(attrs=again, dims=(n,)))
    with pytest.raises(TypeMismatchError, match="cannot be part of a structural key"):
        task_key(task(attrs=(("f", lambda: None),)))


def test_subexpressions_are_written_once() -> None:
    e: Expr = n + m
    for _ in range(60):
        e = e * e
    assert len(structure(e).text.splitlines()) < 70


def _kernel(owner: Any = None, layout: Any = None, **changes: Any) -> Kernel:
    b = Buffer("b", f32, (4, 4), Scope.REGISTER, owner=owner, layout=layout)
    return replace(Kernel("k", (b,), (b,), (), ()), **changes)


def test_a_task_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    write = keys._Canon.text

    def counted(canon: Any, *roots: Any) -> str:
        written.append(roots[0])
        return write(canon, *roots)

    monkeypatch.setattr(keys._Canon, "text", counted)
    made = task()
    assert structure(made).text == task_key(made) == task_key(made)
    assert written == [made]
    assert task_key(replace(made, anchor=None)) != task_key(made)
    assert len(written) == 2


def test_a_task_that_takes_a_size_is_another_task() -> None:
    made = task(rows=n)
    assert structure(made).free == (n,)
    assert task_key(replace(made, dims=(n,))) != structure(made).text
    with pytest.raises(VerifyError):
        task_key(made)


def test_mappings_and_layouts_count_by_meaning() -> None:
    assert kernel_key(_kernel(spatial(4, 4))) == kernel_key(_kernel(spatial(2, 1) * spatial(2, 4)))
    assert kernel_key(_kernel(spatial(4, 4))) != kernel_key(_kernel(repeat(2, 2) * spatial(2, 2)))
    assert kernel_key(_kernel(layout=row_major(4, 4))) != kernel_key(_kernel(layout=row_major(4, 4).permute(1, 0)))
    same = from_function(lambda w: [(w, 0)], (4, 1), 4, name="f")
    turned = from_function(lambda w: [((w + 1) % 4, 0)], (4, 1), 4, name="f")
    assert kernel_key(_kernel(same)) != kernel_key(_kernel(turned))


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (2,)},
        {"threads": 64},
        {"cluster": (2,)},
        {"min_blocks": 2},
        {"workspace": (Buffer("w", f32, (4,)),)},
        {"counters": (Buffer("c", i32, (4,)),)},
    ],
    ids=lambda c: next(iter(c)),
)
def test_the_launch_of_a_kernel_counts(change: dict[str, Any]) -> None:
    launch = GpuLaunch((1,), 32)
    assert kernel_key(_kernel(launch=replace(launch, **change))) != kernel_key(_kernel(launch=launch))
    assert kernel_key(_kernel(launch=launch)) != kernel_key(_kernel())


def test_the_outputs_of_a_kernel_count() -> None:
    assert kernel_key(_kernel(outputs=())) != kernel_key(_kernel())


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"note": "other"}, {"source": SourceLocation("f.py", 3)}], ids=lambda c: next(iter(c))
)
def test_the_name_note_and_source_of_a_kernel_do_not(change: dict[str, Any]) -> None:
    assert kernel_key(_kernel(**change)) == kernel_key(_kernel())


@settings(max_examples=20)
@given(kernels())
def test_a_kernel_with_fresh_names_has_the_same_key(kernel: Kernel) -> None:
    assert kernel_key(kernel) == kernel_key(replace(kernel, name="other", body=fresh(kernel.body)))
