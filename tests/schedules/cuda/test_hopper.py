"""Products on Hopper: TMA, a ring of mbarriers, warpgroups; transpositions, types, edges, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, matmul
from taskmap.ir.construct import cast
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Var
from taskmap.ir.types import DType, bf16, f16, f32
from taskmap.schedules import schedule
from taskmap.schedules.cuda.hopper.matmul import HopperConfig, schedule_hopper, validity
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.select_matmul import space
from tests.schedules.cpu.test_matmul import product
from tests.schedules.cuda.test_matmul import LOOSE, case_of
from tests.schedules.cuda_running import check_kernel, cuda
from tests.schedules.graph_tasks import fused, tensor

CONFIGS = (
    HopperConfig("wgmma_m64n64k16_f16_f32", 64, 64, 1, 2),
    HopperConfig("wgmma_m64n64k16_f16_f32", 128, 64, 2, 3, group=2),
    HopperConfig("wgmma_m64n128k16_f16_f32", 128, 128, 1, 2),
)


def run(nodes: Sequence[Node], config: HopperConfig, dims: dict[Var, int] | None = None) -> str:
    """The text of the kernel, after its result in the simulator matched the definition."""
    task = fused(nodes)
    p = find_product(task)
    assert p is not None
    return check_kernel(case_of(task, dims), schedule_hopper(p, config, cuda("sm_90a")), LOOSE, "sm_90a").text


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("form", ["plain", "left", "right", "batched"])
def test_every_transposition(config: HopperConfig, form: str) -> None:
    text = run([product(form, 128, 136, 192, f16, "generic", 2)], config)
    assert "tm_wgmma_m64" in text
    assert "tm_tma_load" in text


def test_both_transposed_and_edges() -> None:
    run([product("left", 72, 40, 200, bf16, "generic")], replace(CONFIGS[0], multiplier="wgmma_m64n64k16_bf16_f32"))
    run([product("plain", 8, 8, 8, f16, "generic")], CONFIGS[1])
    run([product("right", 100, 77, 72, f16, "generic")], CONFIGS[0])


def test_rows_known_later_and_rows_of_a_batch() -> None:
    m = Var("m")
    a = tensor(m, 64, dtype=f16)
    y = matmul.mm(a, tensor(64, 64, dtype=f16))
    for size in (1, 64, 130):
        run([y], CONFIGS[1], {m: size})
    for boxed in (False, True):
        run([product("batched", m, 40, 72, f16, "generic", 3)], replace(CONFIGS[1], boxed=boxed), {m: 37})


def test_what_comes_after_is_fused() -> None:
    y = matmul.mm(tensor(130, 64, dtype=f16), tensor(64, 96, dtype=f16))
    y = activations.gelu(arithmetic.add(y, tensor(96, dtype=f16)))
    run([arithmetic.add(y, tensor(130, 96, dtype=f16))], CONFIGS[1])


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_tile_after_tile_and_results_in_boxes(persistent: bool, boxed: bool) -> None:
    config = replace(CONFIGS[1], persistent=persistent, boxed=boxed)
    y = matmul.mm(tensor(300, 72, dtype=f16), tensor(72, 136, dtype=f16))
    text = run([activations.relu(arithmetic.add(y, tensor(136, dtype=f16)))], config)
    assert ("for (int turn = 0;" in text) == persistent
    assert ("tm_tma_store_2d(map_c, c_shared" in text) == boxed
    assert ("tm_store(out0" in text) != boxed


@pytest.mark.parametrize("persistent", [False, True])
def test_lines_that_are_not_aligned_are_stored_by_neighbouring_threads(persistent: bool) -> None:
    config = replace(CONFIGS[1], persistent=persistent, boxed=True)
    y = product("right", 300, 137, 72, f16, "generic")
    text = run([activations.relu(arithmetic.add(y, tensor(137, dtype=f16)))], config)
    assert "tm_tma_store" not in text
    assert "c_shared" in text


def test_batches_tile_after_tile() -> None:
    run([product("batched", 72, 72, 136, f16, "generic", 2)], replace(CONFIGS[0], persistent=True, boxed=True))


def test_wide_results_in_boxes() -> None:
    config = replace(CONFIGS[0], boxed=True)
    a, b = tensor(2, 70, 64, dtype=f16), tensor(2, 64, 72, dtype=f16)
    run([define("wide", [matmul.bmm(a, b)], (2, 70, 72), lambda x: lambda n, i, j: cast(x[n, i, j], f32), f32)], config)


def reason(config: HopperConfig, *nodes: Node, isa: str = "sm_90a") -> str:
    p = find_product(fused(nodes))
    assert p is not None
    why = validity(p, config, cuda(isa))
    assert why is not None
    with pytest.raises(ScheduleError, match="cannot be computed"):
        schedule_hopper(p, config, cuda(isa))
    return why


def plain(dtype: DType = f16, k: int = 64) -> Node:
    return product("plain", 64, 64, k, dtype, "generic")


def test_refusals_say_why() -> None:
    good = CONFIGS[0]
    assert "which needs" in reason(good, plain(), isa="sm_80")
    assert "does not multiply" in reason(good, plain(f32))
    assert "do not divide" in reason(replace(good, block_m=96), plain())
    assert "has 64 columns" in reason(replace(good, block_n=128), plain())
    assert "a single stage" in reason(replace(good, stages=1), plain())
    assert "bytes of shared memory" in reason(replace(good, stages=20), plain())
    assert "no registers for the rest" in reason(replace(good, block_m=512), plain())
    boxed, persistent = replace(good, boxed=True), replace(good, persistent=True)
    assert "1 tiles do not outnumber 2 multiprocessors" in reason(persistent, plain())
    many = product("plain", 256, 256, 60, f16, "generic")
    assert "need TMA loads of both operands" in reason(persistent, many)
    known_later = matmul.mm(tensor(Var("m"), 64, dtype=f16), tensor(64, 64, dtype=f16))
    assert "all sizes are known" in reason(persistent, known_later)
    narrow = replace(boxed, multiplier="wgmma_m64n96k16_f16_f32", block_n=96)
    assert "boxes of 64 columns do not divide 96" in reason(narrow, plain())
    y = plain()
    assert "there are 2 outputs" in reason(boxed, y, activations.relu(y))
    assert "one or two warpgroups" in reason(replace(good, groups=3), plain())


def test_the_schedule_for_hopper_is_chosen_where_it_is_faster() -> None:
    task = fused([product("plain", 256, 256, 256, f16, "generic")])
    p = find_product(task)
    assert p is not None
    found = space(p, cuda("sm_90a"))
    assert 0 < sum(isinstance(c, HopperConfig) for c in found) <= 100
    assert len(found) <= 200
    kernel = schedule(task, cuda("sm_90a"))
    assert "cuda.hopper" in kernel.note
    check_kernel(case_of(task), kernel, LOOSE, "sm_90a")
