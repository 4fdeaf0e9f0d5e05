"""The rule for element-wise work on a GPU: random tasks, vectors where memory allows them, symbolic sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from taskmap.backend.sim import run as sim
from taskmap.graph.ops import activations, arithmetic, pointwise, pooling, views
from taskmap.ir.nodes import For, LoopKind, Var
from taskmap.ir.types import DType, bf16, f16, f32, f64, i8
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from tests.schedules.cpu.test_elementwise_random import tolerance
from tests.schedules.cuda_running import check, check_interpreted, check_kernel, cuda
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.random_tasks import elementwise_case, random_array
from tests.schedules.running import Case


@pytest.mark.parametrize("seed", range(40))
def test_random_tasks(seed: int) -> None:
    case = elementwise_case(seed, symbolic=seed % 4 == 1, special=seed % 5 == 2, largest=256)
    kernel = schedule(case.task, cuda())
    check_interpreted(case, kernel, tolerance(case.task))
    if seed % 4 < 2:
        check_kernel(case, kernel, tolerance(case.task))


def lanes_of(case: Case) -> list[int]:
    kernel = check(case)
    return [int(s.extent.value) for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]  # type: ignore[attr-defined]  # vector loops have constant extents


@pytest.mark.parametrize(("dtype", "lanes"), [(f64, 2), (f32, 4), (f16, 8), (bf16, 8)])
def test_sixteen_bytes_at_once(dtype: DType, lanes: int) -> None:
    rng = np.random.default_rng(0)
    x = tensor(6, 64, dtype=dtype)
    array = rng.standard_normal((6, 64)).astype({"f64": np.float64, "f16": np.float16}.get(dtype.name, np.float32))
    array = array if dtype != bf16 else np.round(array * 4) / 4
    assert lanes_of(Case(fused([activations.relu(x)]), [array])) == [lanes]


def test_bytes_travel_sixteen_at_once() -> None:
    x, y = tensor(6, 64, dtype=i8), tensor(6, 64, dtype=i8)
    arrays = [np.arange(384, dtype=np.int64).astype(np.int8).reshape(6, 64) for _ in range(2)]
    case = Case(fused([arithmetic.add(x, y)]), arrays)
    assert lanes_of(case) == [16]
    assert "tm_load<16>" in check_kernel(case, schedule(case.task, cuda())).text
    wide = Case(fused([arithmetic.add(x, tensor(6, 64, dtype=f32))]), [arrays[0], np.ones((6, 64), np.float32)])
    assert lanes_of(wide) == [4]  # the widest type determines the number


def test_an_odd_size_of_flat_memory_has_vectors_and_a_tail() -> None:
    x = tensor(7, 37)
    assert lanes_of(Case(fused([arithmetic.mul(x, 2.0)]), [np.ones((7, 37), np.float32)])) == [4]


def test_a_row_at_an_odd_address_has_no_vectors() -> None:
    n = Var("n")
    x = tensor(7, n)
    case = Case(fused([arithmetic.add(x, tensor(n))]), [np.ones((7, 5), np.float32), np.ones(5, np.float32)], {n: 5})
    assert lanes_of(case) == []


def test_windows_are_vectors_of_channels() -> None:
    x = tensor(1, 8, 9, 9)
    pooled = pooling.max_pool(x, 2, [3, 3], [2, 2], [1, 1])[0]
    rng = np.random.default_rng(0)
    strides = {x: channels_last(1, 8, 9, 9), pooled: channels_last(1, 8, 5, 5)}
    array = rng.standard_normal((1, 8, 9, 9)).astype(np.float32)
    assert lanes_of(Case(fused([pooled], strides=strides), [array])) == [4]


@pytest.mark.parametrize(
    ("shape", "order"),
    [((70, 90), (1, 0)), ((2, 24, 9, 11), (0, 2, 3, 1)), ((2, 9, 11, 24), (0, 3, 1, 2)), ((64, 64), (1, 0))],
    ids=str,
)
def test_transposes_go_through_shared_memory(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = tensor(*shape)
    other = tuple(shape[d] for d in order)
    y = arithmetic.add(views.permute(x, order), tensor(*other))
    case = Case(fused([y]), [rng.standard_normal(s).astype(np.float32) for s in (shape, other)])
    kernel = schedule(case.task, cuda())
    assert kernel.note.startswith("cuda.transpose")
    check_kernel(case, kernel)


@pytest.mark.parametrize(
    ("dtype", "out", "shape", "lanes"),
    [
        (f16, f16, (72, 136), 8), (bf16, bf16, (2, 64, 200), 8), (i8, i8, (128, 80), 16), (i8, i8, (200, 72), 8),
        (f16, f32, (72, 136), 4), (f16, f16, (132, 70), 2), (f16, f16, (67, 72), 1), (f32, f16, (72, 136), 1),
    ],
    ids=str,
)  # fmt: skip
def test_transposes_of_narrow_elements_are_vectors(
    dtype: DType, out: DType, shape: tuple[int, ...], lanes: int
) -> None:
    x = tensor(*shape, dtype=dtype)
    turned = views.permute(x, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    task = fused([activations.relu(pointwise.to_dtype(turned, out))])
    case = Case(task, [random_array(random.Random(0), dtype, shape)])
    kernel = schedule(task, cuda())
    assert kernel.note.startswith("cuda.transpose")
    assert kernel.note.endswith(f"lanes={lanes})")
    check_interpreted(case, kernel)
    source = check_kernel(case, kernel)
    if lanes < 8 or dtype == i8:
        return
    arrays = [np.zeros(np.prod(shape), np.uint16) for _ in range(2)]
    counters = sim.run(source, arrays, outputs=[1]).counters
    assert counters["shared wavefronts"] == counters["shared ideal"]  # no two lanes access the same bank


def test_a_transpose_of_any_size() -> None:
    n = Var("n")
    task = fused([arithmetic.mul(views.permute(tensor(64, n), (1, 0)), 2.0)])
    kernel = schedule(task, cuda())
    assert kernel.note.startswith("cuda.transpose")
    for size in (1, 33, 100):
        array = np.random.default_rng(size).standard_normal((64, size)).astype(np.float32)
        check_kernel(Case(task, [array], {n: size}), kernel)


def test_transposed_inputs_of_different_types_keep_theirs() -> None:
    """Each tile has the type of its input, and every output is computed from all of them."""
    shape = (136, 72)
    rng = np.random.default_rng(0)
    x, y = tensor(*shape, dtype=i8), tensor(*shape, dtype=f64)
    total = arithmetic.add(views.permute(x, (1, 0)), views.permute(y, (1, 0)))
    arrays = [random_array(random.Random(0), i8, shape), 1e-9 * rng.standard_normal(shape) + 1]
    case = Case(fused([total, arithmetic.mul(total, 2.0)]), arrays)
    kernel = schedule(case.task, cuda())
    assert kernel.note.startswith("cuda.transpose")
    assert check_kernel(case, kernel).text.count("tm_shared<") == 2
    check_interpreted(case, kernel)


def test_a_batch_of_transposes_of_any_number() -> None:
    n, m = Var("n"), Var("m")
    task = fused([arithmetic.mul(views.permute(tensor(n, 48, m), (0, 2, 1)), 2.0)])
    kernel = schedule(task, cuda())
    assert kernel.note.startswith("cuda.transpose")
    assert kernel.launch is not None
    assert len(kernel.launch.grid) == 1  # no other axis of a grid takes as many blocks
    for sizes in ((1, 1), (3, 33)):
        array = np.random.default_rng(0).standard_normal((sizes[0], 48, sizes[1])).astype(np.float32)
        source = check_kernel(Case(task, [array], dict(zip((n, m), sizes, strict=True))), kernel)
        assert "< n" not in source.text  # every block has a matrix


def test_one_kernel_serves_all_sizes() -> None:
    n = Var("n")
    task = fused([arithmetic.mul(arithmetic.add(tensor(n, 3), 1.0), 2.0)])
    for size in (1, 2, 85, 86, 171):
        array = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        check(Case(task, [array], {n: size}))


def test_a_single_element() -> None:
    check(Case(fused([arithmetic.add(tensor(1), 1.0)]), [np.ones(1, np.float32)]))
