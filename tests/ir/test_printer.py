"""The IR as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import binary, call, cast, const, eq, lane_reduce, ramp, reduce, select, unary, widen
from taskmap.ir.nodes import Buffer, Expr, GpuLaunch, Kernel, LoopKind, Scope, Var
from taskmap.ir.printer import print_body, print_expr, print_kernel
from taskmap.ir.types import boolean, f16, f32, i32
from tests.ir.random_kernels import kernels

i, j, n = Var("i"), Var("j"), Var("n")
x = Buffer("x", f32, (n, 4))
p, q = i < j, eq(i, n)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (i + j * 2, "i + j * 2"),
        ((i + j) * 2, "(i + j) * 2"),
        (i - (j - n), "i - (j - n)"),
        (i - j - n, "i - j - n"),
        (-(i + j), "-(i + j)"),
        (i // 4 % j, "i // 4 % j"),
        (i // (j % 4), "i // (j % 4)"),
        (p & q | (i > n), "i < j and i == n or i > n"),
        (p & (q | (i > n)), "i < j and (i == n or i > n)"),
        (unary("not", p & q), "not (i < j and i == n)"),
        (unary("not", p), "not i < j"),
        (unary("not", i), "~i"),
        ((i & 7) ^ (j << 2), "i & 7 ^ j << 2"),
        (unary("abs", i), "abs(i)"),
        (binary("min", i, j), "min(i, j)"),
        (binary("tdiv", i, j), "tdiv(i, j)"),
        (select(p, i, j), "select(i < j, i, j)"),
        (cast(i, f32) * 2.5, "f32(i) * 2.5"),
        (x[i, j + 1], "x[i, j + 1]"),
        (Buffer("s", f32, ())[()], "s[()]"),
        (call("exp", x[i, 0]), "exp(x[i, 0])"),
        (x[ramp(i, 2, 4), 0], "x[ramp(i, 2, 4), 0]"),
        (widen(i, 8), "broadcast(i, 8)"),
        (lane_reduce("max", ramp(i, 1, 4)), "lane_max(ramp(i, 1, 4))"),
        (reduce("sum", [(j, 4), (n, i)], x[n, j]), "sum(x[n, j] for j in range(4) for n in range(i))"),
        (const(3, i32), "i32(3)"),
        (const(-1, f32), "-1.0"),
        (i * const(-1, i.dtype), "i * -1"),
        (const(True, boolean), "True"),
        (const(0.1, f16), "f16(0.1)"),
        (const(math.inf, f32), 'f32("inf")'),
        (const(math.nan, f32), 'f32("nan")'),
    ],
)
def test_expressions(expr: Expr, text: str) -> None:
    assert print_expr(expr) == text


def test_variables_of_one_name_are_told_apart() -> None:
    other, third = Var("i"), Var("i_1")
    assert print_expr(i + other * 2 + third + i) == "i + i_1 * 2 + i_1_1 + i"


def test_a_kernel() -> None:
    y = Buffer("y", f32, (8, 8), strides=(1, 8), offset=4)
    b = Builder()
    acc = b.allocate("acc", f32, (4, 4), Scope.REGISTER, owner=spatial(2, 2) * repeat(2, 2))
    b.allocate("tile", f32, (2, 3), Scope.SHARED, layout=row_major(2, 3))
    with b.loop("i", n, unroll=4) as k, b.loop("i", 4, LoopKind.VECTOR) as lane:
        with b.when(k < 2):
            b.store(y, (k, lane), 0.0)
        with b.otherwise(), b.when(k < 4):
            b.store(y, (k, lane), 1.0)
    with b.mapped(["r", "c"], acc.owner, n % 4) as (r, c):  # type: ignore[arg-type]  # the owner was just given
        b.let("t", ramp(r, 1, 4))
        b.move(region(acc, (r, c), (1, 1)), region(y, (0, 0), (1, 1)))
    b.barrier()
    b.evaluate(call("exp", acc[0, 0]))
    text = print_kernel(Kernel("k", (x, y), (y,), (n,), b.body(), GpuLaunch((n, 2), 32), "by hand"))
    assert text == (
        "kernel k(x: f32[n, 4], y: out f32[8, 8] strides=(1, 8) offset=4, n: i64) grid=(n, 2) threads=32:  # by hand\n"
        "    acc = register(f32[4, 4], owner=spatial(2, 2) * repeat(2, 2))\n"
        "    tile = shared(f32[2, 3], layout=row_major(2, 3))\n"
        "    for i in range(n, unroll=4):\n"
        "        for i_1 in vector(4):\n"
        "            if i < 2:\n"
        "                y[i, i_1] = 0.0\n"
        "            elif i < 4:\n"
        "                y[i, i_1] = 1.0\n"
        "    for r, c in (spatial(2, 2) * repeat(2, 2)).on(n % 4):\n"
        "        t: i64x4 = ramp(r, 1, 4)\n"
        "        move(acc[r .. +1, c .. +1], y[0 .. +1, 0 .. +1])\n"
        "    barrier()\n"
        "    exp(acc[0, 0])\n"
    )


def test_an_empty_kernel_prints_pass() -> None:
    assert print_kernel(Kernel("k", (), (), (), ())) == "kernel k():\n    pass\n"


@settings(max_examples=20)
@given(kernels())
def test_printing_is_deterministic_and_has_a_line_for_each_statement(kernel: Kernel) -> None:
    text = print_kernel(kernel)
    assert text == print_kernel(kernel)
    assert print_body(kernel.body).count("\n") + 2 == text.count("\n")
