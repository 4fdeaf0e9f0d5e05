"""Convolutions whose results lie along the image's columns: stored a strip of columns at a time, channel by channel."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, f32
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.running import Case, check, isas, target

SHAPES = {
    "rows of a strip": ((1, 5, 3, 64), (16, 5, 3, 3), 1),
    "strips and a rest": ((2, 3, 2, 149), (33, 3, 3, 3), 1),
    "few columns": ((1, 7, 5, 17), (70, 7, 3, 3), 1),
    "sound": ((2, 1, 517), (48, 1, 10), 5),
    "a stride": ((1, 3, 9, 83), (64, 3, 7, 7), 2),
}


def network(image: tuple[int, ...], weights: tuple[int, ...], stride: int, dtype: DType = f32) -> tuple[Node, Node]:
    """A convolution, and what follows it."""
    padding = [n // 2 if len(image) == 4 else 0 for n in weights[2:]]
    y = convolution(tensor(*image, dtype=dtype), tensor(*weights, dtype=dtype), [stride], padding, [1])
    z = activations.relu(add_channel_bias(y, tensor(weights[0], dtype=dtype)))
    return y, arithmetic.add(z, tensor(*y.shape, dtype=dtype))


def case(task: Task, isa: str) -> Case:
    rng = np.random.default_rng(len(isa))
    return Case(
        task, [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(np.float32) for b in task.inputs], isa=isa
    )


def strips(kernel: Kernel) -> list[Buffer]:
    found = [getattr(s, "buffer", None) for s in walk_stmts(kernel.body)]
    return list({b for b in found if isinstance(b, Buffer) and b.name.startswith("turned")})


@pytest.mark.parametrize("name", SHAPES)
def test_values(name: str) -> None:
    y, z = network(*SHAPES[name])
    tasks = [fused([z], y), fused([y, z], y), fused([y], y)]
    check([case(task, isa) for task in tasks for isa in isas()], {"f32": 1e-4})


def test_every_pass_keeps_the_meaning() -> None:
    y, z = network((1, 2, 2, 19), (17, 2, 3, 3), 1)
    for isa in ("avx512", "avx2"):
        check_every_pass(case(fused([z], y), isa), {"f32": 1e-4})


def test_words_are_exchanged_among_registers() -> None:
    """No result is stored by itself: each store fills a vector of columns."""
    y, _ = network(*SHAPES["rows of a strip"])
    task = fused([y], y)
    kernel = schedule(task, target("avx512"))
    assert strips(kernel)
    text = generate(lower(kernel, target=target("avx512"))).text
    assert "tm_store_strided" not in text
    assert "tm_transpose_u32x16(" in text


def test_where_channels_lie_together_or_are_few_tiles_are_stored() -> None:
    def turned(image: tuple[int, ...], weights: tuple[int, ...], last: bool = False, dtype: DType = f32) -> bool:
        y, _ = network(image, weights, 1, dtype)
        task = fused([y], y, {y: channels_last(*y.shape)} if last else {})
        return bool(strips(schedule(task, target("avx512"))))

    image, weights = SHAPES["rows of a strip"][:2]
    assert turned(image, weights)
    assert not turned(image, weights, last=True)
    assert not turned(image, weights, dtype=bf16)
    assert not turned((1, 5, 3, 14), weights)
    assert not turned(image, (15, 5, 3, 3))
