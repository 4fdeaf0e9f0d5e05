"""Vectors of floats limited by numbers: one instruction each, with eager's results for NaN and for zeros of either
sign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.build import elementwise
from taskmap.ir.construct import const, select
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Expr
from taskmap.ir.target import cpu_target
from taskmap.ir.types import f32
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.running import ISAS, call_kernel
from tests.taskmap.compare import compiled

LIMITED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "relu": (torch.relu, 1),
    "relu6": (functional.relu6, 2),
    "hardtanh": (lambda x: functional.hardtanh(x, -0.5, 2.0), 2),
    "clamp from below": (lambda x: torch.clamp(x, min=-0.0), 1),
    "clamp from above": (lambda x: torch.clamp(x, max=-1.0), 1),
    "larger than a number": (lambda x: torch.maximum(x, torch.full_like(x, 0.25)), 1),
    "smaller than a number": (lambda x: torch.minimum(torch.full_like(x, -3.0), x), 1),
}


def numbers(dtype: torch.dtype) -> Tensor:
    """Numbers of every kind, more than fill any vector."""
    special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 0.25, -3.0, 0.5, 2.0, -1.0, 6.0, 1e-40]
    return torch.cat([torch.tensor(special, dtype=dtype).repeat(20), torch.randn(71, dtype=dtype) * 4])


def same_bits(a: Tensor, b: Tensor) -> bool:
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}[a.dtype]
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num().view(whole), b.nan_to_num().view(whole))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_is_one_instruction(name: str, dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    function, limits = LIMITED[name]
    torch._dynamo.reset()  # one function, many targets
    x = numbers(dtype)
    got = compiled(function, options={"isa": isa, "dump_dir": str(tmp_path), "cache_dir": str(tmp_path)})(x)
    assert same_bits(got, function(x))
    (text,) = (path.read_text() for path in tmp_path.rglob("*.c") if "tm_load_" in path.read_text())
    stored = next(line for line in text.splitlines() if "tm_at" in line and "x1(" not in line)
    assert len({word for word in ("tm_atleast_", "tm_atmost_") if word in stored}) == limits
    assert "tm_select_" not in stored


def test_the_maximum_of_zeros_is_the_second() -> None:
    """As eager's."""
    x = torch.tensor([0.0, -0.0, torch.nan, 1.0]).repeat(16)
    assert same_bits(compiled(lambda x: torch.maximum(x, torch.zeros_like(x)))(x), torch.maximum(x, x.new_zeros(64)))


@pytest.mark.parametrize("isa", ISAS)
def test_a_select_of_its_operands(isa: str) -> None:
    """Also where the number is chosen for a NaN."""
    x = numbers(torch.float32)
    node = tensor(*x.shape)
    forms: list[Callable[[Expr], Expr]] = [
        lambda e: select(e > 0.5, e, const(0.5, f32)),
        lambda e: select(e < 0.0, e, const(0.0, f32)),
        lambda e: select(e > 0.0, const(0.0, f32), e),
        lambda e: select(e < -1.0, const(-1.0, f32), e),
    ]
    want = [torch.where(x > 0.5, x, 0.5), torch.where(x < 0.0, x, 0.0)]
    want += [torch.where(x > 0.0, 0.0, x), torch.where(x < -1.0, -1.0, x)]
    target = cpu_target(isa, 1)
    for form, exact in zip(forms, want, strict=True):
        kernel = schedule(fused([elementwise("limit", [node], form)]), target)
        source = generate(lower(kernel, target=target), target.vector_bytes)
        assert "tm_select_f32x" not in source.text
        loaded = compile_kernels([source], find_toolchain(isa=isa), KernelStore(), Counters())
        (got,) = call_kernel(kernel, source, loaded[source.symbol], [x.numpy()], {})
        assert same_bits(torch.from_numpy(got), exact)
