"""Intervals and proofs: never narrower than the truth, and narrow where it matters."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.analysis.bounds import EVERYTHING, Facts, Interval, bounds, type_range
from taskmap.ir.construct import binary, call, cast, eq, index, maximum, minimum, ne, ramp, select, unary, widen
from taskmap.ir.interp.expressions import Environment, ExpressionCompiler
from taskmap.ir.nodes import Buffer, Expr, Var
from taskmap.ir.types import boolean, f32, i8, i16, i32, i64, u8

i, j, n, m = Var("i"), Var("j"), Var("n"), Var("m")
ENV = {i: Interval(0, 7), j: Interval(-3, 4)}


@pytest.mark.parametrize(
    ("expr", "lo", "hi"),
    [
        (index(5), 5, 5),
        (i + j, -3, 11),
        (i - j, -4, 10),
        (i * j, -21, 28),
        (-i, -7, 0),
        (unary("abs", j), 0, 4),
        (unary("abs", j - 10), 6, 13),
        (i // 2, 0, 3),
        (j // 2, -2, 2),
        (i % 4, 0, 3),
        (i % 16, 0, 7),
        (j % 4, 0, 3),
        (minimum(i, 3), 0, 3),
        (maximum(j, 0), 0, 4),
        (select(i < 3, i, j), -3, 7),
        (i & 5, 0, 5),
        (i >> 1, 0, 3),
        (i << 2, 0, 28),
        (ramp(i, 2, 4), 0, 13),
        (widen(j, 4), -3, 4),
        (call("checked_index", Buffer("x", i64, ())[()], index(10)), 0, 9),
        (cast(Buffer("b", u8, ())[()], i64), 0, 255),
        (cast(i < 3, i64), 0, 1),
        (n, -math.inf, math.inf),
        (n % 8, 0, 7),
        (i // n, -math.inf, math.inf),
        (cast(Buffer("f", f32, ())[()], i64), -math.inf, math.inf),
        (i + n, -math.inf, math.inf),
    ],
    ids=str,
)
def test_bounds(expr: Expr, lo: float, hi: float) -> None:
    assert bounds(expr, ENV) == Interval(lo, hi)


def test_types_bound_unknown_values() -> None:
    assert type_range(i8) == Interval(-128, 127)
    assert type_range(u8) == Interval(0, 255)
    assert type_range(i16).hi == 32767
    assert type_range(i64) == EVERYTHING
    assert type_range(boolean) == Interval(0, 1)
    wrapping = cast(i, i32) * cast(index(2**30), i32)
    assert bounds(wrapping, ENV) == type_range(i32)


_OPS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")


@st.composite
def index_exprs(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Integer arithmetic on i and j; divisors are positive constants."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(st.sampled_from([i, j]), st.integers(-9, 9).map(index)))
    op = draw(st.sampled_from(_OPS))
    a = draw(index_exprs(depth - 1))
    b = index(draw(st.integers(1, 6))) if op in ("floordiv", "mod") else draw(index_exprs(depth - 1))
    return binary(op, a, b)


def values(expr: Expr) -> list[tuple[dict[Var, int], int]]:
    """The value of an expression at every point of ENV."""
    run = ExpressionCompiler().compile(expr)
    spans = [range(int(ENV[v].lo), int(ENV[v].hi) + 1) for v in (i, j)]
    points = [dict(zip((i, j), at, strict=True)) for at in itertools.product(*spans)]
    return [(at, run(Environment(dict(at), {}, {}))) for at in points]


@settings(max_examples=150)
@given(index_exprs())
def test_bounds_hold_every_value(expr: Expr) -> None:
    interval = bounds(expr, ENV)
    assert all(value in interval for _, value in values(expr))


FACTS = Facts().within(i, ENV[i]).within(j, ENV[j])


@settings(max_examples=150)
@given(index_exprs(), index_exprs(), index_exprs(), index_exprs())
def test_proved_inequalities_hold_under_their_assumptions(a: Expr, b: Expr, c: Expr, d: Expr) -> None:
    held = {tuple(at.values()) for at, value in values(cast(c < d, i64)) if value}
    for facts, where in ((FACTS, None), (FACTS.assume(c < d), held)):
        if facts.at_most(a, b):
            assert all(v <= 0 for at, v in values(a - b) if where is None or tuple(at.values()) in where)


def test_symbolic_limits() -> None:
    sizes = Facts().within(n, Interval(0, math.inf)).within(m, Interval(0, math.inf))
    facts = sizes.below(i, n).below(j, m)
    assert facts.at_most(i + 1, n)
    assert facts.at_most(index(0), i)
    assert facts.at_most(i * m + j + 1, n * m)
    assert facts.at_most(index(1), n)
    assert not facts.at_most(i + 2, n)
    assert not facts.at_most(j + 1, n)
    assert not sizes.at_most(index(1), n)


def test_conditions() -> None:
    facts = Facts().within(n, Interval(0, math.inf)).below(i, 16).below(j, 8)
    at = i * 8 + j
    assert not facts.at_most(at + 1, n)
    assert facts.assume(at < n).at_most(at + 1, n)
    assert facts.assume(n > at).at_most(at + 1, n)
    assert facts.assume((at < n) & (j < 4)).at_most(at + 1, n)
    assert facts.assume((at >= n) | (j < 4), holds=False).at_most(at + 1, n)
    assert facts.assume(unary("not", at >= n)).at_most(at + 1, n)
    assert facts.assume(eq(n, 128)).at_most(at + 1, n)
    assert not facts.assume(ne(n, at)).at_most(at + 1, n)
    assert not facts.assume((at < n) | (j < 4)).at_most(at + 1, n)
    assert not facts.assume(at < n, holds=False).at_most(at + 1, n)


def test_names_are_seen_through() -> None:
    t = Var("t")
    facts = Facts().below(i, 8).define(t, i * 4)
    assert facts.at_most(t + 4, index(32))
    assert facts.at_most(t, i * 4)
    assert facts.bounds(t) == Interval(0, 28)


def test_extrema() -> None:
    facts = Facts().within(n, Interval(0, math.inf)).below(i, n)
    clamped = maximum(minimum(i + 3, n - 1), 0)
    assert facts.at_most(clamped + 1, n)
    assert facts.at_most(index(0), clamped)
    assert facts.at_most(minimum(i, m), i)
    assert facts.at_most(i, maximum(m, i))
    assert not facts.at_most(maximum(i, m), i)
    assert not facts.at_most(i, minimum(m, i))


def test_the_lanes_of_a_ramp_are_bounded_together() -> None:
    facts = Facts().within(n, Interval(0, math.inf)).below(i, 4)
    lanes = ramp(i * 8, 1, 8)
    assert facts.at_most(lanes + 1, index(32))
    assert facts.assume(i * 8 + 8 <= n).at_most(lanes + 1, n)
    assert not facts.at_most(lanes + 1, index(31))
