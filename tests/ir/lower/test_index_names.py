"""Index names: addresses use the kernel's names for their parts; unrolled fills become one loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.builder import Builder
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.collapse import CollapseLoops
from taskmap.ir.lower.common_indices import NameIndices
from taskmap.ir.lower.tidy import Tidy
from taskmap.ir.nodes import Buffer, Expr, For, Kernel, Let, LoopKind, Store, Var
from taskmap.ir.printer import print_kernel
from taskmap.ir.types import f32, i64
from taskmap.ir.visit import walk_stmts


def test_an_address_is_written_with_the_names_around_it() -> None:
    n = Var("n")
    x, y = Buffer("x", f32, (n * 64,)), Buffer("y", f32, (n * 64,))
    b = Builder()
    with b.loop("block", n) as block, b.loop("t", 32) as t:
        row = b.let("row", block * 64)
        i = b.let("i", t // 8 + 3)
        b.store(y, (row + i,), x[row + i * 2])
    kernel = Kernel("k", (x, y), (y,), (n,), b.body())
    text = print_kernel(NameIndices().run(Tidy(names=True).run(kernel)))
    assert "y[row + i] = x[i * 2 + row]" in text


def test_a_name_that_nothing_uses_disappears() -> None:
    x = Buffer("x", f32, (8,))
    b = Builder()
    with b.loop("i", 8) as i:
        b.let("unused", i * 2 + 1)
        b.store(x, (i,), 1.0)
    lowered = NameIndices().run(Tidy(names=True).run(Kernel("k", (x,), (x,), (), b.body())))
    assert not any(isinstance(s, Let) for s in walk_stmts(lowered.body))


def test_values_that_are_read_are_never_named_again() -> None:
    """A load may return another value later, so its name does not replace it."""
    x, y = Buffer("x", i64, (8,)), Buffer("y", i64, (2,))
    b = Builder()
    first = b.let("first", x[0])
    b.store(x, (0,), first + 1)
    b.store(y, (0,), first)
    b.store(y, (1,), x[0])
    kernel = Kernel("k", (x, y), (x, y), (), b.body())
    lowered = NameIndices().run(Tidy(names=True).run(kernel))
    given_x = np.arange(8, dtype=np.int64)
    result = interpret(lowered, {lowered.buffers[0]: given_x})[lowered.buffers[1]]
    assert result.tolist() == [0, 1]


@st.composite
def indices(draw: st.DrawFn, variables: list[Expr]) -> Expr:
    total: Expr = draw(st.sampled_from(variables)) * draw(st.integers(1, 6))
    for _ in range(draw(st.integers(0, 3))):
        term = draw(st.sampled_from(variables))
        total = total + draw(st.sampled_from((term, term * 3, term // 2, term % 5))) * draw(st.integers(1, 4))
    return total + draw(st.integers(0, 7))


@settings(max_examples=60)
@given(st.data())
def test_naming_changes_no_value(data: st.DataObject) -> None:
    y = Buffer("y", i64, (3, 4, 5))
    b = Builder()
    with b.loop("i", 3) as i, b.loop("j", 4) as j:
        known: list[Expr] = [i, j]
        for number in range(data.draw(st.integers(0, 3))):
            known.append(b.let(f"t{number}", data.draw(indices(known))))
        with b.loop("k", 5) as k:
            known.append(k)
            known.append(b.let("u", data.draw(indices(known))))
            b.store(y, (i, j, k), data.draw(indices(known)))
    kernel = Kernel("k", (y,), (y,), (), b.body())
    expected = interpret(kernel, {})[y]
    named = NameIndices().run(Tidy(names=True).run(kernel))
    np.testing.assert_array_equal(interpret(named, {})[y], expected)


def fill(strides: tuple[int, int], value: float | None = None) -> Kernel:
    size = 2 * strides[0] + 3 * strides[1]
    y = Buffer("y", f32, (size,))
    b = Builder()
    with b.loop("z", size) as z:
        b.store(y, (z,), 0.0)
    with b.loop("i", 2, LoopKind.UNROLLED) as i, b.loop("j", 3, LoopKind.UNROLLED) as j:
        b.store(y, (i * strides[0] + j * strides[1],), 5.0 if value is None else value)
    return Kernel("fill", (y,), (y,), (), b.body())


def test_a_fill_of_all_slots_is_one_loop() -> None:
    kernel = fill((3, 1))
    lowered = CollapseLoops().run(kernel)
    assert sum(isinstance(s, For) for s in walk_stmts(lowered.body)) == 2
    (store,) = [s for s in walk_stmts(lowered.body) if isinstance(s, Store)][1:]
    assert isinstance(store.indices[0], Var)
    np.testing.assert_array_equal(interpret(lowered, {})[kernel.outputs[0]], interpret(kernel, {})[kernel.outputs[0]])


def test_a_nest_with_gaps_stays() -> None:
    kernel = fill((4, 1))
    assert CollapseLoops().run(kernel) is kernel
