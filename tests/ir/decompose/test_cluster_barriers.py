"""The barrier of a cluster orders a block's own accesses to shared memory as well, those before the arrival alone."""

from __future__ import annotations

import pytest

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, eq
from taskmap.ir.decompose.barriers import Stages, with_barriers
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_stmts
from taskmap.ir.workers import THREAD


def barriers(*steps: str) -> list[int]:
    """The statements before which a barrier is inserted. "write" and "read" access the same element; other words are
    steps at the cluster's barrier."""
    b = Builder()
    cell = b.allocate("cell", f32, (1,), ir.Scope.SHARED)
    for step in steps:
        if step == "write":
            with b.when(eq(THREAD, 0)):
                b.store(cell, 0, const(1.0, f32))
        elif step == "read":
            b.let("x", cell[0])
        elif step == "barrier":
            b.barrier()
        else:
            b.invoke(instruction_named(f"cluster_{step}"))
    before = b.body()
    given = sum(isinstance(s, ir.Barrier) for s in walk_stmts(before))
    after = with_barriers(before, Stages())
    found = [n for n, s in enumerate(after) if isinstance(s, ir.Barrier)]
    assert len(found) >= given
    return [n - 1 - k for k, n in enumerate(found)]  # without the allocation and the barriers before


@pytest.mark.parametrize(("steps", "wanted"), [
    (("write", "read"), [1]),
    (("write", "arrive", "wait", "read"), []),
    (("write", "arrive_relaxed", "wait", "read"), [3]),
    (("write", "arrive", "read", "wait"), [2]),
    (("write", "wait", "read"), [2]),
    (("arrive", "write", "wait", "read"), [3]),
    (("write", "arrive", "write", "wait", "read"), [2, 4]),
    (("arrive", "write", "barrier", "wait", "read"), [2]),
    (("write", "arrive", "wait", "read", "write"), [4]),
], ids=str)  # fmt: skip
def test_which_accesses_a_clusters_barrier_orders(steps: tuple[str, ...], wanted: list[int]) -> None:
    assert barriers(*steps) == wanted
