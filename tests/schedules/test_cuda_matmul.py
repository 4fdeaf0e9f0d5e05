"""Matrix products on a GPU: every engine, transposition and type, edges, prologues, epilogues, refusals."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from taskmap.graph.graph import Node
from taskmap.graph.ops import activations, arithmetic
from taskmap.ir.errors import ScheduleError
from taskmap.ir.evaluate import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, f16, f32, f64
from taskmap.schedules.cuda.matmul import find_product, schedule_product, validity
from taskmap.schedules.cuda.matmul_config import MatmulConfig
from tests.schedules.cuda_running import check_kernel, cuda
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case
from tests.schedules.test_matmul import product

LOOSE = {"f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}
SIMT = (
    MatmulConfig("simt", 16, 16, 8, 16, 16),
    MatmulConfig("simt", 8, 16, 4, 4, 16, group=2),
    MatmulConfig("simt", 16, 8, 8, 16, 8),
)


def case_of(task: Task, dims: dict[Var, int] | None = None, seed: int = 0) -> Case:
    chance = random.Random(seed)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims or {}) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims or {})


def run(nodes: Sequence[Node], config: MatmulConfig, dims: dict[Var, int] | None = None, isa: str = "sm_80") -> None:
    task = fused(nodes)
    p = find_product(task)
    assert p is not None
    case = case_of(task, dims)
    check_kernel(case, schedule_product(p, config, cuda(isa)), LOOSE)


@pytest.mark.parametrize("config", SIMT, ids=str)
@pytest.mark.parametrize("form", ["plain", "left", "right", "batched", "several"])
@pytest.mark.parametrize("sizes", [(16, 16, 16), (17, 7, 11)], ids=str)
def test_ordinary_threads(config: MatmulConfig, form: str, sizes: tuple[int, int, int]) -> None:
    run([product(form, *sizes, f32, "generic", 2)], config)


@pytest.mark.parametrize("dtype", [f64, f16, bf16], ids=str)
def test_other_types(dtype: DType) -> None:
    run([product("plain", 17, 24, 16, dtype, "generic")], SIMT[0])


@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 7, 20), (33, 16, 8)], ids=str)
def test_sizes_known_later(sizes: tuple[int, int, int]) -> None:
    dims: tuple[Dim, ...] = (Var("m"), Var("n"), Var("k"))
    run([product("plain", *dims, f32, "generic")], SIMT[1], dict(zip(dims, sizes, strict=True)))  # type: ignore[arg-type]  # they are variables


def test_what_comes_before_and_after_is_fused() -> None:
    a, w = tensor(20, 24), tensor(24, 16)
    from taskmap.graph.ops import matmul

    y = matmul.mm(activations.relu(arithmetic.mul(a, 2.0)), w)
    y = activations.gelu(arithmetic.add(y, tensor(16)))
    run([arithmetic.add(y, tensor(20, 16))], SIMT[0])


def test_refusals_say_why() -> None:
    p = find_product(fused([product("plain", 64, 64, 64, f32, "generic")]))
    assert p is not None
    target = cuda()
    for config, why in (
        (MatmulConfig("simt", 48, 64, 8, 32, 32), "do not divide a block"),
        (MatmulConfig("simt", 512, 512, 8, 32, 32), "1024 are the most"),
        (MatmulConfig("simt", 64, 64, 8, 32, 32, stages=1), "one stage"),
        (MatmulConfig("simt", 512, 512, 64, 128, 64), "bytes of shared memory"),
        (MatmulConfig("simt", 16, 16, 2, 16, 16), "chunks of 4"),
    ):
        reason = validity(p, config, target)
        assert reason is not None, config
        assert why in reason
        with pytest.raises(ScheduleError, match="cannot be computed"):
            schedule_product(p, config, target)
