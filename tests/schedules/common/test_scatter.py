"""Scatters on the CPU and on a GPU: any layout, type, size and order of positions, symbolic sizes, fused sources."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from taskmap.graph.fusion.planning import Group, plan
from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.ops import activations, arithmetic, scatter
from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError, VerifyError
from taskmap.ir.interp.definitions import evaluate, size_of
from taskmap.ir.nodes import Dim, For, LoopKind, Var
from taskmap.ir.printer import print_expr
from taskmap.ir.types import bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from tests.schedules import cuda_running
from tests.schedules.graph_tasks import fused, permuted_strides, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, TOLERANCE, Array, Case, check, isas, run_cases, run_task, target


def random_case(seed: int, isa: str | None = None) -> Case:
    """Some scatter into a tensor of rank 1 to 3; positions collide often, or are few."""
    chance = random.Random(seed)
    dims: dict[Var, int] = {}
    rank = chance.choice((1, 2, 2, 3))
    axis = chance.randrange(rank)
    sizes = [chance.choice((1, 2, 5, 16, 33)) for _ in range(rank)]
    length = chance.choice((1, 3, 17, 40))
    shape: list[Dim] = list(sizes)
    if seed % 3 == 1:
        d = chance.randrange(rank)
        symbol = Var(f"n{d}")
        dims[symbol] = sizes[d]
        shape[d] = symbol
    dtype = chance.choice((f32, f32, f64, f16, bf16, i32, i64, i8, u8, boolean))
    how = chance.choice(("sum", "prod", "amax", "amin", "last"))
    x = tensor(*shape, dtype=dtype)
    kind = chance.choice(("slices", "elements", "all"))
    if kind == "slices":
        indices = tensor(length, dtype=chance.choice((i64, i32)))
        source = tensor(*(length if d == axis else n for d, n in enumerate(shape)), dtype=dtype)
        y = scatter.index_combine("index", x, axis, indices, source, how)
    elif kind == "elements":
        smaller = [chance.randint(1, n) if isinstance(n, int) else n for n in shape]
        smaller[axis] = length
        indices, source = tensor(*smaller, dtype=i64), tensor(*smaller, dtype=dtype)
        y = scatter.scatter(x, axis, indices, source, how)
    else:
        indices = tensor(length, dtype=i64)
        source = tensor(length, dtype=dtype)
        y = scatter.index_put(x, [indices] * rank, source, chance.random() < 0.5)
    y = y.inputs[0] if y.op == "to" else y  # 16-bit results are converted by a separate kernel
    order = chance.sample(range(rank), rank)
    strides = {y: permuted_strides(y.shape, order)} if chance.random() < 0.4 else {}
    task = fused([y], None, strides, [x, indices, source])
    arrays: list[Array] = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    below = min(sizes) if kind == "all" else sizes[axis]
    at = [chance.randrange(below) for _ in range(arrays[1].size)]
    arrays[1] = np.array(at, arrays[1].dtype).reshape(arrays[1].shape)
    return Case(task, arrays, dims, isa)


LOOSE = {**TOLERANCE, "f32": 1e-4, "f64": 1e-9}


def test_random_scatters_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(50)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_scatters_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 12, 3):
        check_every_pass(random_case(500 + seed, isa), LOOSE)


@pytest.mark.parametrize("seed", range(8))
def test_random_scatters_by_owners(seed: int) -> None:
    cuda_running.check(random_case(1000 + seed), LOOSE)


@pytest.mark.parametrize("seed", range(14))
def test_random_scatters_through_shared_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.schedules.cuda.scatter._FEW", 0)
    cuda_running.check(random_case(2000 + seed), LOOSE)


def rows(seed: int, n: int, length: int, width: int) -> tuple[Array, Array, Array]:
    chance = np.random.default_rng(seed)
    x, s = (chance.standard_normal((k, width)).astype(np.float32) for k in (n, length))
    return x, chance.integers(0, n, length), s


def test_sums_have_the_bits_of_additions_one_after_another() -> None:
    x, i, s = rows(0, 9, 200, 37)
    want = x.copy()
    for n, at in enumerate(i):
        want[at] += s[n]
    y = scatter.index_add(tensor(9, 37), 0, tensor(200, dtype=i64), tensor(200, 37))
    case = Case(fused([y]), [x, i, s])
    np.testing.assert_array_equal(run_cases([case])[0][0], want)
    kernel = schedule(case.task, cuda_running.cuda())
    for seed in range(3):
        got = cuda_running.simulated(case, kernel, cuda_running.source_of(kernel), seed)[0]
        np.testing.assert_array_equal(got, want)


def test_integers_have_the_same_bits_in_any_order() -> None:
    i = np.random.default_rng(1).integers(0, 70, 3000)
    y = scatter.scatter(tensor(70, dtype=i32), 0, tensor(3000, dtype=i64), tensor(3000, dtype=i32), "sum")
    case = Case(fused([y]), [np.zeros(70, np.int32), i, np.ones(3000, np.int32)])
    kernel = schedule(case.task, cuda_running.cuda())
    assert "atomics in shared memory" in kernel.note
    for seed in range(3):
        got = cuda_running.simulated(case, kernel, cuda_running.source_of(kernel), seed)[0]
        np.testing.assert_array_equal(got, np.bincount(i, minlength=70))


def test_the_note_says_which_rule_was_chosen() -> None:
    wide = fused([scatter.index_add(tensor(50, 64), 0, tensor(9000, dtype=i64), tensor(9000, 64))])
    assert "owners" in schedule(wide, cuda_running.cuda()).note
    assert "order=source" in schedule(wide, cuda_running.cuda()).note
    flat = fused([scatter.scatter(tensor(500), 0, tensor(9000, dtype=i64), tensor(9000), "sum")])
    assert "order=any" in schedule(flat, cuda_running.cuda()).note
    product = fused([scatter.scatter(tensor(500), 0, tensor(9000, dtype=i64), tensor(9000), "prod")])
    assert "owners" in schedule(product, cuda_running.cuda()).note
    for isa, lanes in (("avx512", 16), ("avx2", 8)):
        note = f"cpu.scatter(50x64, sum, ranges=4, lanes={lanes}, order=source)"
        assert schedule(wide, target(isa)).note == note


@pytest.mark.parametrize(("columns", "tasks"), [(32, 4), (30, 3), (4, 4), (3, 3), (7, 1), (67, 1)])
def test_elements_with_positions_of_their_own_are_shared_by_columns(columns: int, tasks: int) -> None:
    """Ranges of positions would be told apart by every task, element by element."""
    length = 9000
    y = scatter.scatter(tensor(20, columns), 0, tensor(length, columns, dtype=i64), tensor(length, columns), "sum")
    task = fused([y], None, {}, list(y.inputs))
    kernel = schedule(task, target())
    assert "ranges=1," in kernel.note
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]
    assert [static_size(loop.extent) for loop in loops] in ([tasks], [] if tasks == 1 else [tasks])
    rng = np.random.default_rng(columns)
    x, s = (rng.standard_normal((n, columns)).astype(np.float32) for n in (20, length))
    i = rng.integers(0, 20, (length, columns))
    want = x.copy()
    np.add.at(want, (i, np.arange(columns)), s)
    np.testing.assert_array_equal(run_cases([Case(task, [x, i, s])])[0][0], want)


@pytest.mark.parametrize("position", [4, -1, 1 << 40])
def test_a_position_out_of_range_is_reported_and_not_written(position: int) -> None:
    y = scatter.index_add(tensor(4, 3), 0, tensor(2, dtype=i64), tensor(2, 3))
    arrays = [np.zeros((4, 3), np.float32), np.array([1, position]), np.ones((2, 3), np.float32)]
    with pytest.raises(IndexError):
        run_task(fused([y]), arrays)


def test_what_a_scatter_takes_is_computed_in_its_kernel() -> None:
    x, i, s = InputNode((), (30, 64), f32, 0), InputNode((), (50,), i64, 1), InputNode((), (50, 64), f32, 2)
    y = scatter.index_add(activations.relu(x), 0, i, arithmetic.mul(activations.silu(s), 2))
    z = arithmetic.add(y, 1)
    groups = [g for g in plan(Graph([x, i, s], [z])).steps if isinstance(g, Group)]
    assert [g.kind for g in groups] == ["scatter", "pointwise"]
    assert {n.op for n in groups[0].nodes} == {"relu", "silu", "mul", "index_add"}
    arrays = rows(3, 30, 50, 64)
    check([Case(groups[0].task, [arrays[n.index] for n in groups[0].inputs if isinstance(n, InputNode)])], LOOSE)


def test_a_scatter_is_printed_and_evaluated_only_whole() -> None:
    y = scatter.index_add(tensor(4), 0, tensor(2, dtype=i64), tensor(2))
    assert y.define is not None
    assert print_expr(y.define.body).startswith("scatter(x0[i0]; sum at [checked_index(")
    half = replace(y.define, body=y.define.body + 1.0)
    arrays = [np.zeros(4, np.float32), np.array([1, 2]), np.ones(2, np.float32)]
    with pytest.raises(VerifyError, match="part of a larger definition"):
        evaluate(replace(half, axes=(Var("other"),)), arrays)


def test_a_scatter_with_another_output_is_refused() -> None:
    x = activations.relu(tensor(4))
    y = scatter.index_add(x, 0, tensor(2, dtype=i64), tensor(2))
    for chosen in (target(), cuda_running.cuda()):
        with pytest.raises(ScheduleError, match="not its only output"):
            schedule(fused([x, y]), chosen)
