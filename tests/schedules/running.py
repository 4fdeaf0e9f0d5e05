"""Running a task on this machine: schedule, lower, generate, compile, call; and what it must give, by definition."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from taskmap.backend.compile import compile_kernels
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store import KernelStore
from taskmap.ir.evaluate import evaluate
from taskmap.ir.lower import lower
from taskmap.ir.lower.flatten import span, strides_of
from taskmap.ir.nodes import Buffer, Kernel, Var
from taskmap.ir.target import Target, cpu_target
from taskmap.ir.task import Compute, Task
from taskmap.schedules import schedule

Array = npt.NDArray[np.generic]

_NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16,
          "i8": np.int8, "u8": np.uint8, "bool": np.bool_}  # fmt: skip


@lru_cache(maxsize=1)
def host_isa() -> str:
    """The best instruction set of this machine."""
    return detect_host().isa


def target(isa: str | None = None) -> Target:
    """A two-core target with this machine's instruction set, or another one that it can run."""
    return cpu_target(isa or host_isa(), 2)


def strided(buffer: Buffer, storage: Array, dims: Mapping[Var, int]) -> Array:
    """The logical tensor of ``buffer`` as a view of its storage."""
    shape = tuple(evaluate_dim(d, dims) for d in buffer.shape)
    steps = tuple(evaluate_dim(d, dims) * storage.itemsize for d in strides_of(buffer))
    return np.lib.stride_tricks.as_strided(storage[evaluate_dim(buffer.offset, dims) :], shape, steps)


def evaluate_dim(dim: object, dims: Mapping[Var, int]) -> int:
    """The value of a size."""
    if isinstance(dim, int):
        return dim
    from taskmap.ir.construct import index, value_of
    from taskmap.ir.visit import substitute

    value = value_of(substitute(dim, {v: index(n) for v, n in dims.items()}))  # type: ignore[type-var]
    assert value is not None
    return int(value)


def run_kernel(kernel: Kernel, arrays: Sequence[Array], dims: Mapping[Var, int], isa: str) -> list[Array]:
    """The outputs of a kernel as logical arrays; their storage is poisoned before the run."""
    source = generate(lower(kernel), target(isa).vector_bytes)
    loaded = compile_kernels([source], find_toolchain(isa=isa), KernelStore(), Counters())
    inputs = [b for b in kernel.buffers if b not in kernel.outputs]
    storages: dict[Buffer, Array] = {}
    for b in kernel.buffers:
        size = evaluate_dim(span(b), dims)
        storage = np.zeros(max(size, 1), _NUMPY[b.dtype.name])
        storage.view(np.uint8)[:] = 0 if b.dtype.is_bool else 0xA5
        storages[b] = storage
    for b, a in zip(inputs, arrays, strict=True):
        strided(b, storages[b], dims)[...] = a
    args: list[object] = [ctypes.c_void_p(storages[b].ctypes.data) for b in kernel.buffers]
    args += [ctypes.c_longlong(dims[v]) for v in kernel.dims]
    error = ctypes.c_int(0)
    if source.needs_error:
        args.append(ctypes.byref(error))
    function = ctypes.CFUNCTYPE(None)(loaded[source.symbol])
    function.argtypes = None  # type: ignore[assignment]  # arguments are ctypes objects already
    function(*args)
    if error.value:
        raise IndexError("an index is out of range")
    return [strided(b, storages[b], dims).copy() for b in kernel.outputs]


def run_task(task: Task, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None, isa: str | None = None) -> list[Array]:
    """The outputs of a task through its schedule."""
    chosen = isa or host_isa()
    return run_kernel(schedule(task, target(chosen)), arrays, dims or {}, chosen)


def expected(task: Task, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None) -> list[Array]:
    """The outputs of a task by evaluating its definitions."""
    known = dict(zip(task.inputs, arrays, strict=True))
    for stage in task.stages:
        inputs = tuple(known)
        definition = Compute(stage.label, inputs, stage.shape, stage.out.dtype, stage.axes, stage.body)
        known[stage.out] = evaluate(definition, [known[b] for b in inputs], dict(dims or {}))
    return [known[b] for b in task.outputs]
