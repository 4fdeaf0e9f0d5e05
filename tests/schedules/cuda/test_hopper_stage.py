"""Operands on Hopper that TMA cannot load: threads load them, with cp.async or through registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, gather, matmul
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.ir.construct import cast, const, select
from taskmap.ir.nodes import Buffer, ExprLike, Var
from taskmap.ir.types import DType, bf16, f16, f32, i8, i64
from taskmap.schedules import schedule
from taskmap.schedules.cuda.hopper.load_plan import LoadPath
from taskmap.schedules.cuda.hopper.matmul import HopperConfig, plan_loads, schedule_hopper, validity
from taskmap.schedules.cuda.matmul.problem_view import find_product
from tests.cuda_proof.subjects import integers
from tests.schedules.cpu.test_matmul import product
from tests.schedules.cuda.test_matmul import LOOSE, case_of
from tests.schedules.cuda_running import check_kernel, cuda
from tests.schedules.graph_tasks import Strides, channels_last, fused, tensor

SMALL = HopperConfig("wgmma_m64n64k16_f16_f32", 64, 64, 1, 3)
TALL = HopperConfig("wgmma_m64n64k16_f16_f32", 128, 64, 2, 4, group=2)
WIDE = HopperConfig("wgmma_m64n128k16_f16_f32", 256, 128, 2, 3)
TMA, CP_ASYNC, REGISTERS = LoadPath.TMA, LoadPath.CP_ASYNC, LoadPath.REGISTERS


def ways(
    nodes: Sequence[Node],
    config: HopperConfig,
    dims: dict[Var, int] | None = None,
    *,
    anchor: Node | None = None,
    strides: dict[Node, Strides] | None = None,
    f32_error: float = 1e-4,
) -> tuple[LoadPath, LoadPath]:
    """The load paths of the operands, in a kernel that the simulator has checked."""
    task = fused(nodes, anchor, strides)
    p = find_product(task)
    assert p is not None
    case = case_of(task, dims)
    given = zip(task.inputs, case.arrays, strict=True)
    case = replace(case, arrays=[abs(a) % 37 if b.dtype == i64 else a for b, a in given])
    check_kernel(case, schedule_hopper(p, config, cuda("sm_90a")), {**LOOSE, "f32": f32_error}, "sm_90a")
    found = plan_loads(p, config)
    assert not isinstance(found, str)
    return found[0].path, found[1].path


def relu(*shape: int, dtype: DType = f16) -> Node:
    return activations.relu(tensor(*shape, dtype=dtype))


def test_prologues_of_one_factor_and_of_both() -> None:
    assert ways([matmul.mm(relu(100, 136), tensor(136, 72, dtype=f16))], TALL) == (REGISTERS, TMA)
    assert ways([matmul.mm(tensor(40, 64, dtype=f16), relu(64, 72))], SMALL) == (TMA, REGISTERS)
    both = matmul.mm(relu(130, 72), activations.gelu(tensor(72, 136, dtype=f16)))
    assert ways([arithmetic.add(both, tensor(136, dtype=f16))], WIDE) == (REGISTERS, REGISTERS)


def test_casts_and_rows_that_are_gathered() -> None:
    exact = tensor(70, 64, dtype=f32)
    narrowed = define("half", [exact], exact.shape, lambda x: lambda i, j: cast(x[i, j] * 0.5, f16), f16)
    assert ways([matmul.mm(narrowed, tensor(64, 24, dtype=f16))], SMALL) == (REGISTERS, TMA)
    rows = gather.embedding(tensor(70, 72, dtype=f16), tensor(37, dtype=i64))
    assert ways([matmul.mm(rows, tensor(72, 64, dtype=f16))], SMALL)[0] is not TMA


@pytest.mark.parametrize("form", ["plain", "left", "right"])
def test_sizes_that_are_multiples_of_nothing(form: str) -> None:
    assert TMA not in ways([product(form, 37, 19, 139, f16, "generic")], SMALL)


def test_other_types() -> None:
    config = replace(SMALL, multiplier="wgmma_m64n64k16_bf16_f32")
    assert ways([product("plain", 67, 19, 139, bf16, "generic")], config) == (REGISTERS, REGISTERS)
    config = replace(SMALL, multiplier="wgmma_m64n64k32_i8_i32")
    assert ways([integers(37, 19, 41, i8, i8)], config) == (REGISTERS, REGISTERS)


@pytest.mark.parametrize("form", ["left", "right"])
def test_tf32_is_rounded_on_the_way(form: str) -> None:
    config = replace(SMALL, multiplier="wgmma_m64n64k8_tf32_f32")
    assert ways([product(form, 67, 24, 72, f32, "generic")], config, f32_error=5e-2) == (REGISTERS, REGISTERS)


def test_half_of_the_columns_of_a_box() -> None:
    config = replace(SMALL, multiplier="wgmma_m64n96k16_f16_f32", block_n=96)
    assert ways([matmul.mm(tensor(40, 64, dtype=f16), tensor(64, 96, dtype=f16))], config) == (TMA, REGISTERS)


def test_rows_known_later() -> None:
    m = Var("m")
    y = matmul.mm(activations.relu(tensor(m, 93, dtype=f16)), tensor(93, 91, dtype=f16))
    for size in (1, 130):
        ways([y], TALL, {m: size})


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "groups", "left"),
    [
        (32, 16, 3, 1, 1, CP_ASYNC),
        (16, 19, 3, 2, 1, CP_ASYNC),
        (32, 32, 3, 1, 2, CP_ASYNC),
        (3, 16, 3, 1, 1, REGISTERS),
    ],
)
def test_convolutions(channels: int, filters: int, kernel: int, stride: int, groups: int, left: LoadPath) -> None:
    x, w = tensor(2, channels, 7, 6, dtype=f16), tensor(filters, channels // groups, kernel, kernel, dtype=f16)
    y = convolution(x, w, [stride], [kernel // 2], [1], groups=groups)
    z = activations.relu(add_channel_bias(y, tensor(filters, dtype=f16)))
    strides = {node: channels_last(*node.shape) for node in (x, w, z)}
    assert ways([z], TALL if stride == 1 else SMALL, anchor=y, strides=strides)[0] is left


def test_chunks_that_are_partly_zero_are_not_copied() -> None:
    def element(x: Buffer) -> Callable[..., ExprLike]:
        return lambda i, j: select(j <= i, x[i, j], const(0, f16))

    triangle = define("tril", [tensor(64, 64, dtype=f16)], (64, 64), element, f16)
    y = matmul.mm(triangle, tensor(64, 64, dtype=f16))
    assert ways([y], SMALL) == (REGISTERS, TMA)
    task = fused([y])
    check_kernel(case_of(task), schedule(task, cuda()), LOOSE)


def test_what_does_not_come_to_a_stage() -> None:
    p = find_product(fused([matmul.mm(tensor(64, 61, dtype=f16), tensor(61, 191, dtype=f16))]))
    assert p is not None
    config = HopperConfig("wgmma_m64n192k16_f16_f32", 64, 192, 1, 2)
    why = validity(p, config, cuda("sm_90a"))
    assert why == "the right operand cannot reach a stage: 128 threads do not divide the 192 chunks of a row"
