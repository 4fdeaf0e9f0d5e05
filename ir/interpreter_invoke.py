"""What invoked instructions do in the interpreter, from their specs and owners alone.

Asynchronous copies land at once, so that committing and waiting do nothing: whether a kernel waits for what it uses is
for the simulator to see. A barrier in shared memory (mbarrier) and a named barrier do make threads wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import VerifyError
from taskmap.ir.evaluate import NUMPY_TYPES, convert
from taskmap.ir.instruction import Instruction, Parameter, Place
from taskmap.ir.instruction_meaning import collect, distribute, multiply
from taskmap.ir.instruction_specs import (
    AsyncCopySpec,
    AtomicSpec,
    BarrierSpec,
    BulkCopySpec,
    CachedMoveSpec,
    ConvertSpec,
    DescriptorSpec,
    FenceSpec,
    FragmentMoveSpec,
    GridSpec,
    GroupSpec,
    MatMulSpec,
    MatrixMoveSpec,
    MbarrierSpec,
    PeerSpec,
    PrefetchSpec,
    RegisterHoldSpec,
    RegisterLimitSpec,
    ShuffleSpec,
    TensorMoveSpec,
    VoteSpec,
    WarpReduceSpec,
)
from taskmap.ir.interpreter_block import Until
from taskmap.ir.interpreter_memory import Access, Memory
from taskmap.ir.interpreter_values import Expressions, Frame, Value
from taskmap.ir.interpreter_wgmma import Described
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.lower.fragments import Fragment, fragment, matrices
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, Invoke, Load, Region, TensorMap
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import DType
from taskmap.ir.wgmma_operand import Descriptor, swizzled

Array = NDArray[Any]
Coords = tuple[int, ...]

_NOTHING = (FenceSpec, GroupSpec, PrefetchSpec, RegisterLimitSpec, RegisterHoldSpec, GridSpec)
"""What changes no value, where copies land at once."""


@dataclass(slots=True)
class Mbarrier:
    """Arrivals and bytes that its phase still waits for, and how many phases have completed."""

    count: int
    pending: int
    bytes: int = 0
    phases: int = 0

    def change(self, arrivals: int = 0, bytes: int = 0) -> None:
        """``arrivals`` threads have arrived, and ``bytes`` more are awaited (fewer, if negative)."""
        self.pending -= arrivals
        self.bytes += bytes
        if self.pending < 0:
            raise VerifyError(f"an mbarrier of {self.count} arrivals has one more", why="its phase was complete.")
        if self.pending == 0 and self.bytes == 0:
            self.pending = self.count
            self.phases += 1

    def has_completed(self, parity: int) -> bool:
        """Whether the phase of this parity is over."""
        return self.phases % 2 != parity % 2


@dataclass(slots=True)
class Meetings:
    """What the threads of one block share besides memory: mbarriers by place, named barriers by number, the operands of
    wgmma by the values of their descriptors."""

    mbarriers: dict[tuple[int, int], Mbarrier] = field(default_factory=dict)
    named: dict[int, list[int]] = field(default_factory=dict)
    descriptors: list[Described] = field(default_factory=list)


@dataclass(slots=True)
class Operand:
    """A region in one thread: how to get at its elements, in the order in which the instruction has them."""

    memory: Memory
    at: tuple[Array, ...]
    access: Access

    def load(self) -> Array:
        return np.asarray(self.memory.load(self.at, self.access, False))

    def store(self, values: Array) -> None:
        self.memory.store(self.at, values, self.access)

    def first(self, n: int) -> Operand:
        return Operand(self.memory, tuple(a[:n] for a in self.at), self.access)

    @property
    def count(self) -> int:
        return len(self.at[0]) if self.at else 1


class Invocations:
    """Instructions of one kernel, each compiled once to a function of a frame, or of the frames of a group."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions

    def region(self, region: Region) -> Callable[[Frame], tuple[Coords, Coords]]:
        """(start, extents) of a region in a frame."""
        start = [self.expressions.compile(s) for s in region.start]
        extents = [self.expressions.compile(n) if isinstance(n, Expr) else n for n in region.shape]
        return lambda frame: (
            tuple(s(frame) for s in start),
            tuple(n(frame) if callable(n) else n for n in extents),
        )

    def operands(self, s: Invoke) -> Callable[[Frame], list[Any]]:
        """Regions become (start, extents), values values, tensor maps themselves."""
        getters: list[Callable[[Frame], Any]] = []
        for operand in s.operands:
            if isinstance(operand, Region):
                getters.append(self.region(operand))
            elif isinstance(operand, Expr):
                getters.append(self.expressions.compile(operand))
            else:
                getters.append(lambda frame, kept=operand: kept)  # type: ignore[misc]  # a default binds it now
        return lambda frame: [get(frame) for get in getters]

    def alone(self, s: Invoke) -> Callable[[Frame], None]:
        """An instruction of one thread that never waits."""
        instruction, spec, get = s.instruction, s.instruction.spec, self.operands(s)
        if isinstance(spec, _NOTHING):
            return lambda frame: None
        effect = _ALONE.get(type(spec))
        if effect is None:
            raise _unknown(instruction, s.source)

        def run(frame: Frame) -> None:
            given = get(frame)
            effect(_Call(s, instruction, frame, given))

        return run

    def together(self, s: Invoke, frames: Sequence[Frame]) -> None:
        """An instruction of a group of threads."""
        effect = _TOGETHER.get(type(s.instruction.spec))
        if effect is None:
            raise _unknown(s.instruction, s.source)
        get = self.operands(s)
        effect([_Call(s, s.instruction, frame, get(frame), lane) for lane, frame in enumerate(frames)])

    def waits(self, s: Invoke) -> Callable[[Frame], Until | None] | None:
        """For an instruction that may make its thread wait: what it waits for, after its effect."""
        spec, get = s.instruction.spec, self.operands(s)
        if isinstance(spec, MbarrierSpec) and spec.action == "wait":

            def completed(frame: Frame) -> Until:
                call = _Call(s, s.instruction, frame, get(frame))
                barrier, parity = call.mbarrier(), int(call.named("parity"))
                return Until(lambda: barrier.has_completed(parity), "the phase of its mbarrier", s.source)

            return completed
        if isinstance(spec, BarrierSpec) and spec.among == "threads":

            def arrived(frame: Frame) -> Until | None:
                call = _Call(s, s.instruction, frame, get(frame))
                number, threads = int(call.named("id")), int(call.named("threads"))
                rounds = frame.meetings.named.setdefault(number, [0])
                rounds[0] += 1
                target = -(-rounds[0] // threads) * threads
                if spec.action == "arrive":
                    return None
                return Until(lambda: rounds[0] >= target, f"barrier {number}", s.source)

            return arrived
        return None


def _unknown(instruction: Instruction, source: SourceLocation | None) -> VerifyError:
    return VerifyError(
        f"the interpreter does not execute {instruction.name}",
        where=source,
        why=f"it is {instruction.spec}.",
        hint="Run the kernel in the simulator.",
    )


def needs_company(instruction: Instruction) -> bool:
    """Whether several threads have to come together to execute an instruction."""
    spec = instruction.spec
    return (
        instruction.workers > 1
        and not isinstance(spec, _NOTHING)
        and not (isinstance(spec, BarrierSpec) and spec.among == "threads")
    )


def may_wait(instruction: Instruction) -> bool:
    """Whether an instruction of one thread may make it wait."""
    spec = instruction.spec
    return (isinstance(spec, MbarrierSpec) and spec.action == "wait") or (
        isinstance(spec, BarrierSpec) and spec.among == "threads"
    )


@dataclass(slots=True)
class _Call:
    """One thread's part in an instruction."""

    stmt: Invoke
    instruction: Instruction
    frame: Frame
    given: list[Any]
    lane: int = 0

    def index(self, name: str) -> int:
        return next(i for i, p in enumerate(self.instruction.parameters) if p.name == name)

    def named(self, name: str) -> Value:
        return self.given[self.index(name)]

    def of_place(self, *places: Place, effect: str = "") -> list[tuple[Parameter, Region, tuple[Coords, Coords]]]:
        rows = zip(self.instruction.parameters, self.stmt.operands, self.given, strict=True)
        return [(p, o, g) for p, o, g in rows if p.place in places and effect in p.effect and isinstance(o, Region)]

    def registers(self) -> list[Operand]:
        """The register operands in order, each the slots of this lane."""
        return [self.slots(o, *g) for _, o, g in self.of_place(Place.REGISTERS)]

    def slots(self, region: Region, start: Coords, extents: Coords) -> Operand:
        owner = region.buffer.owner
        if owner is None:
            return self.elements(region.buffer, start, extents)
        held = fragment(owner, extents, self.instruction.workers)
        if not isinstance(held, Fragment):
            raise VerifyError(f"{self.instruction.name} cannot take a part of {region.buffer!r}", why=held)
        coords = np.array([[s + c for s, c in zip(start, at, strict=True)] for at in held.held[self.lane]], np.int64)
        return self.operand(region.buffer, tuple(coords.T))

    def elements(self, b: Buffer, start: Coords, extents: Coords) -> Operand:
        """All elements of a region, in row-major order."""
        grid = np.meshgrid(*(np.arange(s, s + n) for s, n in zip(start, extents, strict=True)), indexing="ij")
        return self.operand(b, tuple(g.reshape(-1) for g in grid))

    def operand(self, b: Buffer, at: tuple[Array, ...]) -> Operand:
        return Operand(self.frame.buffer(b), at, self.frame.access_to(b))

    def memory(
        self, effect: str = "", *, places: tuple[Place, ...] = (Place.SHARED, Place.GLOBAL, Place.MEMORY)
    ) -> Operand:
        (_, region, given), *_ = [x for x in self.of_place(*places, effect=effect) if x[0].name != "barrier"]
        return self.elements(region.buffer, *given)

    def geometry(self, b: Buffer) -> tuple[Coords, Coords, int]:
        """Shape, strides and offset of a buffer that may have been flattened, by the kernel's sizes."""

        def size(d: Dim) -> int:
            return d if isinstance(d, int) else int(Expressions().compile(d)(self.frame))

        return tuple(map(size, b.shape)), tuple(map(size, strides_of(b))), size(b.offset)

    def mbarrier(self) -> Mbarrier:
        key = self.mbarrier_place()
        try:
            found: Mbarrier = self.frame.meetings.mbarriers[key]
        except KeyError:
            raise VerifyError("an mbarrier is used before it is initialised") from None
        return found

    def mbarrier_place(self) -> tuple[int, int]:
        i = self.index("barrier")
        region = self.stmt.operands[i]
        assert isinstance(region, Region)
        memory = self.frame.buffer(region.buffer)
        at = memory.address(self.given[i][0])
        return id(memory.storage), int(at)


# ---- One thread


def _copy(call: _Call) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, AsyncCopySpec)
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


