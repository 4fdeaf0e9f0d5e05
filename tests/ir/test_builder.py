"""The statement builder."""

from __future__ import annotations

import pytest

from taskmap.ir.algebra.mapping import spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.errors import LoweringError, TypeMismatchError
from taskmap.ir.nodes import Buffer, Const, LoopKind, Scope, Var
from taskmap.ir.printer import print_body
from taskmap.ir.types import f32

X, N = Buffer("x", f32, (8, 4)), Var("n")


def test_statements_come_out_in_program_order() -> None:
    b = Builder()
    with b.loop("i", N, LoopKind.PARALLEL) as i:
        t = b.let("t", X[i, 0] + 1)
        with b.when(i < 4):
            b.store(X, (i, 1), t)
        with b.otherwise():
            b.store(X, (i, 2), 0)
    b.barrier()
    assert print_body(b.body()) == (
        "for i in parallel(n):\n"
        "    t = x[i, 0] + 1.0\n"
        "    if i < 4:\n"
        "        x[i, 1] = t\n"
        "    else:\n"
        "        x[i, 2] = 0.0\n"
        "barrier()"
    )


def test_a_loop_that_runs_once_is_its_body() -> None:
    b = Builder()
    with b.loop("i", 1) as i:
        b.store(X, (i, 0), 1.0)
    assert isinstance(i, Const)
    assert print_body(b.body()) == "x[0, 0] = 1.0"


def test_loops_that_do_nothing_are_left_out() -> None:
    b = Builder()
    with b.loop("i", 0) as i:
        b.store(X, (i, 0), 1.0)
    with b.loop("i", N):
        pass
    assert b.body() == ()


def test_a_decided_condition_leaves_one_branch() -> None:
    b = Builder()
    with b.when(True):
        b.store(X, (0, 0), 1.0)
    with b.otherwise():
        b.store(X, (0, 0), 2.0)
    with b.when(False):
        b.store(X, (1, 0), 1.0)
    with b.otherwise():
        b.store(X, (1, 0), 2.0)
    assert print_body(b.body()) == "x[0, 0] = 1.0\nx[1, 0] = 2.0"


def test_nested_grids_specs_and_buffers() -> None:
    b = Builder()
    tile = b.allocate("tile", f32, (2, 2), Scope.REGISTER, init=0.0)
    with b.mapped(["i", "j"], spatial(2, 2), 3) as (i, j):
        b.store(tile, (i, j), 1.0)
    b.move(tile, region(X, (0, 0), (2, 2)))
    b.matmul(tile, tile, tile)
    assert print_body(b.body()) == (
        "tile = register(f32[2, 2])\n"
        "for tile_0 in unroll(2):\n"
        "    for tile_1 in unroll(2):\n"
        "        tile[tile_0, tile_1] = 0.0\n"
        "for i, j in (spatial(2, 2)).on(3):\n"
        "    tile[i, j] = 1.0\n"
        "move(tile[0 .. +2, 0 .. +2], x[0 .. +2, 0 .. +2])\n"
        "tile[0 .. +2, 0 .. +2] += tile[0 .. +2, 0 .. +2] @ tile[0 .. +2, 0 .. +2]"
    )


def test_a_constant_needs_no_name() -> None:
    b = Builder()
    assert isinstance(b.let("t", 3), Const)
    assert b.let("t", N) is N
    assert b.body() == ()


def test_misuse_is_refused() -> None:
    b = Builder()
    with pytest.raises(LoweringError, match="does not follow"), b.otherwise():
        pass
    with pytest.raises(TypeMismatchError, match="2 dimensions but is indexed with 1"):
        b.store(X, 0, 1.0)
    with pytest.raises(TypeMismatchError, match="2 dimensions"):
        region(X, (0,), (2, 2))
    with b.loop("i", N), pytest.raises(LoweringError, match="still open"):
        b.body()
    with b.when(N < 3):
        b.store(X, (0, 0), 1.0)
    b.store(X, (0, 0), 1.0)
    with pytest.raises(LoweringError, match="does not follow"), b.otherwise():
        pass


def test_an_exception_inside_a_loop_leaves_the_builder_usable() -> None:
    b = Builder()
    with pytest.raises(ZeroDivisionError), b.loop("i", N), b.when(N < 3):
        raise ZeroDivisionError
    b.store(X, (0, 0), 1.0)
    assert print_body(b.body()) == "x[0, 0] = 1.0"
