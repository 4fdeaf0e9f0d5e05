"""Matrix products on a GPU: every engine, transposition and type, edges, prologues, epilogues, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from taskmap.graph.build import define
from taskmap.graph.graph import Node
from taskmap.graph.ops import activations, arithmetic, matmul
from taskmap.ir.construct import cast, reduce
from taskmap.ir.errors import ScheduleError
from taskmap.ir.evaluate import size_of
from taskmap.ir.nodes import Buffer, ExprLike, Var
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, f16, f32, f64, i8, i32, u8
from taskmap.schedules import schedule
from taskmap.schedules.cuda.hopper import HopperConfig
from taskmap.schedules.cuda.matmul import schedule_product, validity
from taskmap.schedules.cuda.matmul_config import MatmulConfig
from taskmap.schedules.cuda.matmul_space import choose, schedule_config, space, wasted
from taskmap.schedules.cuda.product import find_product
from tests.schedules.cuda_running import check_interpreted, check_kernel, cuda
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


def run(nodes: Sequence[Node], config: MatmulConfig, dims: dict[Var, int] | None = None, isa: str = "sm_80") -> str:
    """The text of the kernel, which ran in the simulator and gave what the definition says."""
    task = fused(nodes)
    p = find_product(task)
    assert p is not None
    return check_kernel(case_of(task, dims), schedule_product(p, config, cuda(isa)), LOOSE, isa).text


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
    m, n, k = Var("m"), Var("n"), Var("k")
    run([product("plain", m, n, k, f32, "generic")], SIMT[1], dict(zip((m, n, k), sizes, strict=True)))


def test_what_comes_before_and_after_is_fused() -> None:
    a, w = tensor(20, 24), tensor(24, 16)
    y = matmul.mm(activations.relu(arithmetic.mul(a, 2.0)), w)
    y = activations.gelu(arithmetic.add(y, tensor(16)))
    run([arithmetic.add(y, tensor(20, 16))], SIMT[0])


TENSOR = (
    MatmulConfig("f16_f32", 32, 32, 32, 16, 16, 3),
    MatmulConfig("f16_f32", 64, 16, 16, 32, 16, 2, group=2),
    MatmulConfig("f16_f32", 16, 64, 64, 16, 32, 4),
)


def tensor_config(c: MatmulConfig, dtype: DType) -> MatmulConfig:
    return replace(c, engine=f"mma_m16n8k16_{dtype}_f32")


@pytest.mark.parametrize("config", TENSOR, ids=str)
@pytest.mark.parametrize("form", ["plain", "left", "right", "batched", "several"])
def test_tensor_cores(config: MatmulConfig, form: str) -> None:
    stages = 2 if form == "several" else config.stages  # its factors are gathered, and go through registers
    text = run([product(form, 64, 48, 32, f16, "generic", 2)], tensor_config(replace(config, stages=stages), f16))
    assert "tm_mma_m16n8k16_f16_f32" in text
    assert ("cp_async" in text) == (form != "several")


@pytest.mark.parametrize("form", ["plain", "left", "right", "batched"])
def test_tensor_cores_at_edges(form: str) -> None:
    text = run([product(form, 40, 24, 56, bf16, "generic", 2)], tensor_config(TENSOR[0], bf16))
    assert "zfill_16" in text
    text = run([product(form, 37, 19, 41, f16, "generic", 2)], tensor_config(replace(TENSOR[0], stages=2), f16))
    assert "cp_async" not in text


def test_factors_of_few_bytes_are_copied_in_few() -> None:
    a = tensor(20, 36, dtype=f16)
    assert "zfill_8" in run([matmul.mm(a, tensor(36, 12, dtype=f16))], tensor_config(TENSOR[0], f16))


def test_what_comes_before_a_tensor_product_goes_through_registers() -> None:
    a, w = tensor(40, 48, dtype=f16), tensor(48, 32, dtype=f16)
    y = matmul.mm(activations.relu(arithmetic.mul(a, 2.0)), w)
    y = arithmetic.add(activations.gelu(arithmetic.add(y, tensor(32, dtype=f16))), tensor(40, 32, dtype=f16))
    run([y], tensor_config(replace(TENSOR[0], stages=2), f16))
    p = find_product(fused([y]))
    assert p is not None
    reason = validity(p, tensor_config(TENSOR[0], f16), cuda())
    assert reason is not None
    assert "two stages" in reason


def test_tensor_products_in_the_interpreter() -> None:
    for form in ("plain", "right"):
        task = fused([product(form, 17, 16, 24, f16, "generic")])
        p = find_product(task)
        assert p is not None
        config = MatmulConfig("mma_m16n8k16_f16_f32", 16, 16, 16, 16, 8, 2)
        check_interpreted(case_of(task), schedule_product(p, config, cuda()), LOOSE)


def test_a_space_is_small_and_its_best_configuration_works() -> None:
    for dtype, sizes in ((f16, (64, 64, 64)), (f32, (37, 41, 29)), (bf16, (1, 64, 128)), (f64, (16, 16, 16))):
        task = fused([product("plain", *sizes, dtype, "generic")])
        p = find_product(task)
        assert p is not None
        found = space(p, cuda())
        assert 0 < len(found) <= 200
        check_kernel(case_of(task), schedule_config(p, choose(p, cuda()), cuda()), LOOSE)


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("k", [8, 16, 64, 100, 130])
def test_no_stage_stays_empty(isa: str, k: int) -> None:
    for dtype in (f16, f32):
        p = find_product(fused([product("right", 64, 64, k, dtype, "generic")]))
        assert p is not None
        found = space(p, cuda(isa))
        assert found
        for c in found:
            assert c.stages <= max(2, -(-k // c.block_k)), c
            assert isinstance(c, HopperConfig) or c.block_k < 2 * k or c.block_k == min(x.block_k for x in found), c
        assert any(c.stages > 2 for c in found) == (dtype == f16 and k > 64)


def test_why_a_configuration_is_left_out() -> None:
    p = find_product(fused([product("right", 64, 64, 16, f16, "generic")]))
    assert p is not None
    few, many = (MatmulConfig("mma_m16n8k16_f16_f32", 32, 32, d, 16, 16, s) for d, s in ((32, 2), (64, 4)))
    assert wasted(p, few, cuda()) is None
    assert wasted(p, many, cuda()) == "4 stages hold 1 parts of k"
    assert wasted(p, replace(many, stages=2), cuda()) == "a sum of 16 terms leaves most of 64 empty"
    k = Var("k")
    later = find_product(fused([product("right", 64, 64, k, f16, "generic")]))
    assert later is not None
    assert wasted(later, many, cuda()) is None


def integers(m: int, n: int, k: int, a: DType, b: DType) -> Node:
    """A product of bytes summed in i32, its second factor contiguous along k."""

    def element(x: Buffer, w: Buffer) -> Callable[..., ExprLike]:
        r = Var("r")
        return lambda i, j: reduce("sum", [(r, k)], cast(x[i, r], i32) * cast(w[j, r], i32))

    return define("product", [tensor(m, k, dtype=a), tensor(n, k, dtype=b)], (m, n), element, i32)


@pytest.mark.parametrize(("a", "b"), [(i8, i8), (u8, i8)], ids=str)
def test_bytes(a: DType, b: DType) -> None:
    engine = f"mma_m16n8k32_{a if a == b else f'{a}_{b}'}_i32"
    run([integers(40, 24, 48, a, b)], MatmulConfig(engine, 32, 16, 64, 16, 16, 3))


@pytest.mark.parametrize("form", ["plain", "left", "right"])
def test_single_precision_rounded_to_tf32(form: str) -> None:
    stages = 3 if form == "right" else 2
    task = fused([product(form, 40, 24, 40, f32, "generic")])
    p = find_product(task)
    assert p is not None
    kernel = schedule_product(p, MatmulConfig("mma_m16n8k8_tf32_f32", 32, 16, 16, 16, 16, stages), cuda())
    check_kernel(case_of(task), kernel, {"f32": 2e-2})


def test_an_older_gpu_copies_through_registers() -> None:
    for dtype in (f16, f32):
        task = fused([product("plain", 40, 24, 40, dtype, "generic")])
        kernel = schedule(task, cuda("sm_75"))
        assert "cp_async" not in check_kernel(case_of(task), kernel, LOOSE, "sm_75").text


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
        (MatmulConfig("mma_m16n8k16_f16_f32", 64, 64, 32, 32, 32), "does not multiply f32 by f32"),
    ):
        reason = validity(p, config, target)
        assert reason is not None, config
        assert why in reason
        with pytest.raises(ScheduleError, match="cannot be computed"):
            schedule_product(p, config, target)