def _bulk(call: _Call) -> None:
    to, source = call.memory("w"), call.memory("r")
    count = int(call.named("bytes")) // to.memory.buffer.dtype.bytes
    to.first(count).store(source.first(count).load())
    if not call.instruction.spec.store:  # type: ignore[union-attr]  # it is a BulkCopySpec
        call.mbarrier().change(bytes=-int(call.named("bytes")))


def _tensor(call: _Call) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, TensorMoveSpec)
    described = call.named("map")
    assert isinstance(described, TensorMap)
    tensor = call.frame.buffer(described.buffer)
    start = [int(call.named(f"c{d}")) for d in reversed(range(spec.rank))]
    grid = np.meshgrid(*(np.arange(s, s + n) for s, n in zip(start, described.box, strict=True)), indexing="ij")
    flat = [g.reshape(-1) for g in grid]
    shape, strides, offset = call.geometry(described.seen)
    inside = np.all([(g >= 0) & (g < n) for g, n in zip(flat, shape, strict=True)], axis=0)
    at = tuple(g[inside] for g in flat)
    if tensor.buffer.rank != len(shape):  # flattened: by address
        at = (np.sum([g * step for g, step in zip(at, strides, strict=True)], axis=0) + offset,)
    box = call.memory("w" if spec.kind == "load" else "r", places=(Place.SHARED,))
    if box.count != len(inside):
        raise VerifyError(f"a box of {len(inside)} elements does not fit {box.count} in shared memory")
    if described.swizzle and box.memory.buffer.rank == 1:  # flattened: addresses, which the copy engine swizzles itself
        size = described.buffer.dtype.bytes
        places = [swizzled(int(place) * size, described.swizzle) // size for place in box.at[0]]
        box = Operand(box.memory, (np.array(places, np.int64),), box.access)
    if spec.kind == "load":
        values = np.zeros(len(inside), box.memory.storage.data.dtype)
        if len(at[0]):
            values[inside] = tensor.load(at, call.frame.access_to(described.buffer), False)
        box.store(values)
        call.mbarrier().change(bytes=-len(inside) * described.buffer.dtype.bytes)
        return
    values = box.load()[inside]
    if spec.kind == "add":
        values = values + tensor.load(at, Access(), False)
    tensor.store(at, values, call.frame.access_to(described.buffer) if spec.kind == "store" else Access())


def _mbarrier(call: _Call) -> None:
    spec = call.instruction.spec
    assert isinstance(spec, MbarrierSpec)
    if spec.remote:
        raise _unknown(call.instruction, call.stmt.source)
    if spec.action == "init":
        count = int(call.named("count"))
        call.frame.meetings.mbarriers[call.mbarrier_place()] = Mbarrier(count, count)
        return
    barrier = call.mbarrier()
    if spec.action == "invalidate":
        del call.frame.meetings.mbarriers[call.mbarrier_place()]
    elif spec.action in ("arrive", "arrive_copies"):
        barrier.change(arrivals=1)
    elif spec.action == "expect_tx":
        barrier.bytes += int(call.named("bytes"))
    elif spec.action == "arrive_expect_tx":
        barrier.bytes += int(call.named("bytes"))
        barrier.change(arrivals=1)


def _atomic(call: _Call) -> None:
    i = call.index("memory")
    region = call.stmt.operands[i]
    assert isinstance(region, Region)
    spec = call.instruction.spec
    assert isinstance(spec, AtomicSpec)
    start, extents = call.given[i]
    target = call.elements(region.buffer, start, extents)
    target.access = Access()
    value = np.asarray(call.named("value")).reshape(-1)
    target.store(_atomically(spec, target.load(), value))


def _atomically(spec: AtomicSpec, old: Array, value: Array, expected: Array | None = None) -> Array:
    if spec.op == "cas":
        return np.where(old == expected, value, old)
    if spec.op == "exch":
        return np.broadcast_to(value, old.shape)
    operations = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }  # fmt: skip
    return convert(np.asarray(operations[spec.op](old, value)), spec.dtype)


