"""Folds, the leaves of sums whose elements only their author knows: groups of threads, walks, refusals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, Compute, Reduce, Strategy, Task, reduced, stage
from taskmap.ir import repeat, spatial
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, constant_value, eq, index, maximum
from taskmap.ir.decompose.groups.fold import Fold
from taskmap.ir.decompose.groups.thread_group import ThreadGroup
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Scope, Var
from taskmap.ir.types import f32, i32
from taskmap.ir.visit import substitute
from taskmap.ir.workers import THREAD

MAPPINGS = [
    repeat(1, 4) * spatial(4, 32),
    spatial(16, 8),
    spatial(1, 64),
    repeat(1, 2) * spatial(8, 16, order=(1, 0)),
    spatial(2, 1) * repeat(1, 3) * spatial(1, 32),
    spatial(2, 4, order=(1, 0)) * spatial(4, 4),
]


def number(e: Expr, thread: int) -> int:
    found = constant_value(Simplifier()(substitute(e, {THREAD: index(thread)})))
    assert found is not None
    return int(found)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_threads_that_differ_along_the_sum_alone_are_a_group(mapping: TaskMapping) -> None:
    group = ThreadGroup.of(Builder(), mapping, 1)
    members: dict[int, set[int]] = defaultdict(set)
    rows: dict[int, set[int]] = defaultdict(set)
    for thread in range(mapping.num_workers):
        members[number(group.number, thread)].add(number(group.lane, thread))
        rows[number(group.number, thread)] |= {task[0] for task in mapping(thread)}
    assert len(members) == group.teams
    assert all(lanes == set(range(group.size)) for lanes in members.values())
    assert all(len(row) == 1 for row in rows.values())
    together = all(number(group.lane, t) == t % group.size for t in range(mapping.num_workers))
    assert group.across is not together


class Extrema(Fold):
    """The sum and the highest element of each row of ``x``, in one walk. chains: of parts, how many end."""

    def __init__(self, x: Buffer, results: Sequence[Buffer]) -> None:
        self.x, self.results = x, results

    def begin(self, b: Builder, ranges: Simplifier, group: ThreadGroup, at: Sequence[Expr]) -> None:
        self.b, self.group, self.row = b, group, at[0]
        self.total = b.allocate("total", f32, (1,), Scope.REGISTER, init=const(0, f32))
        self.highest = b.allocate("highest", f32, (1,), Scope.REGISTER, init=const(-1e30, f32))
        self.parts = b.allocate("parts", i32, (1,), Scope.REGISTER, init=const(0, i32))

    def element(self, at: Expr) -> None:
        found = self.b.let("found", self.x[self.row, at])
        self.b.store(self.total, 0, self.total[0] + found)
        self.b.store(self.highest, 0, maximum(self.highest[0], found))

    def end_part(self) -> None:
        self.b.store(self.parts, 0, self.parts[0] + 1)

    def end(self) -> None:
        both = self.group.all_reduce([self.total[0], self.highest[0]], lambda x, y: [x[0] + y[0], maximum(x[1], y[1])])
        with self.b.when(eq(self.group.lane, 0)):
            for out, value in zip(self.results, [*both, self.parts[0]], strict=True):
                self.b.store(out, self.row, value)


def rows_of(m: int, n: Dim, by: TaskMapping, splits: Sequence[int]) -> tuple[Strategy, Kernel]:
    """A strategy that walks along rows, and its kernel on x, sums, maxima and numbers of parts."""
    x = Buffer("x", f32, (m, n))
    outs = (Buffer("sums", f32, (m,)), Buffer("maxima", f32, (m,)), Buffer("parts", i32, (m,)))
    anchor = stage("found", (m,), lambda i: reduced("sum", n, lambda k: const(0, f32)))
    tree = Reduce(Task.of("rows", anchor)).tile(by.task_shape[0]).to(BLOCK).accumulate_in(REGISTER)
    for size in splits:
        tree = tree.split(size)
    tree = tree.done(Extrema(x, outs), by=by)
    made = kernel_on(tree, "rows", {"found": Buffer("found", f32, (m,))})
    dims = tuple(v for v in (n,) if isinstance(v, Var))
    return tree, Kernel("rows", (x, *outs), outs, dims, made.body, made.launch)


@pytest.mark.parametrize(
    ("by", "splits"),
    [
        (repeat(1, 4) * spatial(4, 32), [128]),
        (spatial(4, 32), [32]),
        (spatial(4, 8), [16, 8]),
        (spatial(2, 64), [64]),
        (spatial(4, 16, order=(1, 0)), [64, 16]),
    ],
    ids=str,
)
def test_each_element_is_folded_once(by: TaskMapping, splits: Sequence[int]) -> None:
    x = np.random.default_rng(0).standard_normal((8, 101)).astype(np.float32)
    for n in (101, Var("n")):
        if n != 101 and len(splits) == 1:
            continue
        sums, maxima, parts = (np.zeros(8, t) for t in (np.float32, np.float32, np.int32))
        taskmap.simulate(rows_of(8, n, by, splits)[1], x, sums, maxima, parts, seconds=60.0).check()
        np.testing.assert_allclose(sums, x.sum(1), rtol=0, atol=1e-4)
        np.testing.assert_array_equal(maxima, x.max(1))
        assert {*parts} == {-(-101 // splits[0]) if len(splits) > 1 else 0}


def test_a_fold_needs_a_sum_and_a_mapping() -> None:
    x = Buffer("x", f32, (4, 64))
    fold = Extrema(x, ())
    anchor = stage("found", (4,), lambda i: reduced("sum", 64, lambda k: const(0, f32)))
    tree = Reduce(Task.of("rows", anchor)).tile(4).to(BLOCK).accumulate_in(REGISTER).split(64)
    with pytest.raises(ScheduleError, match="micro-kernel"):
        tree.done(fold)
    with pytest.raises(ScheduleError, match="which are not whole chunks"):
        tree.done(fold, by=spatial(4, 128))
    plain = Compute(Task.of("same", stage("y", (4, 64), lambda i, j: x[i, j]))).tile(4, 64).to(BLOCK)
    with pytest.raises(ScheduleError, match="only threads share out"):
        plain.done(fold, by=spatial(4, 32))
