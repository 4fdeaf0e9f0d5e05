"""Simplification keeps the value of every expression, and the ranges it reasons with hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import as_expr, binary, compare, const, index, maximum, minimum, select, unary
from taskmap.ir.interp.definitions import evaluate
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.task import Compute
from taskmap.ir.types import boolean, i64
from taskmap.ir.visit import walk_exprs


@dataclass
class World:
    """Variables and their known ranges: two sizes, loops below known and unknown sizes, and one unbounded."""

    sizes: list[Var]
    loops: dict[Var, Dim]
    free: Var

    def simplifier(self) -> Simplifier:
        s = Simplifier()
        for size in self.sizes:
            s.bind_range(size, (1, float("inf")))
        for var, extent in self.loops.items():
            s.bind(var, extent)
        return s


def world() -> World:
    n, m = Var("n"), Var("m")
    i, j, k, r = Var("i"), Var("j"), Var("k"), Var("r")
    return World([n, m], {i: n, j: m, k: 16, r: n * m}, Var("free"))


def atoms(w: World) -> st.SearchStrategy[Expr]:
    variables = st.sampled_from([*w.sizes, *w.loops, *w.loops, w.free])
    constants = st.sampled_from([-17, -3, -1, 0, 1, 2, 3, 4, 7, 8, 16, 32, 64]).map(lambda c: const(c, i64))
    return variables | constants


def test_a_block_of_a_symbolic_grid_lies_within_each_extent() -> None:
    n, m, block = Var("n"), Var("m"), Var("block")
    tiles = (m + 31) // 32 * 2
    s = Simplifier()
    s.bind(block, n * tiles)
    assert s(compare("lt", block // tiles, n)) == compare("eq", const(1, i64), const(1, i64))
    assert s(compare("lt", block // tiles, n - 1)) == compare("lt", block // tiles, s(n - 1))


@given(st.integers(0, 6), st.integers(-9, 9), st.integers(-9, 9), st.integers(-500, 500), st.data())
@settings(max_examples=60)
def test_terms_above_all_bits_are_taken_out(bits: int, a: int, b: int, c: int, data: st.DataObject) -> None:
    i, j, k = Var("i"), Var("j"), Var("k")
    s = Simplifier()
    s.bind(k, 1 << bits)
    swizzled = binary("xor", i * (a << bits) + j * b + c, k)
    simple = s(swizzled)
    for _ in range(8):
        where = {i: data.draw(st.integers(-50, 50)), j: data.draw(st.integers(-50, 50))}
        where[k] = data.draw(st.integers(0, (1 << bits) - 1))
        assert value(simple, where) == value(swizzled, where)


def test_a_swizzle_touches_the_low_bits_only() -> None:
    i, j, k = Var("i"), Var("j"), Var("k")
    s = Simplifier()
    for var, extent in ((i, 100), (j, 64), (k, 64)):
        s.bind(var, extent)
    assert s(binary("xor", i * 128 + j + 64, k)) == s(i * 128 + binary("xor", j, k) + 64)
    assert s(binary("xor", i * 64, k)) == s(i * 64 + k)
    assert s.range(binary("xor", j, k)) == (0, 63)
    free = Var("free")
    assert s(binary("xor", i * 64, free)) == binary("xor", i * 64, free)


def divisors(w: World) -> st.SearchStrategy[Expr]:
    """Positive expressions."""
    n, m = w.sizes
    known = st.sampled_from([1, 2, 3, 4, 8, 16, 17, 64]).map(lambda c: const(c, i64))
    return known | st.sampled_from([n, m, n * m, n * 16, n + 1, maximum(w.free, 1)])


def exprs(w: World) -> st.SearchStrategy[Expr]:
    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pairs = st.tuples(inner, inner)
        sums = pairs.map(lambda p: p[0] + p[1])
        scaled = st.tuples(inner, st.sampled_from([-2, 3, 4, 16, 64])).map(lambda p: p[0] * p[1])
        split = st.tuples(inner, divisors(w))
        rejoined = split.map(lambda p: p[0] // p[1] * p[1] + p[0] % p[1])
        chosen = st.tuples(inner, inner, inner).map(lambda p: select(p[0] < p[1], p[1], p[2]))
        return st.one_of(
            sums,
            sums,
            scaled,
            pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            split.map(lambda p: p[0] // p[1]),
            split.map(lambda p: p[0] % p[1]),
            rejoined,
            pairs.map(lambda p: minimum(*p)),
            pairs.map(lambda p: maximum(*p)),
            pairs.map(lambda p: binary("xor", *p)),
            inner.map(lambda e: unary("neg", e)),
            chosen,
        )

    return st.recursive(atoms(w), extend, max_leaves=8)


def conditions(w: World) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(exprs(w), exprs(w), st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
    single = pairs.map(lambda p: compare(p[2], p[0], p[1]))
    return single | st.tuples(single, single).map(lambda p: binary("and", *p))


def value(e: Expr, values: dict[Var, int]) -> int:
    return int(evaluate(Compute("e", (), (), e.dtype, (), e), [], values))


def draw_values(data: st.DataObject, w: World) -> dict[Var, int]:
    """One assignment that satisfies the simplifier's assumptions."""
    values = {size: data.draw(st.integers(1, 40), label=size.name) for size in w.sizes}
    for var, extent in w.loops.items():
        limit = value(index(extent), values)
        values[var] = data.draw(st.integers(0, limit - 1), label=var.name)
    values[w.free] = data.draw(st.integers(-100, 100), label="free")
    return values