def _cached(call: _Call) -> None:
    target = call.memory("w")
    values = np.atleast_1d(np.asarray(call.named("value")))
    target.store(values)


def _product(calls: Sequence[_Call]) -> None:
    instruction = calls[0].instruction
    spec = instruction.spec
    assert isinstance(spec, MatMulSpec)
    if instruction.completes == "wgmma":
        _warpgroup(calls, spec)
        return
    held = [call.registers() for call in calls]
    owners = (instruction.owner_c, instruction.owner_a, instruction.owner_b)
    if None in owners or len(held[0]) != 3:
        raise _unknown(instruction, calls[0].stmt.source)
    c, a, b = (
        collect(np.array([lane[i].load() for lane in held]), owner)
        for i, owner in enumerate(owners)
        if owner is not None
    )
    assert instruction.owner_c is not None
    result = distribute(multiply(c, a, b, spec.c), instruction.owner_c)
    for lane, values in zip(held, result, strict=True):
        lane[0].store(values.astype(lane[0].memory.storage.data.dtype, copy=False))


def _warpgroup(calls: Sequence[_Call], spec: MatMulSpec) -> None:
    """wgmma: b, and a unless it is in registers, are in shared memory."""
    call, instruction = calls[0], calls[0].instruction
    held = [c.registers() for c in calls]
    constants = {
        p.name: g for p, g in zip(instruction.parameters, call.given, strict=True) if p.place is Place.CONSTANT
    }

    def described(name: str, rows: int) -> Array:
        numbers = {int(c.named(name)) for c in calls}
        if len(numbers) != 1 and len({call.frame.meetings.descriptors[n].descriptor for n in numbers}) != 1:
            raise VerifyError(f"the threads give {instruction.name} different operands {name}")
        operand = call.frame.meetings.descriptors[numbers.pop()]
        turned = bool(constants.get(f"transpose_{name}", 0))
        return operand.matrix(rows, spec.k, call.frame.shared_access, transposed=turned)

    b = described("b", spec.n).T
    owner_c, owner_a = instruction.owner_c, instruction.owner_a
    assert owner_c is not None
    a = collect(np.array([lane[1].load() for lane in held]), owner_a) if owner_a else described("a", spec.m)
    c = np.zeros((spec.m, spec.n), NUMPY_TYPES[spec.c.name])
    if int(call.named("accumulate")):
        c = collect(np.array([lane[0].load() for lane in held]), owner_c)
    for lane, values in zip(held, distribute(multiply(c, a, b, spec.c), owner_c), strict=True):
        lane[0].store(values)


