"""Offsets of asynchronous copies: a row's part is named apart from a k-tile's, and what is read stays the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import const, index, maximum, minimum, select
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.common_indices import NameIndices
from taskmap.ir.lower.copy_offsets import NameCopyOffsets
from taskmap.ir.lower.tidy import Tidy
from taskmap.ir.nodes import Buffer, Expr, GpuLaunch, Invoke, Kernel, LoopKind, Region, Scope
from taskmap.ir.printer import print_kernel
from taskmap.ir.types import f32, i32
from taskmap.ir.verify.bounds import accesses
from taskmap.ir.visit import loads_in, walk_exprs, walk_stmts
from taskmap.ir.workers import THREAD

THREADS, ROWS = 4, 3
COPY, COMMIT, WAIT = map(instruction_named, ("cp_async_zfill_4", "cp_async_commit", "cp_async_wait"))


def windows(height: int, width: int, pad: int, stride: int, taps: int, *, rows: int, held: bool = False) -> Kernel:
    """y[tap, row] = x[window of the row at the tap], 0 beyond an edge of the images, and for rows from ``rows`` on;
    held: the loop over taps reads a register."""
    x, y = Buffer("x", f32, (8 * height * width,)), Buffer("y", f32, (taps * taps * THREADS * ROWS,))
    b = Builder()
    tile = b.allocate("tile", f32, (THREADS * ROWS,), Scope.SHARED)
    scale = b.allocate("scale", f32, (1,), Scope.REGISTER)
    b.store(scale, (0,), 1.0)

    def inside(i: Expr, size: int) -> tuple[Expr, Expr]:
        return minimum(maximum(i, 0), size - 1), (i >= 0) & (i < size)

    with b.loop("part", taps * taps, unroll=1) as part:
        with b.loop("r", ROWS, LoopKind.UNROLLED) as r:
            number = b.let("number", r * THREADS + THREAD)
            row = minimum(number, rows - 1)
            (i, tall), (j, wide) = (
                inside(row // width % height * stride + part // taps - pad, height),
                inside(row % width * stride + part % taps - pad, width),
            )
            at = row // (width * height) * (height * width) + i * width + j
            test = (number < rows) & tall & wide
            copied = select(test, const(4, i32), const(0, i32))
            b.invoke(COPY, region(tile, (number,), (1,)), region(x, (at,), (1,)), copied)
        b.invoke(COMMIT)
        b.invoke(WAIT, index(0))
        b.barrier()
        with b.loop("r", ROWS) as r:
            value = tile[r * THREADS + THREAD]
            b.store(y, (part * (THREADS * ROWS) + r * THREADS + THREAD,), value * scale[0] if held else value)
        b.barrier()
    return Kernel("windows", (x, y), (y,), (), b.body(), GpuLaunch((1,), THREADS))


def source(kernel: Kernel) -> Region:
    """The source of the only copy."""
    (s,) = (s for s in walk_stmts(kernel.body) if isinstance(s, Invoke) and s.instruction is COPY)
    assert isinstance(s.operands[1], Region)
    return s.operands[1]


def test_a_rows_part_is_named_in_front_of_its_copy_and_an_iterations_at_the_head() -> None:
    kernel = NameIndices().run(NameCopyOffsets().run(Tidy(names=True).run(windows(2, 3, 1, 1, 3, rows=12))))
    text = print_kernel(kernel)
    head, inner = text.split("for r in unroll")[:2]
    assert "step = part // 3\n" in head
    assert "step_1 = part % 3\n" in head
    assert "row = number // 3 % 2 - 1\n" in inner
    assert "row_1 = number % 3 - 1\n" in inner
    assert "x[row_2 + step_2 .. +1]" in inner
    assert "0 <= row + step and row + step < 2" in inner
    assert "min" not in text
    assert "max" not in text


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 14)
)  # fmt: skip
def test_naming_changes_nothing_that_is_copied(
    height: int, width: int, pad: int, stride: int, taps: int, rows: int
) -> None:
    kernel = windows(height, width, pad, stride, taps, rows=rows)
    x, y = kernel.buffers
    given_x = {x: np.arange(1, 8 * height * width + 1, dtype=np.float32)}
    expected = interpret(kernel, given_x)[y]
    tidied = Tidy(names=True).run(kernel)
    named = NameCopyOffsets().run(tidied)
    np.testing.assert_array_equal(interpret(named, given_x)[y], expected)
    np.testing.assert_array_equal(interpret(NameIndices().run(named), given_x)[y], expected)
    assert not [a for a in accesses(named) if a.inside is False]


def test_loops_that_use_registers_stay() -> None:
    kernel = Tidy(names=True).run(windows(4, 5, 1, 1, 3, rows=12, held=True))
    assert any(e.buffer.scope is Scope.REGISTER for e in loads_in(kernel.body))
    assert NameCopyOffsets().run(kernel) is kernel


def test_addresses_without_quotients_stay() -> None:
    """Such as those of a matrix: each of its rows is one addition from the one before."""
    x, y = Buffer("x", f32, (64,)), Buffer("y", f32, (64,))
    b = Builder()
    tile = b.allocate("tile", f32, (THREADS * ROWS,), Scope.SHARED)
    with b.loop("part", 4, unroll=1) as part, b.loop("r", ROWS, LoopKind.UNROLLED) as r:
        at = minimum(r * THREADS + THREAD, 9) * 5 + part
        copied = select(r * THREADS + THREAD < 10, const(4, i32), const(0, i32))
        b.invoke(COPY, region(tile, (r * THREADS + THREAD,), (1,)), region(x, (at,), (1,)), copied)
    kernel = Tidy(names=True).run(Kernel("rows", (x, y), (y,), (), b.body(), GpuLaunch((1,), THREADS)))
    assert NameCopyOffsets().run(kernel) is kernel
    assert any(getattr(e, "op", None) == "min" for e in walk_exprs(source(kernel).start[0]))
