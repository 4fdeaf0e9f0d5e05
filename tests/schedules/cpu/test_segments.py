"""Segments: concatenations, stacks and replaced slices run without a choice per element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.arithmetic import mul
from taskmap.graph.ops.join import cat, select_scatter, slice_scatter, stack
from taskmap.graph.ops.rearrange import flip, roll
from taskmap.graph.ops.views import permute, reshape
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Compare, Dim, Kernel, Load, Select, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i64, u8
from taskmap.ir.visit import walk_exprs
from taskmap.schedules import schedule
from taskmap.schedules.common.segments import find_segments
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.running import Array, Case, check, isas

AVX512 = cpu_target("avx512", 2)
DTYPES = (f32, f64, f16, bf16, i64, i8, u8, boolean)


def lowered(task: Task) -> Kernel:
    return lower(schedule(task, AVX512), target=AVX512)


def choices(task: Task) -> int:
    """The number of selects and comparisons in the kernel of a task."""
    return sum(isinstance(e, (Select, Compare)) for e in walk_exprs(lowered(task).body))


def loads(task: Task) -> int:
    """The number of loads in the text of the kernel of a task."""
    return sum(isinstance(e, Load) for e in walk_exprs(lowered(task).body))


def values(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    if dtype.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    kind = {"bf16": "float32", "f16": "float16", "f32": "float32", "f64": "float64"}.get(dtype.name)
    if kind is None:
        return rng.integers(0, 100, shape).astype({"i64": "int64", "i8": "int8", "u8": "uint8"}[dtype.name])
    return (rng.integers(-64, 64, shape) / 16).astype(kind)


def case(task: Task, seed: int = 0, isa: str | None = None, **sizes: int) -> Case:
    rng = np.random.default_rng(seed)
    known = {v: sizes[v.name] for v in task.dims}

    def size(d: Dim) -> int:
        return d if isinstance(d, int) else known[d]  # type: ignore[index]  # inputs have plain sizes

    return Case(task, [values(rng, [size(d) for d in b.shape], b.dtype) for b in task.inputs], known, isa)


def joined(axis: int, lengths: Sequence[int], others: Sequence[int], dtype: DType = f32) -> Node:
    parts = [tensor(*others[:axis], n, *others[axis:], dtype=dtype) for n in lengths]
    return cat(parts, axis)


def test_no_axis_needs_a_choice() -> None:
    cases = []
    for axis in range(3):
        for lengths in ((3, 5), (17, 1, 32, 7), (16, 16, 16), (1, 1, 1, 1, 1), (37, 64)):
            task = fused([relu(joined(axis, lengths, (7, 19)))], name=f"cat{axis}of{len(lengths)}x{lengths[0]}")
            assert not any(isinstance(e, Compare) and e.a.dtype == i64 for e in walk_exprs(lowered(task).body))
            cases += [case(task, axis, isa) for isa in isas()]
    check(cases)


def test_every_type() -> None:
    cases = []
    for dtype in DTYPES:
        task = fused([joined(1, (3, 17, 8), (11,), dtype)], name=f"cat_{dtype.name}")
        assert choices(task) == 0
        cases.append(case(task))
    check(cases)


@pytest.mark.parametrize("nhwc", [False, True])
def test_the_work_of_a_kernel_does_not_grow_with_the_number_of_parts(nhwc: bool) -> None:
    def made(count: int) -> Task:
        parts = [tensor(1, 32, 14, 14) for _ in range(count)]
        y = cat(parts, 1)
        order = {n: channels_last(1, int(str(n.shape[1])), 14, 14) for n in (*parts, y)} if nhwc else {}
        return fused([y], strides=order)

    few, many = made(4), made(24)
    assert choices(few) == choices(many) == 0
    assert loads(many) == 6 * loads(few)  # a loop for each part, which reads that part only
    check([case(few), case(many)])


def test_parts_that_occur_twice_and_views_of_parts() -> None:
    x, y = tensor(11, 13), tensor(13, 11)
    turned = permute(y, (1, 0))
    cases = [
        case(fused([cat([x, x, x], 0)], name="thrice")),
        case(fused([cat([x, turned, mul(x, turned)], 1)], name="turned")),
        case(fused([reshape(cat([x, turned], 1), (13, 22))], name="reshaped")),
        case(fused([permute(cat([x, turned], 0), (1, 0))], name="permuted")),
        case(fused([flip(cat([x, turned], 1), [0, 1])], name="flipped")),
        case(fused([roll(cat([x, turned], 0), [3], [0])], name="rolled")),
        case(fused([cat([cat([x, turned], 0), cat([x, x], 0)], 1)], name="nested")),
    ]
    check(cases)


def test_several_outputs_of_one_domain() -> None:
    x, y = tensor(5, 12), tensor(5, 25)
    z = cat([x, y], 1)
    check([case(fused([z, relu(z), reshape(mul(z, z), (37, 5))]))])


def test_stacks() -> None:
    cases = []
    for axis in range(3):
        task = fused([stack([tensor(9, 37) for _ in range(5)], axis)], name=f"stack{axis}")
        assert choices(task) == 0
        cases += [case(task, isa=isa) for isa in isas()]
    check(cases)


def test_replaced_slices() -> None:
    x = tensor(23, 41)
    tasks = [
        fused([slice_scatter(x, tensor(23, 19), 1, 7, 26)], name="columns"),
        fused([slice_scatter(x, tensor(5, 41), 0, 18, 23)], name="last_rows"),
        fused([slice_scatter(x, tensor(23, 14), 1, 0, 41, 3)], name="every_third"),
        fused([slice_scatter(x, tensor(23, 12), 1, 5, 40, 3)], name="some_thirds"),
        fused([select_scatter(x, tensor(41), 0, 11)], name="a_row"),
    ]
    assert [choices(t) for t in tasks[:2]] == [0, 0]
    check([case(t) for t in tasks])


def test_symbolic_sizes() -> None:
    n, m = Var("n"), Var("m")
    tasks = [
        fused([cat([tensor(n, 19), tensor(m, 19), tensor(3, 19)], 0)], name="rows"),
        fused([cat([tensor(19, n), tensor(19, m), tensor(19, 3)], 1)], name="columns"),
        fused([relu(cat([tensor(2, 3, n), tensor(2, 5, n), tensor(2, 1, n)], 1))], name="middle"),
        fused([stack([tensor(n, m), tensor(n, m), tensor(n, m)], 2)], name="stack"),
    ]
    # The comparison decides once per call whether the work is worth sharing among threads.
    assert [choices(t) for t in (tasks[0], tasks[1], tasks[3])] == [1, 1, 1]
    check([case(t, n=n, m=m) for t in tasks for n, m in ((1, 1), (16, 33), (37, 2))])


def test_an_order_that_is_not_known_remains_a_choice() -> None:
    n, m = Var("n"), Var("m")
    x, y = tensor(n), tensor(m)

    z = cat([cat([x, y], 0), cat([y, x], 0)], 0)  # starts at n, n + m and n + 2 m: in order
    w = mul(cat([x, y], 0), cat([y, x], 0))  # starts at n and at m: nobody knows which comes first
    tasks = [fused([z], name="known"), fused([w], name="unknown")]
    domain = tasks[1].outputs[0]
    assert find_segments(tasks[1], [Var("i")], domain) is None
    check([case(t, n=n, m=m) for t in tasks for n, m in ((1, 1), (5, 37), (33, 2))])


def test_what_chooses_nothing_has_no_segments() -> None:
    x = tensor(8, 8)
    task = fused([relu(x)])
    assert find_segments(task, [Var("i"), Var("j")], task.outputs[0]) is None
    assert "segments" not in schedule(task, AVX512).note
