"""Operations and bytes against the known costs of each operator; index and mask arithmetic does not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.graph.analysis.placement import Placement
from taskmap.graph.build import define
from taskmap.graph.fusion.tasks import build_task
from taskmap.graph.nodes import InputNode, Node, topological
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.gather import embedding
from taskmap.graph.ops.matmul import bmm, mm
from taskmap.graph.ops.pooling import max_pool
from taskmap.graph.ops.softmax import softmax
from taskmap.graph.ops.views import expand, permute, slice_
from taskmap.ir.analysis.cost import buffer_bytes, bytes_moved, known_size, operations, stage_operations
from taskmap.ir.construct import call, cast, index, reduce, select
from taskmap.ir.errors import InputError
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Buffer, Dim, Var
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f16, f32, i64

SIZE = st.integers(1, 9)


def tensor(*shape: Dim, dtype: DType = f32) -> InputNode:
    return InputNode((), shape, dtype)


def task(node: Node) -> Task:
    """One task that computes the node from its inputs."""
    nodes = topological([node])
    inputs = [n for n in nodes if isinstance(n, InputNode)]
    placements = {n: Placement(n, row_major_strides(n.shape)) for n in (*inputs, node)}
    return build_task("t", [n for n in nodes if n.is_compute], inputs, [node], placements, None)


@given(SIZE, SIZE, SIZE, SIZE)
def test_a_matrix_product_is_two_operations_for_each_product(b: int, m: int, n: int, k: int) -> None:
    plain = task(mm(tensor(m, k), tensor(k, n)))
    assert operations(plain) == 2 * m * n * k
    assert bytes_moved(plain) == 4 * (m * k + k * n + m * n)
    batched = task(bmm(tensor(b, m, k), tensor(b, k, n)))
    assert operations(batched) == 2 * b * m * n * k
    assert bytes_moved(batched) == 4 * b * (m * k + k * n + m * n)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))
def test_a_convolution_counts_every_tap(groups: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    x, w = tensor(2, 2 * groups, 9, 8), tensor(3 * groups, 2, kernel, kernel)
    node = convolution(x, w, [stride], [padding], [dilation], groups=groups)
    height, width = (known_size(n) for n in node.shape[2:])
    assert operations(task(node)) == 2 * (2 * 3 * groups * height * width) * (2 * kernel * kernel)


def test_a_transposed_convolution_counts_every_tap() -> None:
    node = convolution(tensor(1, 2, 4, 4), tensor(2, 3, 3, 3), [1], [1], [1], transposed=True)
    assert operations(task(node)) == 2 * (3 * 4 * 4) * (2 * 3 * 3)


@given(SIZE, SIZE)
def test_a_softmax_computes_each_exponential_once(rows: int, columns: int) -> None:
    # maximum, difference, exponential, sum and quotient of every element
    node = softmax(tensor(rows, columns), 1)
    assert operations(task(node)) == 5 * rows * columns


def test_an_attention_computes_each_score_once() -> None:
    b, h, i, j, d = 2, 3, 5, 7, 8
    node = attention(tensor(b, h, i, d), tensor(b, h, j, d), tensor(b, h, j, d))
    products = 2 * (2 * b * h * i * j * d)
    assert products < operations(task(node)) < 1.3 * products
    assert bytes_moved(task(node)) == 4 * b * h * d * (2 * i + 2 * j)


def test_a_pooling_is_one_operation_for_each_tap() -> None:
    values = max_pool(tensor(1, 2, 8, 8), 2, [3, 3], [2, 2], [1, 1])[0]
    assert operations(task(values)) == 2 * 4 * 4 * 9


def test_indices_masks_and_conversions_are_no_operations() -> None:
    x = tensor(6, 4, dtype=f16)
    shifted = define(
        "shifted", [x], (6, 4), lambda f: lambda i, j: select(i > 0, cast(f[i - select(i > 0, 1, 0), 3 - j], f32), 0)
    )
    assert operations(task(shifted)) == 0
    assert operations(task(permute(tensor(3, 4), (1, 0)))) == 0
    positions = define("arange", [], (8,), lambda: lambda i: cast(i * 3 + 1, f32))
    assert operations(task(positions)) == 0


def test_a_selection_by_data_is_an_operation_and_so_is_its_comparison() -> None:
    node = define("clip", [tensor(10)], (10,), lambda f: lambda i: select(f[i] > 0, f[i], 0.0))
    assert operations(task(node)) == 20


def test_parts_count_for_the_axes_that_they_depend_on() -> None:
    def element(f: Buffer) -> object:
        k = Var("k")
        return lambda i, j: f[i, j] * call("exp", reduce("sum", [(k, 8)], f[i, k] + 1.0))

    node = define("scaled", [tensor(5, 8)], (5, 8), element)  # type: ignore[arg-type]
    # f + 1 for all, the sum of all, the exponential once a row, the product for all
    assert operations(task(node)) == 5 * 8 + 5 * 8 + 5 + 5 * 8


def test_axes_of_equal_extent_stay_apart() -> None:
    x, y = tensor(4, 4), tensor(4, 4)
    assert operations(task(mm(x, y))) == 2 * 64
    both = define("both", [x], (4, 4), lambda f: lambda i, j: (f[i, j] + 1.0) * (f[j, i] + 1.0))
    assert operations(task(both)) == 3 * 16


def test_the_stages_of_a_task_add_up() -> None:
    product = mm(tensor(3, 5), tensor(5, 7))
    whole = task(define("exp", [product], (3, 7), lambda f: lambda i, j: call("exp", f[i, j])))
    assert [stage_operations(stage) for stage in whole.stages] == [2 * 3 * 5 * 7, 3 * 7]
    assert operations(whole) == 2 * 3 * 5 * 7 + 3 * 7


def test_a_gather_and_a_slice_read_what_they_need() -> None:
    table, rows = tensor(1000, 16), tensor(2, 3, dtype=i64)
    assert bytes_moved(task(embedding(table, rows))) == 4 * 6 * 16 * 2 + 8 * 6
    assert bytes_moved(task(slice_(tensor(100, 4), 0, 10, 20))) == 4 * 40 * 2


def test_elements_that_share_memory_count_once() -> None:
    assert buffer_bytes(Buffer("b", f32, (5, 7), strides=(0, 1))) == 28
    assert buffer_bytes(Buffer("b", f16, (5, 7))) == 70
    assert bytes_moved(task(expand(tensor(1, 7), (5, 7)))) == 4 * (7 + 35)


def test_symbolic_sizes_need_values() -> None:
    n = Var("n")
    made = task(mm(tensor(n, 4), tensor(4, 8)))
    assert operations(made, {n: 10}) == 2 * 10 * 4 * 8
    assert bytes_moved(made, {n: 10}) == 4 * (40 + 32 + 80)
    assert known_size(n * 3 + 1, {n: 2}) == 7
    for cost in (operations, bytes_moved):
        with pytest.raises(InputError, match="size"):
            cost(made, {})
    with pytest.raises(InputError, match="symbolic sizes"):
        known_size(index(2) * n, {Var("other"): 3})
