"""The effect of instructions of one thread: copies, mbarriers, atomics, tile registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.definitions import convert
from taskmap.ir.interp.memory import CheckedAccess, region_indices
from taskmap.ir.interp.operands import InstructionCall, InstructionOperand, Mbarrier, unknown
from taskmap.ir.isa import specs
from taskmap.ir.isa.entry import Place
from taskmap.ir.isa.wgmma_descriptor import swizzled
from taskmap.ir.nodes import Region, TensorMap

Array = NDArray[Any]
Coords = tuple[int, ...]


def _copy(call: InstructionCall) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, specs.AsyncCopySpec)
    to, source = call.memory("w"), call.memory("r")
    size = to.memory.buffer.dtype.bytes
    count = spec.bytes // size
    if to.count != count or source.count != count:
        raise VerifyError(f"{call.instruction.name} copies {count} elements, not {source.count} to {to.count}")
    values = np.zeros(count, to.memory.storage.data.dtype)
    some = int(call.named("bytes")) // size if spec.zero_fill else count
    if some:
        values[:some] = source.first(some).load()
    to.store(values)


def _bulk(call: InstructionCall) -> None:
    to, source = call.memory("w"), call.memory("r")
    count = int(call.named("bytes")) // to.memory.buffer.dtype.bytes
    to.first(count).store(source.first(count).load())
    if not call.instruction.spec.store:  # type: ignore[union-attr]  # it is a BulkCopySpec
        call.mbarrier().change(bytes=-int(call.named("bytes")))


def _tensor(call: InstructionCall) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, specs.TensorMoveSpec)
    described = call.named("map")
    assert isinstance(described, TensorMap)
    tensor = call.frame.buffer(described.buffer)
    start = [int(call.named(f"c{d}")) for d in reversed(range(spec.rank))]
    flat = region_indices(start, described.box)
    shape, strides, offset = call.geometry(described.seen)
    inside = np.all([(g >= 0) & (g < n) for g, n in zip(flat, shape, strict=True)], axis=0)
    at = tuple(g[inside] for g in flat)
    if tensor.buffer.rank != len(shape):  # flattened: by address
        at = (np.sum([g * step for g, step in zip(at, strides, strict=True)], axis=0) + offset,)
    box = call.memory("w" if spec.kind == "load" else "r", places=(Place.SHARED,))
    if box.count != len(inside):
        raise VerifyError(f"a box of {len(inside)} elements does not fit {box.count} in shared memory")
    if described.swizzle and box.memory.buffer.rank == 1:  # flattened: addresses, which TMA swizzles itself
        size = described.buffer.dtype.bytes
        places = [swizzled(int(place) * size, described.swizzle) // size for place in box.at[0]]
        box = InstructionOperand(box.memory, (np.array(places, np.int64),), box.access)
    if spec.kind == "load":
        values = np.zeros(len(inside), box.memory.storage.data.dtype)
        if len(at[0]):
            values[inside] = tensor.load(at, call.frame.access_to(described.buffer), False)
        box.store(values)
        call.mbarrier().change(bytes=-len(inside) * described.buffer.dtype.bytes)
        return
    values = box.load()[inside]
    if spec.kind == "add":
        values = values + tensor.load(at, CheckedAccess(), False)
    tensor.store(at, values, call.frame.access_to(described.buffer) if spec.kind == "store" else CheckedAccess())


def _mbarrier(call: InstructionCall) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, specs.MbarrierSpec)
    if spec.remote:
        raise unknown(call.instruction, call.stmt.source)
    if spec.action == "init":
        count = int(call.named("count"))
        call.frame.block.mbarriers[call.mbarrier_place()] = Mbarrier(count, count)
        return
    barrier = call.mbarrier()
    if spec.action == "invalidate":
        del call.frame.block.mbarriers[call.mbarrier_place()]
    elif spec.action in ("arrive", "arrive_copies"):
        barrier.change(arrivals=1)
    elif spec.action == "expect_tx":
        barrier.bytes += int(call.named("bytes"))
    elif spec.action == "arrive_expect_tx":
        barrier.bytes += int(call.named("bytes"))
        barrier.change(arrivals=1)


def _atomic(call: InstructionCall) -> None:
    i = call.index("memory")
    region = call.stmt.operands[i]
    assert isinstance(region, Region)
    spec = call.instruction.spec
    assert isinstance(spec, specs.AtomicSpec)
    start, extents = call.given[i]
    target = call.elements(region.buffer, start, extents)
    target.access = CheckedAccess()
    value = np.asarray(call.named("value")).reshape(-1)
    target.store(atomically(spec, target.load(), value))


def atomically(spec: specs.AtomicSpec, old: Array, value: Array, expected: Array | None = None) -> Array:
    if spec.op == "cas":
        return np.where(old == expected, value, old)
    if spec.op == "exch":
        return np.broadcast_to(value, old.shape)
    operations = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }  # fmt: skip
    return convert(np.asarray(operations[spec.op](old, value)), spec.dtype)


def _cached(call: InstructionCall) -> None:
    target = call.memory("w")
    values = np.atleast_1d(np.asarray(call.named("value")))
    target.store(values)


def _tile_move(call: InstructionCall) -> None:
    """A tile register loaded or stored: ``rows`` rows of memory, a stride apart."""
    spec = call.instruction.spec
    assert isinstance(spec, specs.TileMoveSpec)
    (tile,) = call.registers()
    _, region, (start, _) = call.of_place(Place.MEMORY)[0]
    memory = call.frame.buffer(region.buffer)
    first, stride = memory.address(start), int(call.named("stride"))
    rows = np.arange(spec.rows)[:, None] * stride + np.arange(spec.columns)
    at = (first + rows).reshape(-1)
    flat = replace(memory, shape=(memory.storage.data.size,), strides=(1,), offset=0)
    if spec.store:
        flat.store((at,), tile.load(), call.frame.access_to(region.buffer))
    else:
        tile.store(flat.load((at,), call.frame.access_to(region.buffer), False))


def _tile_zero(call: InstructionCall) -> None:
    (tile,) = call.registers()
    tile.store(np.zeros(tile.count, tile.memory.storage.data.dtype))


ALONE: dict[type, Callable[[InstructionCall], None]] = {
    specs.AsyncCopySpec: _copy,
    specs.BulkCopySpec: _bulk,
    specs.TensorMoveSpec: _tensor,
    specs.MbarrierSpec: _mbarrier,
    specs.AtomicSpec: _atomic,
    specs.CachedMoveSpec: _cached,
    specs.TileMoveSpec: _tile_move,
    specs.TileZeroSpec: _tile_zero,
}
"""The effect of each kind of spec; asynchronous copies complete at once."""
