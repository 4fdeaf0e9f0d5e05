"""Running tasks on this machine (schedule, lower, generate, compile, call), and the results that definitions require.

Many cases are compiled by one call, which costs less than many calls. Storage is poisoned before a run and has guards
on both sides, which reveal unwritten elements and stray writes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.interp.definitions import NUMPY_TYPES, convert, evaluate, round_bf16, size_of
from taskmap.ir.lower.flatten import span, strides_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Compute, Task
from taskmap.ir.types import bf16
from taskmap.schedules import schedule
from taskmap.trust.compiler import trusted_toolchain

Array = npt.NDArray[Any]

ISAS = ("avx512", "avx2", "generic")
_POISON = 0x7F
_GUARD = 64


@lru_cache(maxsize=1)
def host_isa() -> str:
    """The best instruction set of this machine."""
    return detect_host().isa


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine runs."""
    return tuple(isa for isa in ISAS if detect_host().supports(isa))  # type: ignore[arg-type]  # ISAS are such names


def target(isa: str | None = None) -> CpuTarget:
    """A two-core target with this machine's instruction set, or another one."""
    return cpu_target(isa or host_isa(), 2)


@dataclass(frozen=True, eq=False)
class Case:
    """A task on arrays: one logical array for each of its inputs (bf16 as float32), and its symbolic sizes."""

    task: Task
    arrays: Sequence[Array]
    dims: Mapping[Var, int] = field(default_factory=dict)
    isa: str | None = None

    @property
    def chosen_isa(self) -> str:
        """The instruction set that it runs with."""
        return self.isa or host_isa()


class Storage:
    """The memory of one buffer: poisoned, between guards."""

    def __init__(self, buffer: Buffer, dims: Mapping[Var, int]) -> None:
        self.buffer = buffer
        plain = {"bf16": np.uint16, "bool": np.uint8}  # types that numpy lacks, or would not show unchanged
        self.kind = np.dtype(plain.get(buffer.dtype.name) or NUMPY_TYPES[buffer.dtype.name])
        self.shape = tuple(size_of(d, dims) for d in buffer.shape)
        self.steps = tuple(size_of(s, dims) * self.kind.itemsize for s in strides_of(buffer))
        self.first = _GUARD + size_of(buffer.offset, dims)
        self.raw = np.full((max(size_of(span(buffer), dims), 1) + 2 * _GUARD) * self.kind.itemsize, _POISON, np.uint8)

    @property
    def address(self) -> int:
        """The address of the storage."""
        return self.raw.ctypes.data + _GUARD * self.kind.itemsize

    def view(self) -> Array:
        """The logical tensor."""
        return np.lib.stride_tricks.as_strided(self.raw.view(self.kind)[self.first :], self.shape, self.steps)

    def write(self, array: Array) -> None:
        """Fill the tensor."""
        self.view()[...] = (round_bf16(array).view(np.uint32) >> 16) if self.buffer.dtype == bf16 else array

    def read(self) -> Array:
        """A copy of the tensor, bools checked to be 0 or 1."""
        view = self.view()
        if self.buffer.dtype == bf16:
            return np.array((view.astype(np.uint32) << 16).view(np.float32))
        if self.buffer.dtype.is_bool:
            assert view.max(initial=0) <= 1, f"{self.buffer!r} holds a bool that is neither 0 nor 1"
            return np.array(view, np.bool_)
        return np.array(view)

    def untouched(self) -> bool:
        """True if everything outside the tensor is still poison. Ends the tensor."""
        self.view()[...] = np.full(self.kind.itemsize, _POISON, np.uint8).view(self.kind)[0]
        return bool((self.raw == _POISON).all())


def call_kernel(
    kernel: Kernel, source: KernelSource, address: int, arrays: Sequence[Array], dims: Mapping[Var, int]
) -> list[Array]:
    """Run a compiled kernel on copies of ``arrays``; returns its outputs. IndexError if it reports a bad index."""
    storages = {b: Storage(b, dims) for b in kernel.buffers}
    inputs = [b for b in kernel.buffers if b not in kernel.outputs]
    for b, a in zip(inputs, arrays, strict=True):
        storages[b].write(a)
    before = {b: storages[b].raw.copy() for b in inputs}
    args: list[object] = [ctypes.c_void_p(storages[b].address) for b in kernel.buffers]
    args += [ctypes.c_longlong(dims[v]) for v in kernel.dims]
    error = ctypes.c_int(0)
    if source.needs_error:
        args.append(ctypes.byref(error))
    function = ctypes.CFUNCTYPE(None)(address)
    function.argtypes = None  # type: ignore[assignment]  # arguments are ctypes objects already
    function(*args)
    if error.value:
        raise IndexError("an index is out of range")
    results = [storages[b].read() for b in kernel.outputs]
    for b in inputs:
        assert np.array_equal(before[b], storages[b].raw), f"{kernel.name} writes to its input {b!r}"
    for b in kernel.outputs:
        assert storages[b].untouched(), f"{kernel.name} ({kernel.note}) writes outside its output {b!r}"
    return results


