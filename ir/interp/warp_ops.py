"""Instructions with a value: exchanges between lanes of a warp, atomics, cached loads, descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.approximations import approximated
from taskmap.ir.interp.definitions import NUMPY_TYPES, convert
from taskmap.ir.interp.expressions import Environment, ExpressionCompiler, Value
from taskmap.ir.interp.memory import CheckedAccess
from taskmap.ir.interp.operands import unknown
from taskmap.ir.interp.thread_ops import atomically
from taskmap.ir.interp.wgmma import Described
from taskmap.ir.isa import specs
from taskmap.ir.isa.wgmma_descriptor import Descriptor, swizzled
from taskmap.ir.nodes import Intrinsic, Load
from taskmap.ir.types import DType

Array = NDArray[Any]
Coords = tuple[int, ...]


def exchanged(e: Intrinsic, args: Sequence[Sequence[Value]]) -> list[Value]:
    """The results of all lanes of a warp, from the arguments of all lanes."""
    spec = e.instruction.spec
    count = len(args)
    if isinstance(spec, specs.ShuffleSpec):
        width = int(args[0][0])
        return [args[_source(spec.how, lane, int(args[lane][2]), width)][1] for lane in range(count)]
    if isinstance(spec, specs.VoteSpec):
        if spec.how == "elect":
            return [lane == 0 for lane in range(count)]
        votes = [bool(a[0]) for a in args]
        agreed: Value = any(votes) if spec.how == "any" else all(votes)
        if spec.how == "ballot":
            agreed = np.array(sum(1 << i for i, v in enumerate(votes) if v), np.uint32).astype(np.int32)[()]
        return [agreed] * count
    if isinstance(spec, specs.WarpReduceSpec):
        atomic = specs.AtomicSpec(spec.op, spec.dtype)
        total = np.asarray(args[0][0])
        for a in args[1:]:
            total = atomically(atomic, total, np.asarray(a[0]))
        return [total[()]] * count
    raise unknown(e.instruction, None)


def _source(how: str, lane: int, by: int, width: int) -> int:
    """The lane that a shuffle reads from."""
    first, place = lane - lane % width, lane % width
    wanted = {"idx": by % width, "up": place - by, "down": place + by, "xor": place ^ by}[how]
    return first + wanted if 0 <= wanted < width else lane


def value_alone(e: Intrinsic, expressions: ExpressionCompiler) -> Callable[[Environment], Value]:
    """The value of an instruction of one thread."""
    spec = e.instruction.spec
    if isinstance(spec, (specs.AtomicSpec, specs.CachedMoveSpec, specs.MbarrierSpec)):
        return _of_memory(e, expressions)
    if isinstance(spec, specs.DescriptorSpec):
        return _descriptor(e, expressions)
    if isinstance(spec, specs.PeerSpec) and spec.what == "rank":
        return lambda frame: np.int32(0)
    if isinstance(spec, specs.ConvertSpec):
        (x,) = (expressions.compile(a) for a in e.args)
        return lambda frame: convert(np.asarray(x(frame)), spec.to)[()]
    if isinstance(spec, specs.ApproximationSpec):
        (x,) = (expressions.compile(a) for a in e.args)
        return lambda frame: approximated(spec, np.asarray(x(frame)))[()]
    raise unknown(e.instruction, None)


def _descriptor(e: Intrinsic, expressions: ExpressionCompiler) -> Callable[[Environment], Value]:
    swizzle, matrix, leading, stride = e.args
    assert isinstance(matrix, Load)
    values = [expressions.compile(x) for x in (swizzle, leading, stride)]
    indices, buffer = [expressions.compile(i) for i in matrix.indices], matrix.buffer

    def run(frame: Environment) -> Value:
        memory = frame.buffer(buffer)
        start = int(memory.address([i(frame) for i in indices])) * buffer.dtype.bytes
        width, leads, strides = (int(v(frame)) for v in values)
        # The address of an element other than the first of an atom's line is swizzled; a descriptor's is not.
        described = Described(memory, Descriptor(swizzled(start, width), leads, strides, width))
        frame.block.descriptors.append(described)
        return len(frame.block.descriptors) - 1

    return run


def _of_memory(e: Intrinsic, expressions: ExpressionCompiler) -> Callable[[Environment], Value]:
    spec = e.instruction.spec
    names = [p.name for p in e.instruction.parameters]
    place = next(a for a in e.args if isinstance(a, Load))
    indices = [expressions.compile(i) for i in place.indices]
    values = {n: expressions.compile(a) for n, a in zip(names, e.args, strict=True) if a is not place}
    lanes = e.lanes

    def run(frame: Environment) -> Value:
        memory = frame.buffer(place.buffer)
        at = [i(frame) for i in indices]
        if isinstance(spec, specs.MbarrierSpec):
            barrier = frame.block.mbarriers.get((id(memory.storage), int(memory.address(at))))
            if barrier is None:
                raise VerifyError("an mbarrier is used before it is initialised")
            return barrier.has_completed(int(values["parity"](frame)))
        many: tuple[Array, ...] = (*(np.asarray([i]) for i in at[:-1]), np.arange(at[-1], at[-1] + lanes))
        many = tuple(np.broadcast_arrays(*many))
        if isinstance(spec, specs.CachedMoveSpec):
            loaded = memory.load(many, frame.access_to(place.buffer), frame.lenient > 0)
            return loaded if lanes > 1 else loaded[0]
        assert isinstance(spec, specs.AtomicSpec)
        old = np.array(memory.load(many, CheckedAccess(), False))
        expected = values["expected"](frame) if "expected" in values else None
        memory.store(many, atomically(spec, old, np.atleast_1d(values["value"](frame)), expected), CheckedAccess())
        return old if lanes > 1 else _plain(old[0], e.dtype)

    return run


def _plain(x: Value, dtype: DType) -> Value:
    return int(x) if NUMPY_TYPES[dtype.name] is np.int64 else x
