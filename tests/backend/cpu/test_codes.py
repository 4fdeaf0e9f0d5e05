"""Codes of four bits as bf16: every integer of sixteen bits in every way that it is looked up."""

from __future__ import annotations

import re

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.construct import binary, cast, const
from taskmap.ir.interp.definitions import convert
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import bf16, i16
from taskmap.schedules import schedule
from tests.schedules.running import call_kernel, isas


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("count", [1 << 16, (1 << 16) + 3])
def test_every_integer(count: int, isa: str) -> None:
    target = cpu_target(isa, 1)
    x, out, i = Buffer("x", i16, (count,)), Buffer("out", bf16, (count,)), Var("i")
    body = cast(binary("and", x[i], const(15, i16)), bf16)
    kernel = schedule(Task("codes", (x,), (Stage(out, (i,), body, "codes"),), (out,)), target)
    source = generate(lower(kernel, target=target), target.vector_bytes)
    assert re.search(r"tm_code_i16x\d+_to_bf16x", source.text)
    assert ("vpermw" in source.text) == ("tm_code_i16x32_" in source.text)
    numbers = np.arange(count).astype(np.uint16).view(np.int16)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], [numbers], {})
    np.testing.assert_array_equal(got, convert((numbers & 15).astype(np.float32), bf16))