def compiled(kernels: Sequence[tuple[Kernel, str]]) -> list[tuple[KernelSource, int]]:
    """Source and address of each (kernel, instruction set), with one compilation per instruction set."""
    sources = [generate(lower(kernel, target=target(isa)), target(isa).vector_bytes) for kernel, isa in kernels]
    addresses: dict[tuple[str, str], int] = {}
    for isa in dict.fromkeys(isa for _, isa in kernels):
        wanted = {s.symbol: s for s, (_, i) in zip(sources, kernels, strict=True) if i == isa}
        loaded = compile_kernels(list(wanted.values()), trusted_toolchain(isa=isa), KernelStore(), Counters())
        addresses.update({(isa, symbol): loaded[symbol] for symbol in wanted})
    return [(s, addresses[isa, s.symbol]) for s, (_, isa) in zip(sources, kernels, strict=True)]


def run_cases(cases: Sequence[Case]) -> list[list[Array]]:
    """The outputs of every case through its schedule."""
    made: dict[tuple[Task, str], Kernel] = {}
    for c in cases:
        if (c.task, c.chosen_isa) not in made:
            made[c.task, c.chosen_isa] = schedule(c.task, target(c.chosen_isa))
    keys = list(made)
    binaries = dict(zip(keys, compiled([(made[key], key[1]) for key in keys]), strict=True))
    results = []
    for c in cases:
        key = (c.task, c.chosen_isa)
        results.append(call_kernel(made[key], *binaries[key], c.arrays, c.dims))
    return results


def run_kernel(kernel: Kernel, arrays: Sequence[Array], dims: Mapping[Var, int], isa: str) -> list[Array]:
    """The outputs of one kernel."""
    ((source, address),) = compiled([(kernel, isa)])
    return call_kernel(kernel, source, address, arrays, dims)


def run_task(
    task: Task, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None, isa: str | None = None
) -> list[Array]:
    """The outputs of a task through its schedule."""
    return run_cases([Case(task, arrays, dims or {}, isa)])[0]


def expected(task: Task, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None) -> list[Array]:
    """The outputs of a task by evaluating its definitions."""
    known = {b: convert(np.asarray(a), b.dtype) for b, a in zip(task.inputs, arrays, strict=True)}
    for stage in task.stages:
        inputs = tuple(known)
        definition = Compute(stage.label, inputs, stage.shape, stage.out.dtype, stage.axes, stage.body)
        value = evaluate(definition, [known[b] for b in inputs], dict(dims or {}))
        assert value.dtype == NUMPY_TYPES[stage.out.dtype.name], f"{stage.label} gives {value.dtype}"
        known[stage.out] = value
    return [known[b] for b in task.outputs]


TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
"""The tolerated difference from the definition, relative to it and to 1."""


def check(cases: Sequence[Case], tolerance: Mapping[str, float] | None = None) -> None:
    """Every case matches its definitions: integers exactly, floats within ``tolerance`` of their type."""
    limits = {**TOLERANCE, **(tolerance or {})}
    for case, results in zip(cases, run_cases(cases), strict=True):
        compare_outputs(case, results, limits)


def compare_outputs(case: Case, results: Sequence[Array], limits: Mapping[str, float] = TOLERANCE) -> None:
    """Raises AssertionError if ``results`` do not match the definitions of the case."""
    for out, got, want in zip(case.task.outputs, results, expected(case.task, case.arrays, case.dims), strict=True):
        where = f"{case.task.name} on {case.chosen_isa}, output {out.name}, sizes {dict(case.dims)}"
        assert got.shape == want.shape, where
        if out.dtype.is_float:
            limit = limits[out.dtype.name]
            np.testing.assert_allclose(got, want, rtol=limit, atol=limit, err_msg=where)
        else:
            np.testing.assert_array_equal(got, want, err_msg=where)
