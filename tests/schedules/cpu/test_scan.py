"""Prefix sums and products: any axis, any type, symbolic sizes around the axis, element-wise neighbours, layouts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from taskmap.graph.ops import arithmetic
from taskmap.graph.ops.reductions import cumprod, cumsum
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, For, LoopKind, Var
from taskmap.ir.types import bf16, f16, f32, f64, i32, i64
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, permuted_strides, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, run_task, target

LOOSE = {"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2, "f64": 1e-9}


def random_case(seed: int, isa: str) -> Case:
    chance = random.Random(seed)
    dims: dict[Var, int] = {}
    rank = chance.choice((1, 2, 2, 3))
    axis = chance.randrange(rank)
    shape: list[Dim] = [chance.choice((1, 2, 7, 16, 33)) for _ in range(rank)]
    for d in range(rank):
        if d != axis and seed % 3 == 1:
            symbol = Var(f"n{d}")
            dims[symbol] = size_of(shape[d], {})
            shape[d] = symbol
    dtype = chance.choice((f32, f32, f64, f16, bf16, i32, i64))
    x = tensor(*shape, dtype=dtype)
    y = cumsum(x, axis) if dtype.is_float is False or chance.random() < 0.7 else cumprod(x, axis)
    z = arithmetic.mul(y, tensor(*shape, dtype=y.dtype)) if chance.random() < 0.5 else y
    outputs = [z] if z is y or chance.random() < 0.5 else [y, z]
    order = chance.sample(range(rank), rank)
    strides = {n: permuted_strides(n.shape, order) for n in (x, *outputs) if chance.random() < 0.4}
    task = fused(outputs, None, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


def test_random_scans_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(60)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_scans_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 18, 3):
        check_every_pass(random_case(500 + seed, isa), LOOSE)


def test_a_scan_walks_its_axis_once() -> None:
    y = cumsum(tensor(3, 500), 1)
    assert schedule(fused([y]), target()).note == "cpu.scan(length=500, lanes=1)"
    z = cumsum(tensor(500, 40), 0)
    assert schedule(fused([z]), target()).note.startswith("cpu.scan(length=500")


def test_only_scans_of_many_elements_are_shared_out() -> None:
    def shared(rows: int) -> bool:
        kernel = schedule(fused([cumsum(tensor(rows, 500), 1)]), target())
        return any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk_stmts(kernel.body))

    assert not shared(4)
    assert shared(64)
    x = np.random.default_rng(1).standard_normal((64, 500)).astype(np.float32)
    (got,) = run_task(fused([cumsum(tensor(64, 500), 1)]), [x])
    np.testing.assert_array_equal(got, np.cumsum(x.astype(np.float64), 1).astype(np.float32))


def test_long_sums_are_rounded_once() -> None:
    x = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32) + 100
    (got,) = run_task(fused([cumsum(tensor(2, 1000), 1)]), [x])
    np.testing.assert_array_equal(got, np.cumsum(x.astype(np.float64), 1).astype(np.float32))