def _matrix(calls: Sequence[_Call]) -> None:
    """ldmatrix and stmatrix: rows of matrices of 8×8, and the registers that hold them."""
    instruction = calls[0].instruction
    spec = instruction.spec
    assert isinstance(spec, MatrixMoveSpec)
    (parameter, region, (_, extents)) = calls[0].of_place(Place.REGISTERS)[0]
    owner = parameter.owner
    assert owner is not None
    held = [call.registers()[0] for call in calls]
    row = calls[0].of_place(Place.SHARED)[0][2][1]
    if math.prod(row) == spec.columns:
        rows = [call.memory() for call in calls[: 8 * spec.count]]
    else:
        rows = _rows(calls, spec, region, extents)
    if spec.store:
        stack = collect(np.array([lane.load() for lane in held]), owner)
        for to, values in zip(rows, stack, strict=True):
            to.store(values)
        return
    stack = np.array([source.load() for source in rows])
    for lane, values in zip(held, distribute(stack, owner), strict=True):
        lane.store(values)


def _rows(calls: Sequence[_Call], spec: MatrixMoveSpec, region: Region, extents: Coords) -> list[Operand]:
    """The rows of the matrices of a tile in memory, each accessed by the lane that would give its address."""
    call = calls[0]
    tile = (
        fragment(region.buffer.owner, extents, call.instruction.workers) if region.buffer.owner else "nobody holds it"
    )
    owner = next(p.owner for p in call.instruction.parameters if p.place is Place.REGISTERS)
    assert owner is not None
    found = None if isinstance(tile, str) else matrices(tile, owner, spec.count)
    _, memory, (start, shape) = call.of_place(Place.SHARED)[0]
    here = [d for d, n in enumerate(shape) if n != 1]
    there = [d for d, n in enumerate(extents) if n != 1]
    if found is None or [shape[d] for d in here] != [extents[d] for d in there]:
        raise VerifyError(f"{call.instruction.name} does not find its matrices in {region.buffer!r}")
    dims = dict(zip(there, here, strict=True))
    rows = []
    for i, origin in enumerate(found.origins):
        for r in range(8):
            at = [np.full(spec.columns, s) for s in start]
            for d, o in enumerate(origin):
                if d in dims:
                    at[dims[d]] = at[dims[d]] + o
            at[dims[found.down]] = at[dims[found.down]] + r
            at[dims[found.along]] = at[dims[found.along]] + np.arange(spec.columns)
            rows.append(calls[8 * i + r].operand(memory.buffer, tuple(at)))
    return rows


