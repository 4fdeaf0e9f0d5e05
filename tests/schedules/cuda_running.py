"""Running GPU schedules without a GPU: in the interpreter before lowering, and as CUDA C++ in the simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as sim
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.flatten import span
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget, cuda_target
from taskmap.ir.verify.rules import RULES, verify
from taskmap.schedules import schedule
from tests.schedules.interpreting import interpreted
from tests.schedules.running import _GUARD, TOLERANCE, Array, Case, Storage, compare_outputs


def cuda(isa: str = "sm_80") -> GpuTarget:
    """A small GPU of an architecture: two multiprocessors, so that small tasks fill it."""
    return cuda_target(isa, sms=2)


def source_of(kernel: Kernel, isa: str = "sm_80") -> CudaSource:
    """The CUDA C++ of a scheduled kernel, verified on the way."""
    verify(kernel, RULES)
    lowered = lower(kernel, target=cuda(isa))
    return generate(lowered, cuda(isa))


def check_kernel(
    case: Case, kernel: Kernel, tolerance: Mapping[str, float] | None = None, isa: str = "sm_80", seed: int = 0
) -> CudaSource:
    """The source of ``kernel``, after its results in the simulator matched the definitions of the case."""
    source = source_of(kernel, isa)
    limits = {**TOLERANCE, **(tolerance or {})}
    for policy in ("late", "early") if {"cp_async", "tma"} & set(source.families) else ("late",):
        results = simulated(case, kernel, source, seed, policy)
        compare_outputs(case, results, limits)
    return source


def simulated(
    case: Case,
    kernel: Kernel,
    source: CudaSource,
    seed: int = 0,
    policy: sim.Policy = "late",
    steps: int = 0,
) -> list[Array]:
    """The outputs of a kernel's CUDA C++. Raises SimulationError for its errors, and after ``steps`` steps."""
    storages = {b: Storage(b, case.dims) for b in kernel.buffers}
    inputs = [b for b in kernel.buffers if b not in kernel.outputs]
    for b, a in zip(inputs, case.arrays, strict=True):
        storages[b].write(a)
    before = {b: storages[b].raw.copy() for b in inputs}
    arrays = [s.raw.view(s.kind)[_GUARD : _GUARD + max(size_of(span(b), case.dims), 1)] for b, s in storages.items()]
    if source.needs_error:
        arrays.append(np.zeros(1, np.int32))
    outputs = [n for n, b in enumerate(kernel.buffers) if b in kernel.outputs and b.strides is None]
    sizes = {v: case.dims[v] for v in source.dims}
    sim.run(source, arrays, sizes, seed=seed, policy=policy, outputs=outputs, steps=steps)
    results = [storages[b].read() for b in kernel.outputs]
    for b in inputs:
        assert np.array_equal(before[b], storages[b].raw), f"{kernel.name} writes to its input {b!r}"
    for b in kernel.outputs:
        assert b.strides is None or storages[b].untouched(), f"{kernel.name} writes outside its output {b!r}"
    return results


def check_interpreted(case: Case, kernel: Kernel, tolerance: Mapping[str, float] | None = None) -> None:
    """``kernel`` as scheduled matches the definitions of the case, in the interpreter."""
    verify(kernel, RULES)
    limits = {**TOLERANCE, **(tolerance or {})}
    compare_outputs(case, interpreted(kernel, kernel, case.arrays, case.dims), limits)


def check(case: Case, tolerance: Mapping[str, float] | None = None, isa: str = "sm_80") -> Kernel:
    """The schedule for a GPU of this architecture, checked both ways."""
    kernel = schedule(case.task, cuda(isa))
    check_interpreted(case, kernel, tolerance)
    check_kernel(case, kernel, tolerance, isa)
    return kernel
