"""Local buffers fit a thread's stack at any size."""

from __future__ import annotations

import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import norms, softmax
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import convolution
from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Buffer, Kernel, Scope
from taskmap.ir.task import Task
from taskmap.ir.types import f32, f64
from taskmap.schedules import schedule
from taskmap.schedules.common.stack_limit import STACK_BYTES, local_bytes
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.running import ISAS, target


def convolved(c: int, h: int, w: int, oc: int, k: int, groups: int = 1) -> Task:
    x = tensor(1, c, h, w)
    y = convolution(x, tensor(oc, c // groups, k, k), [1], [k // 2], [1], False, [0], groups)
    return fused([y], y, {n: channels_last(*n.shape) for n in (x, y)})


def attended(length: int, depth: int) -> Task:
    q = tensor(1, 1, length, depth)
    y = attention(q, q, q)
    return fused([y], y)


def softened(length: int) -> Task:
    x: Node = tensor(2, length, dtype=f64)
    for _ in range(8):
        x = softmax.softmax(x, 1)
    return fused([x])


TASKS = {
    "wide image": lambda: convolved(512, 16, 2000, 64, 3),
    "usual image": lambda: convolved(64, 56, 56, 64, 3),
    "wide depthwise": lambda: convolved(2048, 16, 1000, 2048, 5, 2048),
    "large heads": lambda: attended(300, 2048),
    "usual heads": lambda: attended(300, 64),
    "many values along a row": lambda: softened(16000),
    "group norm": lambda: fused([norms.group_norm(tensor(1, 32, 60, 60), None, None, 2, 1e-5)[0]]),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TASKS)
def test_every_schedule_fits(name: str, isa: str) -> None:
    assert local_bytes(schedule(TASKS[name](), target(isa))) <= STACK_BYTES


# A block's columns fill register tiles: 11 of 14 positions, or 27 of 6.
@pytest.mark.parametrize(("isa", "columns"), [("avx512", 154), ("avx2", 162), ("generic", 162)])
def test_a_row_that_does_not_fit_goes_in_blocks_of_columns(isa: str, columns: int) -> None:
    assert f"block=1x{columns}," in schedule(TASKS["wide image"](), target(isa)).note
    assert "x56," in schedule(TASKS["usual image"](), target(isa)).note


def test_buffers_of_branches_share_their_place() -> None:
    b = Builder()
    y = Buffer("y", f32, (10,))
    b.allocate("both", f32, (100,))
    with b.loop("i", 10) as i:
        with b.when(i < 5):
            b.allocate("first", f32, (30,))
            b.store(y, i, 0.0)
        with b.otherwise():
            b.allocate("second", f64, (20,))
            b.allocate("register", f32, (1000,), Scope.REGISTER)
            b.store(y, i, 1.0)
    assert local_bytes(Kernel("k", (y,), (y,), (), b.body())) == 400 + 160
