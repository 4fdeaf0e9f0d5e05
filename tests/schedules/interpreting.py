"""Running a scheduled task in the interpreter, before lowering and after every pass, with the verifier in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from taskmap.ir.interp.definitions import NUMPY_TYPES, size_of
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.flatten import span, strides_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from taskmap.schedules import schedule
from tests.schedules.running import Array, Case, compare_outputs, target


def check_every_pass(case: Case, tolerance: Mapping[str, float]) -> None:
    """Every stage of lowering passes the verifier; the first and the last match the definitions.

    The interpreter reports errors that no result shows: accesses out of bounds, races, uninitialised reads.
    """
    check_kernel(schedule(case.task, target(case.isa)), case, target(case.isa), tolerance)


def check_kernel(kernel: Kernel, case: Case, on: CpuTarget, tolerance: Mapping[str, float]) -> None:
    """The same for one kernel of a case."""
    stages = [kernel]
    lower(kernel, lambda step: stages.append(step.after), on, verify=True)
    for stage in stages:
        verify(stage, RULES)
    verify(stages[-1], LOWERED)
    for stage in (stages[0], stages[-1]):
        compare_outputs(case, interpreted(kernel, stage, case.arrays, case.dims), tolerance)


def interpreted(kernel: Kernel, stage: Kernel, arrays: Sequence[Array], dims: Mapping[Var, int]) -> list[Array]:
    """The outputs of ``stage``, a partly lowered ``kernel``; its buffers may be flat."""
    inputs = [b for b in kernel.buffers if b not in kernel.outputs]
    placed = dict(zip(kernel.buffers, stage.buffers, strict=True))
    known = {placed[b]: _storage(b, dims, a) for b, a in zip(inputs, arrays, strict=True)}
    # Gaps between strided elements stay unwritten, so such storage is given; dense outputs must be written in full.
    outputs = {placed[b]: _storage(b, dims, None) for b in kernel.outputs if b.strides is not None}
    result = interpret(stage, {**known, **outputs}, dims)
    return [_view(b, dims, result[placed[b]]) for b in kernel.outputs]


def _storage(buffer: Buffer, dims: Mapping[Var, int], array: Array | None) -> Array:
    kind = np.dtype(NUMPY_TYPES[buffer.dtype.name])
    flat = np.full(size_of(span(buffer), dims) * kind.itemsize, 0x7F, np.uint8).view(kind)
    if buffer.dtype.is_bool:
        flat = np.zeros(flat.shape, np.bool_)
    if array is not None:
        _strided(buffer, dims, flat)[...] = array
    return flat


def _view(buffer: Buffer, dims: Mapping[Var, int], result: Array) -> Array:
    shape = tuple(size_of(d, dims) for d in buffer.shape)
    if buffer.strides is None or (result.shape == shape and len(shape) != 1):
        return result.reshape(shape)
    return result if result.shape == shape else _strided(buffer, dims, result)


def _strided(buffer: Buffer, dims: Mapping[Var, int], flat: Array) -> Array:
    shape = tuple(size_of(d, dims) for d in buffer.shape)
    steps = tuple(size_of(s, dims) * flat.itemsize for s in strides_of(buffer))
    return np.lib.stride_tricks.as_strided(flat[size_of(buffer.offset, dims) :], shape, steps)
