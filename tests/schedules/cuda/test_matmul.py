"""Matrix products on a GPU: SIMT and tensor cores, transpositions, types, edges, prologues, epilogues, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as sim
from taskmap.backend.sim.run import Policy
from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, matmul
from taskmap.ir.construct import cast, reduce
from taskmap.ir.errors import ScheduleError, SimulationError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.flatten import span
from taskmap.ir.nodes import Buffer, ExprLike, Var
from taskmap.ir.target import cuda_target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, f16, f32, f64, i8, i32, u8
from taskmap.schedules import schedule
from taskmap.schedules.cuda.hopper.matmul import HopperConfig
from taskmap.schedules.cuda.matmul import strategy
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.matmul.shared_tile import swizzled_bytes
from taskmap.schedules.cuda.matmul.strategy import strategy_of
from taskmap.schedules.cuda.matmul.template import schedule_product, validity
from taskmap.schedules.cuda.select_matmul import choose, schedule_config, space, wasted, why_not
from tests.schedules.cpu.test_matmul import product
from tests.schedules.cuda_running import check_interpreted, check_kernel, cuda, simulated, source_of
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case

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
    """The text of the kernel, after its result in the simulator matched the definition."""
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
    return replace(c, multiplier=f"mma_m16n8k16_{dtype}_f32")


@pytest.mark.parametrize("config", TENSOR, ids=str)
@pytest.mark.parametrize("form", ["plain", "left", "right", "batched", "several"])
def test_tensor_cores(config: MatmulConfig, form: str) -> None:
    stages = 2 if form == "several" else config.stages  # its operands are gathered, through registers
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
    assert wasted(p, many, cuda()) == "4 stages hold only 1 k-tiles"
    assert wasted(p, replace(many, stages=2), cuda()) == "a sum of 16 terms leaves most of 64 empty"
    k = Var("k")
    later = find_product(fused([product("right", 64, 64, k, f16, "generic")]))
    assert later is not None
    assert wasted(later, many, cuda()) is None


SPLIT = (
    MatmulConfig("simt", 16, 16, 8, 16, 16, split=4),
    MatmulConfig("simt", 16, 32, 16, 8, 16, group=2, split=2),
    MatmulConfig("mma_m16n8k16_f16_f32", 32, 32, 32, 16, 16, 3, split=4),
    MatmulConfig("mma_m16n8k16_f16_f32", 16, 64, 32, 16, 32, 2, group=8, split=2),
)
ORDERS: tuple[tuple[int, Policy], ...] = ((0, "late"), (1, "early"), (7, "late"), (8, "early"))


@pytest.mark.parametrize("config", SPLIT, ids=str)
@pytest.mark.parametrize("form", ["plain", "batched"])
def test_sums_that_blocks_share_are_the_same_in_every_order(config: MatmulConfig, form: str) -> None:
    dtype = f32 if config.multiplier == "simt" else f16
    y = product(form, 35, 40, 248 if dtype == f16 else 83, dtype, "generic", 2)
    task = fused([arithmetic.add(activations.relu(y), 1.0)])
    p = find_product(task)
    assert p is not None
    kernel, case = schedule_product(p, config, cuda()), case_of(task)
    source = check_kernel(case, kernel, LOOSE)
    assert len(source.workspace) == len(source.counters) == 1
    first, *others = ([a.tobytes() for a in simulated(case, kernel, source, *order)] for order in ORDERS)
    assert all(found == first for found in others)


WARPGROUPS = (
    ("plain", 520, HopperConfig("wgmma_m64n64k16_f16_f32", 128, 64, 2, 3, split=5)),
    ("right", 300, HopperConfig("wgmma_m64n32k16_f16_f32", 64, 32, 1, 4, split=2)),
    ("computed", 264, HopperConfig("wgmma_m64n32k16_f16_f32", 64, 32, 1, 3, split=2)),
)


@pytest.mark.parametrize(("form", "k", "config"), WARPGROUPS, ids=str)
def test_sums_that_blocks_of_warpgroups_share(form: str, k: int, config: HopperConfig) -> None:
    if form == "computed":
        y = matmul.mm(activations.relu(tensor(136, k, dtype=f16)), tensor(k, 40, dtype=f16))
    else:
        y = product(form, 136, 40, k, f16, "generic", 2)
    task = fused([arithmetic.add(activations.relu(y), 1.0)])
    p = find_product(task)
    assert p is not None
    kernel, case = schedule_config(p, config, cuda("sm_90a")), case_of(task)
    source = check_kernel(case, kernel, LOOSE, "sm_90a")
    first, *others = ([x.tobytes() for x in simulated(case, kernel, source, *order)] for order in ORDERS)
    assert all(found == first for found in others)
    for other in (replace(config, persistent=True), replace(config, boxed=True), replace(config, split=10)):
        assert why_not(p, other, cuda("sm_90a")) is not None


def test_a_shared_sum_in_the_interpreter() -> None:
    task = fused([product("plain", 9, 17, 15, f32, "generic")])
    p = find_product(task)
    assert p is not None
    config = MatmulConfig("simt", 8, 16, 4, 4, 16, group=2, split=2)
    check_interpreted(case_of(task), schedule_product(p, config, cuda()), LOOSE)


def test_a_part_that_is_left_out_is_seen() -> None:
    task = fused([product("plain", 35, 40, 248, f16, "generic")])
    p = find_product(task)
    assert p is not None
    kernel, case = schedule_product(p, SPLIT[2], cuda()), case_of(task)
    source = source_of(kernel)
    for old, new, why in (
        ("arrived[0] == 3", "arrived[0] == 2", "uninitialised|race between blocks"),
        ("tm_fence_gpu();", "", "race between blocks"),
        ("tm_atomic_exch_i32(arrivals + tile, 0);", "", "counters that are not 0"),
    ):
        assert old in source.text
        with pytest.raises(SimulationError, match=why):
            simulated(case, kernel, replace(source, text=source.text.replace(old, new)), 7)


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_few_tiles_and_long_sums_are_shared(isa: str, dtype: DType) -> None:
    target = cuda_target(isa)
    for sizes, shared in (((64, 64, 32768), True), ((512, 512, 16384), True), ((4096, 4096, 4096), False)):
        p = find_product(fused([product("left", *sizes, dtype, "generic")]))
        assert p is not None
        found = space(p, target)
        assert 0 < len(found) <= 200
        assert sum(isinstance(c, HopperConfig) for c in found) <= 100
        assert any(c.split > 1 for c in found) == shared
        assert (choose(p, target).split > 1) == shared, choose(p, target)


def test_why_a_sum_is_not_shared() -> None:
    config = SPLIT[2]
    k = Var("k")
    for m, n, depth, c, why in (
        (64, 64, k, config, "all sizes are known"),
        (64, 64, 96, config, "3 k-tiles are not enough for 4 blocks"),
        (8192, 8192, 4096, config, "take 1024 MiB"),
        (64, 64, 256, replace(config, split=0), "0 blocks cannot"),
    ):
        p = find_product(fused([product("plain", m, n, depth, f16, "generic")]))
        assert p is not None
        reason = validity(p, c, cuda())
        assert reason is not None
        assert why in reason


SWIZZLED = (
    *((form, f16, MatmulConfig("mma_m16n8k16_f16_f32", m, n, k, 16, 16, 2)) for form in ("plain", "left", "right")
      for m, n, k in ((32, 16, 32), (64, 32, 64), (16, 128, 32))),
    ("right", f32, MatmulConfig("mma_m16n8k8_tf32_f32", 32, 32, 16, 16, 16, 2)),
    ("right", f32, MatmulConfig("mma_m16n8k8_tf32_f32", 32, 32, 32, 16, 16, 2)),
    ("right", i8, MatmulConfig("mma_m16n8k32_i8_i32", 32, 32, 64, 16, 16, 2)),
    ("right", i8, MatmulConfig("mma_m16n8k32_i8_i32", 32, 32, 128, 16, 16, 2)),
)  # fmt: skip


def conflicts(form: str, dtype: DType, config: MatmulConfig) -> tuple[CudaSource, int]:
    """The source of a product, and the extra shared-memory cycles of its bank conflicts."""
    node = integers(64, 64, 128, i8, i8) if dtype == i8 else product(form, 64, 64, 64, dtype, "generic")
    task = fused([node])
    p = find_product(task)
    assert p is not None
    kernel = schedule_product(p, config, replace(cuda(), tf32=True))
    source = source_of(kernel)
    arrays = [
        np.zeros(size_of(span(b), {}), np.uint8 if b.dtype == i8 else f"i{b.dtype.bytes}") for b in kernel.buffers
    ]
    found = sim.run(source, arrays, outputs=[2]).counters
    assert found["ldmatrix"]
    return source, found["shared wavefronts"] - found["shared ideal"]


@pytest.mark.parametrize(("form", "dtype", "config"), SWIZZLED, ids=str)
def test_tiles_meet_no_bank_conflicts(form: str, dtype: DType, config: MatmulConfig) -> None:
    source, more = conflicts(form, dtype, config)
    assert "tm_cp_async_16" in source.text  # for every type
    assert "tm_cp_async_8" not in source.text
    assert more == 0
    tiles = (config.block_m + config.block_n) * config.block_k * dtype.bytes * config.stages
    assert source.shared_bytes == tiles  # nothing is padded


def test_without_a_swizzle_banks_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "swizzle_of", lambda dtype, length: (0, 3, 3))
    assert conflicts(*SWIZZLED[0])[1] > 0


def test_lines_that_cannot_be_swizzled_are_padded() -> None:
    p = find_product(fused([product("right", 64, 64, 96, f16, "generic")]))
    assert p is not None
    for depth, arranged in ((48, ".pad(8)"), (32, ".swizzle(2, 3, 3)"), (64, ".swizzle(3, 3, 3)")):
        tree = strategy_of(p, MatmulConfig("mma_m16n8k16_f16_f32", 32, 32, depth, 16, 16))
        assert str(tree).count(arranged) == 2
    assert swizzled_bytes(f16, 2, 32, 48, along_k=True) == 2 * 32 * 56 * 2
    assert swizzled_bytes(f16, 2, 32, 64, along_k=True) == 2 * 32 * 64 * 2


def test_warpgroups_round_to_tf32_only_where_that_is_allowed() -> None:
    p = find_product(fused([product("right", 64, 64, 64, f32, "generic")]))
    assert p is not None
    config, target = HopperConfig("wgmma_m64n64k8_tf32_f32", 64, 64, 1, 2), cuda("sm_90a")
    assert why_not(p, config, replace(target, tf32=True)) is None
    assert "may be rounded to tf32 only if" in str(why_not(p, config, target))


def integers(m: int, n: int, k: int, a: DType, b: DType) -> Node:
    """A product of bytes summed in i32, its second operand contiguous along k."""

    def element(x: Buffer, w: Buffer) -> Callable[..., ExprLike]:
        r = Var("r")
        return lambda i, j: reduce("sum", [(r, k)], cast(x[i, r], i32) * cast(w[j, r], i32))

    return define("product", [tensor(m, k, dtype=a), tensor(n, k, dtype=b)], (m, n), element, i32)


@pytest.mark.parametrize(("a", "b"), [(i8, i8), (u8, i8)], ids=str)
def test_bytes(a: DType, b: DType) -> None:
    multiplier = f"mma_m16n8k32_{a if a == b else f'{a}_{b}'}_i32"
    run([integers(40, 24, 48, a, b)], MatmulConfig(multiplier, 32, 16, 64, 16, 16, 3))


@pytest.mark.parametrize("form", ["plain", "left", "right"])
def test_single_precision_rounded_to_tf32(form: str) -> None:
    stages = 3 if form == "right" else 2
    task = fused([product(form, 40, 24, 40, f32, "generic")])
    p = find_product(task)
    assert p is not None
    config, target = MatmulConfig("mma_m16n8k8_tf32_f32", 32, 16, 16, 16, 16, stages), replace(cuda(), tf32=True)
    check_kernel(case_of(task), schedule_product(p, config, target), {"f32": 2e-2})
    assert all(c.multiplier == "mma_m16n8k8_tf32_f32" for c in space(p, target))
    assert "may be rounded to tf32 only if" in str(validity(p, config, cuda()))
    assert all(c.multiplier == "simt" for c in space(p, cuda()))


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
        (MatmulConfig("simt", 512, 512, 8, 32, 32), "limit of 1024"),
        (MatmulConfig("simt", 64, 64, 8, 32, 32, stages=1), "a single stage"),
        (MatmulConfig("simt", 512, 512, 64, 128, 64), "bytes of shared memory"),
        (MatmulConfig("simt", 16, 16, 2, 16, 16), "chunks of 4"),
        (MatmulConfig("mma_m16n8k16_f16_f32", 64, 64, 32, 32, 32), "does not multiply f32 by f32"),
    ):
        reason = validity(p, config, target)
        assert reason is not None, config
        assert why in reason
        with pytest.raises(ScheduleError, match="cannot be computed"):
            schedule_product(p, config, target)
