"""Products of bf16: random operands, a run on this machine, and the error that a result may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.interp.definitions import convert
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.types import bf16
from tests.schedules.running import call_kernel

Array = NDArray[Any]


def run(kernel: Kernel, target: Target, features: Sequence[str], arrays: list[Array], dims: dict[Var, int]) -> Array:
    """The output of a kernel that needs exactly these features."""
    source = generate(lower(kernel, target=target), target.vector_bytes)
    assert source.kind.features == tuple(features)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, dims)
    return np.asarray(got)


def bf16_array(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Standard normal numbers."""
    return convert(rng.standard_normal(shape).astype(np.float32), bf16)


def check(got: Array, a: Array, b: Array) -> None:
    """Correct to one rounding of bf16 and the error of a sum in f32."""
    want = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) + 2.0**-22 * size + 1e-30).all()