def _opaque(calls: Sequence[_Call]) -> None:
    """wmma.load and wmma.store: a matrix whose rows lie a stride apart, from the address that all lanes give."""
    call = calls[0]
    spec = call.instruction.spec
    assert isinstance(spec, FragmentMoveSpec)
    owner = call.instruction.owner_c
    assert owner is not None
    held = [c.registers()[0] for c in calls]
    stride, by_columns = int(call.named("stride")), bool(call.named("layout"))
    _, region, (start, _) = call.of_place(Place.MEMORY)[0]
    memory = call.frame.buffer(region.buffer)
    rows, columns = (g.reshape(-1) for g in np.meshgrid(*map(np.arange, spec.shape), indexing="ij"))
    at = memory.address(start) + (columns * stride + rows if by_columns else rows * stride + columns)
    data = memory.storage
    if np.any(at >= data.data.size):
        raise VerifyError(f"{call.instruction.name} goes beyond {region.buffer!r}")
    if spec.store:
        tile = collect(np.array([lane.load() for lane in held]), owner)
        data.data[at] = tile.reshape(-1)
        if data.written is not None:
            data.written[at] = True
        return
    if data.written is not None and not data.written[at].all():
        raise VerifyError(f"{call.instruction.name} reads a part of {region.buffer!r} to which nothing was written")
    for lane, values in zip(held, distribute(data.data[at].reshape(spec.shape), owner), strict=True):
        lane.store(values)