WORLD = world()


@settings(max_examples=400)
@given(exprs(WORLD), st.data())
def test_integers_keep_their_value_and_lie_in_their_range(e: Expr, data: st.DataObject) -> None:
    simplifier = WORLD.simplifier()
    simple = simplifier(e)
    low, high = simplifier.range(simple)
    for _ in range(3):
        values = draw_values(data, WORLD)
        expected = value(e, values)
        assert value(simple, values) == expected
        assert low <= expected <= high
        assert simplifier.range(e)[0] <= expected <= simplifier.range(e)[1]


@settings(max_examples=400)
@given(conditions(WORLD), st.data())
def test_conditions_keep_their_value(e: Expr, data: st.DataObject) -> None:
    simple = WORLD.simplifier()(e)
    for _ in range(3):
        values = draw_values(data, WORLD)
        assert value(simple, values) == value(e, values)


@settings(max_examples=100)
@given(exprs(WORLD))
def test_simplifying_twice_changes_nothing_more(e: Expr) -> None:
    simplifier = WORLD.simplifier()
    once = simplifier(e)
    assert WORLD.simplifier()(once) == once


@given(exprs(WORLD))
def test_no_variable_appears(e: Expr) -> None:
    before = {v for v in walk_exprs(e) if isinstance(v, Var)}
    assert {v for v in walk_exprs(WORLD.simplifier()(e)) if isinstance(v, Var)} <= before


def test_simplifications_that_schedules_rely_on() -> None:
    n, m = WORLD.sizes
    i, j, k, r = WORLD.loops
    s = WORLD.simplifier()
    assert s((i * m + j) // m) == i
    assert s((i * m + j) % m) == j
    assert s((i * 16 + k) // 16) == i
    assert s((i * 16 + k) % 16) == k
    assert s((i * 16 + k) // 64) == i // 4
    assert s(r // m * m + r % m) == r
    assert s(minimum(k, 15)) == k
    assert s(k < 16) == as_expr(True)
    assert s(i < n) == as_expr(True)
    assert s(compare("ge", i, n)) == const(False, boolean)
    assert s(i * m + j < n * m) == as_expr(True)


def test_an_unknown_sign_proves_nothing() -> None:
    n, _ = WORLD.sizes
    i, *_ = WORLD.loops
    s, free = WORLD.simplifier(), WORLD.free
    for unknown in (i * free <= (n - 1) * free, (i % free) < free, i * free < n * free):
        assert not isinstance(s(unknown), type(const(0, i64))), unknown


def test_a_quotient_by_a_size_loses_common_factors() -> None:
    n, row, column = Var("n"), Var("row"), Var("column")
    s = Simplifier()
    s.bind_range(n, (1, float("inf")))
    s.bind(row, 1000)
    s.bind(column, 128)
    flat = row * 128 + column
    assert s(binary("floordiv", flat, n * 128)) == binary("floordiv", row, n)
    assert s(binary("mod", flat, n * 128)) == s(binary("mod", row, n) * 128 + column)
    assert s(binary("floordiv", flat, n * 128) * n * 128 + binary("mod", flat, n * 128)) == s(flat)
    below = Var("below")
    s.bind(below, n)
    assert s(binary("floordiv", row * n + below, n * 4)) == binary("floordiv", row, 4)
    free = Var("free")
    for divisor in (free * 128, n * -128):
        kept = binary("floordiv", flat, divisor)
        assert s(kept) == kept


@pytest.mark.parametrize("start", [3, 68, 49152, 49168])
def test_the_digits_of_an_index_join_whatever_number_is_added(start: int) -> None:
    # A sum along a row of 320 x 14 x 14 begins its last block at 49152.
    s, t = Simplifier(), Var("t")
    s.bind(t, 10_000)
    x = t + start
    assert s(x // 196 * 196 + x // 14 % 14 * 14 + x % 14) == s(x)
    assert s(x // 196 * 5 + (x // 14 + 7) % 14) != s(x)
    assert s((x // 14 + 7) // 14) == s((x + 98) // 196)
