"""Tables of 256 bytes: every index in every lane, whatever instructions look them up."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.construct import cast
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, i8, i64, u8
from taskmap.schedules import schedule
from tests.schedules.running import call_kernel

HOST = detect_host()
FEATURES = [features for features in ((), ("avx512vbmi",)) if set(features) <= {*HOST.features}]


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", [u8, i8])
@pytest.mark.parametrize("count", [4096, 4099])
def test_every_byte_is_found(count: int, dtype: DType, features: tuple[str, ...]) -> None:
    target = cpu_target(HOST.isa, 1, features=features)
    x, table = Buffer("x", u8, (count,)), Buffer("table", dtype, (256,))
    out, i = Buffer("out", dtype, (count,)), Var("i")
    body = table[(cast(x[i], i64),)]
    kernel = schedule(Task("look_up", (x, table), (Stage(out, (i,), body, "look_up"),), (out,)), target)
    source = generate(lower(kernel, target=target), target.vector_bytes, features)
    name = "tm_vpermi2b_" if features else "tm_look_up_"
    assert name in source.text
    rng = np.random.default_rng()
    entries = rng.permutation(256).astype(np.uint8)
    bytes_ = rng.integers(0, 256, count).astype(np.uint8)
    kind = np.int8 if dtype == i8 else np.uint8
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], [bytes_, entries.view(kind)], {})
    np.testing.assert_array_equal(got, entries.view(kind)[bytes_])
