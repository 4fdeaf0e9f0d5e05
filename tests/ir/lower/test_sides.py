"""Sides: a vector that takes one side of a choice computes that side alone, and kernels mean the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, maximum, minimum, select
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.sides import SplitSides
from taskmap.ir.lower.tidy import Tidy
from taskmap.ir.nodes import Buffer, Expr, For, If, Kernel, Load, LoopKind, Select
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs, walk_stmts

LANES = 4


def joined(sizes: list[int], turned: bool = False) -> Kernel:
    """y is the concatenated inputs, read LANES at a time; ``turned``: from the end."""
    parts = [Buffer(f"x{n}", f32, (size,)) for n, size in enumerate(sizes)]
    total = sum(sizes)
    rows = -(-total // LANES)
    y = Buffer("y", f32, (rows * LANES,))
    b = Builder()
    with b.loop("v", rows) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        at = v * LANES + lane
        i = minimum(total - 1 - at if turned else at, total - 1)
        i = maximum(i, 0)
        start = sum(sizes[:-1])
        value: Expr = parts[-1][maximum(i - start, 0)]
        for part, size in reversed(list(zip(parts[:-1], sizes[:-1], strict=True))):
            start -= size
            inside = maximum(minimum(i - start, size - 1), index(0))
            value = select(i < start + size, b.let("part", part[inside]), value)
        b.store(y, (at,), value)
    return Kernel("joined", (*parts, y), (y,), (), b.body())


def result(kernel: Kernel, arrays: list[np.ndarray]) -> np.ndarray:
    return interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)), {})[kernel.outputs[0]]


def split(kernel: Kernel) -> Kernel:
    return SplitSides().run(Tidy().run(Flatten().run(kernel)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 13), min_size=2, max_size=4), st.booleans())
def test_the_kernel_means_the_same(sizes: list[int], turned: bool) -> None:
    kernel = joined(sizes, turned)
    arrays = [np.random.default_rng(n).normal(size=size).astype(np.float32) for n, size in enumerate(sizes)]
    expected = result(kernel, arrays)
    whole = np.concatenate(arrays)
    np.testing.assert_array_equal(expected[: whole.size], whole[::-1] if turned else whole)
    np.testing.assert_array_equal(result(split(kernel), arrays), expected)
    np.testing.assert_array_equal(result(lower(kernel), arrays), expected)


def plain(sizes: list[int]) -> Kernel:
    """The same with two parts, where the lanes are the position itself."""
    a, c = (Buffer(f"x{n}", f32, (size,)) for n, size in enumerate(sizes))
    y = Buffer("y", f32, (sum(sizes),))
    b = Builder()
    with b.loop("v", sum(sizes) // LANES) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        i = v * LANES + lane
        first = b.let("first", a[minimum(i, sizes[0] - 1)])
        second = b.let("second", c[maximum(i - sizes[0], 0)])
        b.store(y, (i,), select(i < sizes[0], first, second))
    return Kernel("plain", (a, c, y), (y,), (), b.body())


def test_a_side_reads_its_own_part_alone() -> None:
    kernel = split(plain([12, 8]))
    outer = next(s for s in walk_stmts(kernel.body) if isinstance(s, If))
    (inner,) = outer.orelse
    assert isinstance(inner, If)
    for body, number in ((outer.then, 0), (inner.then, 1)):
        assert {e.buffer for e in walk_exprs(body) if isinstance(e, Load)} == {kernel.buffers[number]}
        assert not any(isinstance(e, Select) for e in walk_exprs(body))
    assert any(isinstance(e, Select) for e in walk_exprs(inner.orelse))


def test_a_choice_of_a_value_that_is_not_loaded_stays() -> None:
    x, y = Buffer("x", f32, (8,)), Buffer("y", f32, (8,))
    b = Builder()
    with b.loop("v", 2) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        i = v * LANES + lane
        b.store(y, (i,), select(i < 5, x[i], 0.0))
    kernel = Tidy().run(Flatten().run(Kernel("k", (x, y), (y,), (), b.body())))
    assert SplitSides().run(kernel).body == kernel.body


def summed(count: int, total: int = 240) -> Kernel:
    """y is the sum of that many pairs of inputs, each concatenated at a different position."""
    pairs = [(Buffer(f"a{n}", f32, (100 + 7 * n,)), Buffer(f"b{n}", f32, (total - 100 - 7 * n,))) for n in range(count)]
    y = Buffer("y", f32, (total,))
    b = Builder()
    with b.loop("v", total // LANES) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        at = v * LANES + lane
        value: Expr | None = None
        for first, second in pairs:
            end = first.shape[0]
            part = select(at < end, first[minimum(at, end - 1)], second[maximum(at - end, index(0))])
            value = part if value is None else value + part
        assert value is not None
        b.store(y, (at,), value)
    return Kernel("summed", (*[x for pair in pairs for x in pair], y), (y,), (), b.body())


@pytest.mark.parametrize("count", [1, 3, 8, 12])
def test_independent_choices_share_the_copies(count: int) -> None:
    kernel = summed(count)
    made = split(kernel)
    copies = sum(isinstance(s, For) and s.kind is LoopKind.VECTOR for s in walk_stmts(made.body))
    assert 2 * min(count, 8) <= copies + 1 <= 18  # a test has two sides, or a third where lanes differ
    lengths = [size for n in range(count) for size in (100 + 7 * n, 140 - 7 * n)]
    arrays = [np.random.default_rng(n).normal(size=size).astype(np.float32) for n, size in enumerate(lengths)]
    np.testing.assert_array_equal(result(made, arrays), result(kernel, arrays))
