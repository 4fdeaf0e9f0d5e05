"""Threads share a loop if its work is worth it; symbolic sizes decide when the kernel runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import arithmetic, views
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.reductions import cumsum
from taskmap.graph.ops.scatter import scatter
from taskmap.graph.ops.softmax import softmax
from taskmap.ir.construct import constant_value, index
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim, For, LoopKind, Var
from taskmap.ir.types import f32, i64
from taskmap.ir.visit import substitute, walk_stmts
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, matrix_product, tensor
from tests.schedules.running import Case, check, target

SMALL, LARGE = 3, 100_000
KINDS: dict[str, Callable[[Dim], Node]] = {
    "one axis": lambda n: arithmetic.add(tensor(n), tensor(n)),
    "two axes": lambda n: arithmetic.add(tensor(n, 40), tensor(40)),
    "transpose": lambda n: arithmetic.add(tensor(n, 40), views.permute(tensor(40, n), (1, 0))),
    "rows": lambda n: softmax(tensor(n, 96), 1),
    "matmul": lambda n: matrix_product("plain", n, 32, 48, f32),
    "scan": lambda n: cumsum(tensor(n, 50), 1),
    "scatter": lambda n: scatter(tensor(n, 40), 1, tensor(n, 7, dtype=i64), tensor(n, 7)),
    "convolution": lambda n: convolution(tensor(n, 3, 5, 5), tensor(8, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    "depthwise": lambda n: convolution(tensor(n, 16, 5, 5), tensor(16, 1, 3, 3), (1, 1), (1, 1), (1, 1), groups=16),
    "attention": lambda n: attention(tensor(n, 2, 5, 8), tensor(n, 2, 5, 8), tensor(n, 2, 5, 8), None),
}


def decisions(node: Node, size: int | None = None, symbol: Var | None = None) -> list[bool]:
    """For each loop that threads may share, if they do: for a symbolic kernel at ``size``."""
    kernel = lower(schedule(fused([node]), target()), None, target())
    found = []
    for s in walk_stmts(kernel.body):
        if not isinstance(s, For) or s.kind is not LoopKind.PARALLEL:
            continue
        if s.shared is None:
            found.append(True)
            continue
        assert symbol is not None
        assert size is not None
        found.append(bool(constant_value(substitute(s.shared, {symbol: index(size)}))))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_symbolic_size_decides_at_run_time(kind: str) -> None:
    n = Var("n")
    node = KINDS[kind](n)
    assert not any(decisions(node, SMALL, n))
    assert any(decisions(node, LARGE, n))


@pytest.mark.parametrize("kind", KINDS)
def test_static_sizes_decide_alike(kind: str) -> None:
    assert not any(decisions(KINDS[kind](SMALL)))
    assert any(decisions(KINDS[kind](LARGE)))


@pytest.mark.parametrize("size", [1, SMALL, 700])
def test_both_ways_compute_the_same(size: int) -> None:
    draw = np.random.default_rng(size)
    cases = []
    for kind in ("one axis", "two axes", "transpose", "rows", "matmul", "convolution"):
        n = Var("n")
        task = fused([KINDS[kind](n)])
        shapes = [[size_of(d, {n: size}) for d in b.shape] for b in task.inputs]
        cases.append(Case(task, [draw.standard_normal(s).astype(np.float32) for s in shapes], {n: size}))
    check(cases, {"f32": 1e-4})