def _met(calls: Sequence[_Call]) -> None:
    """A barrier of the group: coming together was all."""


_ALONE: dict[type, Callable[[_Call], None]] = {
    AsyncCopySpec: _copy,
    BulkCopySpec: _bulk,
    TensorMoveSpec: _tensor,
    MbarrierSpec: _mbarrier,
    AtomicSpec: _atomic,
    CachedMoveSpec: _cached,
    MatMulSpec: lambda call: _product([call]),
}

_TOGETHER: dict[type, Callable[[Sequence[_Call]], None]] = {
    MatMulSpec: _product,
    MatrixMoveSpec: _matrix,
    FragmentMoveSpec: _opaque,
    BarrierSpec: _met,
}


# ---- Values


def exchanged(e: Intrinsic, args: Sequence[Sequence[Value]]) -> list[Value]:
    """The results of all lanes of a warp, from the arguments of all lanes."""
    spec = e.instruction.spec
    count = len(args)
    if isinstance(spec, ShuffleSpec):
        width = int(args[0][0])
        return [args[_source(spec.how, lane, int(args[lane][2]), width)][1] for lane in range(count)]
    if isinstance(spec, VoteSpec):
        if spec.how == "elect":
            return [lane == 0 for lane in range(count)]
        votes = [bool(a[0]) for a in args]
        agreed: Value = any(votes) if spec.how == "any" else all(votes)
        if spec.how == "ballot":
            agreed = np.array(sum(1 << i for i, v in enumerate(votes) if v), np.uint32).astype(np.int32)[()]
        return [agreed] * count
    if isinstance(spec, WarpReduceSpec):
        atomic = AtomicSpec(spec.op, spec.dtype)
        total = np.asarray(args[0][0])
        for a in args[1:]:
            total = _atomically(atomic, total, np.asarray(a[0]))
        return [total[()]] * count
    raise _unknown(e.instruction, None)


