"""Interior: clamped vector loops get a copy without clamps, and mean the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, maximum, minimum, select
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.flatten import Flatten
from taskmap.ir.lower.peel import SplitInterior, _Clamps
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.tidy import Tidy
from taskmap.ir.lower.vectorize import Vectorize
from taskmap.ir.nodes import Buffer, Compare, Expr, If, Kernel, Load, LoopKind, Ramp, Scope, Select, Var
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs, walk_stmts

LANES = 4


def clamped(size: int, shift: int, step: int, rows: int = 5) -> Kernel:
    """y[v*4 + l] = x[i] where 0 <= i < size, else 0, for i = (v*4 + l)*step + shift."""
    x, y = Buffer("x", f32, (size,)), Buffer("y", f32, (rows * LANES,))
    b = Builder()
    with b.loop("v", rows) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        i = (v * LANES + lane) * step + shift
        inside = (i >= 0) & (i < size)
        b.store(y, (v * LANES + lane,), select(inside, x[minimum(maximum(i, 0), size - 1)], const(0.0, f32)))
    return Kernel("clamped", (x, y), (y,), (), b.body())


def split(kernel: Kernel) -> Kernel:
    return SplitInterior().run(Tidy().run(Flatten().run(kernel)))


def results(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    return interpret(kernel, {kernel.buffers[0]: x}, {})[kernel.outputs[0]]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(-9, 20), st.sampled_from([-2, -1, 1, 2]))
def test_the_kernel_means_the_same(size: int, shift: int, step: int) -> None:
    kernel = clamped(size, shift, step)
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    expected = results(kernel, x)
    where = np.arange(20) * step + shift
    np.testing.assert_array_equal(expected, np.where((where >= 0) & (where < size), x[where.clip(0, size - 1)], 0))
    np.testing.assert_array_equal(results(split(kernel), x), expected)
    np.testing.assert_array_equal(results(lower(kernel), x), expected)


def loads(kernel: Kernel) -> list[Expr]:
    (branch,) = [s for s in walk_stmts(kernel.body) if isinstance(s, If)]
    return [e.indices[0] for e in walk_exprs(branch.then) if isinstance(e, Load)]


def test_inside_the_bounds_a_vector_is_contiguous() -> None:
    kernel = Vectorize().run(split(clamped(17, -2, 1)))
    assert all(isinstance(i, Ramp) for i in loads(kernel))


def test_the_copy_has_neither_clamps_nor_comparisons() -> None:
    kernel = split(clamped(17, -2, 1))
    (branch,) = [s for s in walk_stmts(kernel.body) if isinstance(s, If)]
    assert not any(e for e in walk_exprs(branch.then) if getattr(e, "op", "") in ("min", "max", "lt", "ge"))


@pytest.mark.parametrize("size", [20, 40])
def test_a_clamp_that_never_acts_makes_no_copy(size: int) -> None:
    assert not any(isinstance(s, If) for s in walk_stmts(split(clamped(size, 0, 1)).body))


def window(step: int) -> Kernel:
    """y[i] = x[min(i + t**step, 8)], for the last of the taps t."""
    x, y, taps = Buffer("x", f32, (9,)), Buffer("y", f32, (12,)), 3
    b = Builder()
    with b.loop("v", 3) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane, b.loop("t", taps) as t:
        b.store(y, (v * LANES + lane,), x[minimum(v * LANES + lane + (t if step == 1 else t * t), 8)])
    return Kernel("window", (x, y), (y,), (), b.body())


def test_a_window_is_inside_when_all_of_its_taps_are() -> None:
    kernel = window(1)
    assert any(isinstance(s, If) for s in walk_stmts(split(kernel).body))
    x = np.random.default_rng(0).normal(size=9).astype(np.float32)
    np.testing.assert_array_equal(results(split(kernel), x), x[(np.arange(12) + 2).clip(0, 8)])


def padded(tested: bool) -> Kernel:
    """y[i, l] = sum over t of x[i + t - 1, l] where that is a row of x: lanes along a row, taps across rows."""
    x, y, rows = Buffer("x", f32, (7, LANES)), Buffer("y", f32, (7, LANES)), 7
    b = Builder()
    with b.loop("i", rows) as i, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        total = b.allocate("total", f32, (1,), Scope.REGISTER, init=0.0)
        with b.loop("t", 3) as t:
            at = i + t - 1
            value: Expr = x[minimum(maximum(at, 0), rows - 1), lane]
            if tested:
                value = select((at >= 0) & (at < rows), value, const(0.0, f32))
            b.store(total, 0, total[0] + value)
        b.store(y, (i, lane), total[0])
    return Kernel("padded", (x, y), (y,), (), b.body())


def test_taps_inside_an_image_are_not_tested_one_by_one() -> None:
    kernel = padded(True)
    (branch,) = [s for s in walk_stmts(split(kernel).body) if isinstance(s, If)]
    assert not any(isinstance(e, (Compare, Select)) for s in branch.then for e in walk_exprs(s))
    x = np.random.default_rng(0).normal(size=(7, LANES)).astype(np.float32)
    expected = sum(np.pad(x, ((1, 1), (0, 0)))[t : t + 7] for t in range(3))
    np.testing.assert_allclose(results(split(kernel), x.ravel()), np.ravel(expected), rtol=1e-6)


def test_a_clamp_alike_in_all_lanes_that_decides_nothing_stays() -> None:
    assert not any(isinstance(s, If) for s in walk_stmts(split(padded(False)).body))


def test_a_clamp_that_is_not_linear_in_an_inner_loop_stays() -> None:
    assert not any(isinstance(s, If) for s in walk_stmts(split(window(2)).body))


def test_a_bound_that_differs_between_lanes_stays() -> None:
    x, y = Buffer("x", f32, (30,)), Buffer("y", f32, (8,))
    b = Builder()
    with b.loop("v", 2) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        b.store(y, (v * LANES + lane,), x[minimum((v * LANES + lane) * 3, lane * 2 + 5)])
    kernel = Kernel("slope", (x, y), (y,), (), b.body())
    assert not any(isinstance(s, If) for s in walk_stmts(split(kernel).body))


def test_symbolic_bounds() -> None:
    n = Var("n")
    x, y = Buffer("x", f32, (n,)), Buffer("y", f32, (20,))
    b = Builder()
    with b.loop("v", 5) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        b.store(y, (v * LANES + lane,), x[minimum(v * LANES + lane, n - 1)])
    kernel = Kernel("symbolic", (x, y), (y,), (n,), b.body())
    for size in (1, 7, 19, 20, 23):
        data = np.random.default_rng(size).normal(size=size).astype(np.float32)
        got = interpret(split(kernel), {x: data}, {n: size})[y]
        np.testing.assert_array_equal(got, data[np.arange(20).clip(0, size - 1)])
    assert any(isinstance(s, If) for s in walk_stmts(split(kernel).body))


def test_comparisons_are_read_only_where_a_clamp_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Expr] = []
    room = _Clamps.room

    def noted(self: _Clamps, e: Expr) -> object:
        read.append(e)
        return room(self, e)

    monkeypatch.setattr(_Clamps, "room", noted)
    x, y = Buffer("x", f32, (12,)), Buffer("y", f32, (12,))
    b = Builder()
    with b.loop("v", 3) as v, b.loop("l", LANES, LoopKind.VECTOR) as lane:
        at = v * LANES + lane
        b.store(y, (at,), select(x[at] < 1.0, x[at], 0.0))
    split(Kernel("plain", (x, y), (y,), (), b.body()))
    assert read == []
    split(clamped(17, -2, 1))
    assert read