def _source(how: str, lane: int, by: int, width: int) -> int:
    """The lane that a shuffle reads."""
    first, place = lane - lane % width, lane % width
    wanted = {"idx": by % width, "up": place - by, "down": place + by, "xor": place ^ by}[how]
    return first + wanted if 0 <= wanted < width else lane


def value_alone(e: Intrinsic, expressions: Expressions) -> Callable[[Frame], Value]:
    """The value of an instruction of one thread."""
    spec = e.instruction.spec
    if isinstance(spec, (AtomicSpec, CachedMoveSpec, MbarrierSpec)):
        return _of_memory(e, expressions)
    if isinstance(spec, DescriptorSpec):
        return _descriptor(e, expressions)
    if isinstance(spec, PeerSpec) and spec.what == "rank":
        return lambda frame: np.int32(0)
    if isinstance(spec, ConvertSpec):
        (x,) = (expressions.compile(a) for a in e.args)
        return lambda frame: convert(np.asarray(x(frame)), spec.to)[()]
    raise _unknown(e.instruction, None)


def _descriptor(e: Intrinsic, expressions: Expressions) -> Callable[[Frame], Value]:
    swizzle, matrix, leading, stride = e.args
    assert isinstance(matrix, Load)
    values = [expressions.compile(x) for x in (swizzle, leading, stride)]
    indices, buffer = [expressions.compile(i) for i in matrix.indices], matrix.buffer

    def run(frame: Frame) -> Value:
        memory = frame.buffer(buffer)
        start = int(memory.address([i(frame) for i in indices])) * buffer.dtype.bytes
        width, leads, strides = (int(v(frame)) for v in values)
        # The address of an element that is not the first of an atom's line has been swizzled; a descriptor's has not.
        described = Described(memory, Descriptor(swizzled(start, width), leads, strides, width))
        frame.meetings.descriptors.append(described)
        return len(frame.meetings.descriptors) - 1

    return run


def _of_memory(e: Intrinsic, expressions: Expressions) -> Callable[[Frame], Value]:
    spec = e.instruction.spec
    names = [p.name for p in e.instruction.parameters]
    place = next(a for a in e.args if isinstance(a, Load))
    indices = [expressions.compile(i) for i in place.indices]
    values = {n: expressions.compile(a) for n, a in zip(names, e.args, strict=True) if a is not place}
    lanes = e.lanes

    def run(frame: Frame) -> Value:
        memory = frame.buffer(place.buffer)
        at = [i(frame) for i in indices]
        if isinstance(spec, MbarrierSpec):
            barrier = frame.meetings.mbarriers.get((id(memory.storage), int(memory.address(at))))
            if barrier is None:
                raise VerifyError("an mbarrier is used before it is initialised")
            return barrier.has_completed(int(values["parity"](frame)))
        many: tuple[Array, ...] = (*(np.asarray([i]) for i in at[:-1]), np.arange(at[-1], at[-1] + lanes))
        many = tuple(np.broadcast_arrays(*many))
        if isinstance(spec, CachedMoveSpec):
            loaded = memory.load(many, frame.access_to(place.buffer), frame.lenient > 0)
            return loaded if lanes > 1 else loaded[0]
        assert isinstance(spec, AtomicSpec)
        old = np.array(memory.load(many, Access(), False))
        expected = values["expected"](frame) if "expected" in values else None
        memory.store(many, _atomically(spec, old, np.atleast_1d(values["value"](frame)), expected), Access())
        return old if lanes > 1 else _plain(old[0], e.dtype)

    return run


def _plain(x: Value, dtype: DType) -> Value:
    return int(x) if NUMPY_TYPES[dtype.name] is np.int64 else x
